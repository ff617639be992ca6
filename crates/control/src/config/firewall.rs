//! `[firewall]`: which features of Linux are honored and which are bypassed.

use bm_firewall::Feature;

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
pub(super) const FIREWALL_MODES: [(&str, FirewallMode); 2] =
    [("honor", FirewallMode::Honor), ("bypass", FirewallMode::Bypass)];

/// `[firewall]`: what to do about each feature.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewall {
    /// nftables and iptables.
    pub nftables: FirewallMode,
    /// Other netfilter hooks: BPF programs, IPVS, modules.
    pub netfilter: FirewallMode,
    /// IPsec policies.
    pub xfrm: FirewallMode,
    /// Queueing disciplines.
    pub shaping: FirewallMode,
    /// tc filters, and BPF programs at tc ingress and egress.
    pub tc_filters: FirewallMode,
}

impl Firewall {
    /// All keys with their values.
    pub fn all(&self) -> [(&'static str, FirewallMode); 5] {
        let Self { nftables, netfilter, xfrm, shaping, tc_filters } = *self;
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
