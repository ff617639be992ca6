//! `[filter]`: what is dropped although Linux would forward it.

use bm_filter::{Action, Rule};

/// `[filter]` and each `[[filter.rule]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The rules, of which the first that matches decides.
    pub rules: Vec<Rule>,
    /// What becomes of packets that no rule matches.
    pub unmatched: Action,
    /// What becomes of fragments too small for the headers that rules ask for.
    pub tiny_fragments: Action,
    /// Packets a second that each source may send; `None` for any number.
    pub rate_packets: Option<u32>,
    /// Packets that a source may send at once; `None` for those of a second.
    pub rate_burst: Option<u32>,
    /// How many bits of an IPv4 address make a source.
    pub rate_ipv4_length: u32,
    /// The same for IPv6.
    pub rate_ipv6_length: u32,
    /// How sources are checked by their way back, on all ports.
    pub reverse_path: SourceRule,
    /// What becomes of packets on ports whose interface is not brickmoon's.
    pub fail: Fail,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            unmatched: Action::Accept,
            tiny_fragments: Action::Accept,
            rate_packets: None,
            rate_burst: None,
            rate_ipv4_length: 32,
            rate_ipv6_length: 64,
            reverse_path: SourceRule::Kernel,
            fail: Fail::Closed,
        }
    }
}

impl Filter {
    /// Whether anything is dropped by it: rules, fragments, rates.
    pub fn drops(&self) -> bool {
        let Self { rules, unmatched, tiny_fragments, rate_packets, .. } = self;
        !rules.is_empty()
            || *unmatched == Action::Drop
            || *tiny_fragments == Action::Drop
            || rate_packets.is_some()
    }
}

/// What becomes of packets that filters are to judge and cannot, since Linux has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fail {
    /// nftables filters them by the same rules.
    #[default]
    Closed,
    /// Linux forwards them, and everybody is told.
    Open,
}

/// How sources are checked by their way back (RFC 3704).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceRule {
    /// As `rp_filter` says; IPv6 is not checked.
    #[default]
    Kernel,
    /// Not at all.
    Off,
    /// A route to the source leads out of the interface it came in on.
    Strict,
    /// Some route to the source's prefix, the best or a worse one, leads out of the interface it came in on.
    Feasible,
    /// There is a route to the source.
    Loose,
}

impl std::fmt::Display for SourceRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = SOURCE_RULES.iter().find(|(_, rule)| rule == self);
        f.write_str(word.map_or("", |(word, _)| word))
    }
}

/// The words for it.
pub(super) const SOURCE_RULES: [(&str, SourceRule); 5] = [
    ("kernel", SourceRule::Kernel),
    ("off", SourceRule::Off),
    ("strict", SourceRule::Strict),
    ("feasible", SourceRule::Feasible),
    ("loose", SourceRule::Loose),
];
