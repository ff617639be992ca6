//! What the thread for flows is told: what the tables are that programs have now, and which rules of Linux there are.

use bm_firewall::Match;

/// The state that flows hold for. Whenever it changes, all flows end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ruleset {
    /// Generation of nftables; `None` if it cannot be read.
    pub generation: Option<u32>,
    /// Families, IPv4 first, whose packets are forwarded by flow.
    pub families: [bool; 2],
    /// By our index.
    pub interfaces: Vec<OwnInterface>,
    /// Packets about which Linux decides each time.
    pub each_packet: Vec<Match>,
    /// Rules look up routes.
    pub looks_up_routes: bool,
    /// Rules give connections timeouts of their own.
    pub has_timeouts: bool,
    /// Packets that are not tracked fare alike as well.
    pub untracked: bool,
}

/// One of our interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnInterface {
    /// Index in Linux; 0 for one that was removed.
    pub ifindex: u32,
    pub name: String,
}

impl Ruleset {
    /// Our index of an interface of Linux.
    pub fn interface(&self, ifindex: u32) -> Option<u16> {
        let at = self.interfaces.iter().position(|own| own.ifindex == ifindex && ifindex != 0)?;
        u16::try_from(at).ok()
    }

    /// Name of an interface, by our index.
    pub fn name(&self, index: u16) -> String {
        self.interfaces.get(usize::from(index)).map(|own| own.name.clone()).unwrap_or_default()
    }

    /// Whether packets of a family are forwarded by flow.
    pub(crate) fn is_by_flow(&self, ipv6: bool) -> bool {
        self.generation.is_some() && self.families[usize::from(ipv6)]
    }

    /// Why no packets are forwarded by flow; `None` if some are.
    pub fn why_not(&self) -> Option<&'static str> {
        match (self.families, self.generation) {
            ([false, false], _) => Some("no rule of Linux's firewall needs them"),
            (_, None) => Some("the generation of nftables cannot be read"),
            _ => None,
        }
    }
}
