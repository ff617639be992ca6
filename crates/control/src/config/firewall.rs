//! `[firewall]`: which features of Linux are honored and which are bypassed.

use bm_firewall::{Counters, Feature};

use super::forms::Choice;

/// Whether a feature of Linux is honored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirewallMode {
    /// Packets that it concerns are left to Linux.
    #[default]
    Honor,
    /// The feature is ignored: brickmoon forwards the packets.
    Bypass,
}

/// Names in the configuration.
const FIREWALL_MODES: [(&str, FirewallMode); 2] =
    [("honor", FirewallMode::Honor), ("bypass", FirewallMode::Bypass)];

/// Names in the configuration.
const COUNTERS: [(&str, Counters); 2] =
    [("first packets", Counters::FirstPackets), ("exact", Counters::Exact)];

settings! {
    /// What to do with packets that Linux's own firewall, IPsec policies or traffic control may drop, change or delay:
    /// "honor" leaves them to Linux, "bypass" forwards them as if those settings did not exist. `brickmoon status` lists
    /// what is left to Linux and what is bypassed.
    #[table("[firewall]", "docs/firewall.md")]
    pub struct Firewall {
        /// nftables, and iptables of both kinds.
        #[setting(nftables = "honor", Choice(&FIREWALL_MODES), Live)]
        pub nftables: FirewallMode,
        /// Other netfilter hooks: BPF programs, IPVS, modules.
        #[setting(netfilter = "honor", Choice(&FIREWALL_MODES), Live)]
        pub netfilter: FirewallMode,
        /// IPsec policies (ip xfrm policy).
        #[setting(xfrm = "honor", Choice(&FIREWALL_MODES), Live)]
        pub xfrm: FirewallMode,
        /// Queueing disciplines (tc qdisc).
        #[setting(shaping = "honor", Choice(&FIREWALL_MODES), Live)]
        pub shaping: FirewallMode,
        /// tc filters, and BPF programs at tc's ingress and egress.
        #[setting(tc_filters = "honor", Choice(&FIREWALL_MODES), Live)]
        pub tc_filters: FirewallMode,
        /// What counters of rules count where brickmoon repeats Linux's decisions (`[flows]`): "first packets", those of a
        /// flow that Linux still forwards itself; or "exact", every packet: then Linux alone forwards what a rule with a
        /// counter may match.
        #[setting(counters = "first packets", Choice(&COUNTERS), Live)]
        pub counters: Counters,
    }
}

impl Firewall {
    /// All keys with their values.
    pub fn all(&self) -> [(&'static str, FirewallMode); 5] {
        let Self { nftables, netfilter, xfrm, shaping, tc_filters, counters: _ } = *self;
        [
            ("nftables", nftables),
            ("netfilter", netfilter),
            ("xfrm", xfrm),
            ("shaping", shaping),
            ("tc_filters", tc_filters),
        ]
    }

    /// The key of a feature; `None` if it cannot be bypassed.
    pub fn key(feature: Feature) -> Option<&'static str> {
        match feature {
            Feature::Nftables | Feature::Iptables => Some("nftables"),
            Feature::Netfilter => Some("netfilter"),
            Feature::Xfrm => Some("xfrm"),
            Feature::Shaping => Some("shaping"),
            Feature::TcFilter => Some("tc_filters"),
            Feature::Setting | Feature::Interface => None,
        }
    }

    /// Whether a feature is bypassed.
    pub fn bypasses(&self, feature: Feature) -> bool {
        Self::key(feature).is_some_and(|key| self.all().contains(&(key, FirewallMode::Bypass)))
    }
}
