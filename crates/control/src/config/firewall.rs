//! `[firewall]`: which features of Linux are honored and which are bypassed.

use bm_netlink::Feature;

/// Whether a feature of Linux is honored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heed {
    /// Packets that it concerns are left to Linux.
    #[default]
    Honor,
    /// The feature is ignored: brickmoon forwards the packets.
    Bypass,
}

/// Names in the configuration.
pub(super) const HEEDS: [(&str, Heed); 2] = [("honor", Heed::Honor), ("bypass", Heed::Bypass)];

/// `[firewall]`: what to do about each feature.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewall {
    /// nftables and iptables.
    pub nftables: Heed,
    /// Other netfilter hooks: BPF programs, IPVS, modules.
    pub netfilter: Heed,
    /// IPsec policies.
    pub xfrm: Heed,
    /// Queueing disciplines.
    pub shaping: Heed,
    /// tc filters, and BPF programs at tc ingress and egress.
    pub tc_filters: Heed,
}

impl Firewall {
    /// All keys with their values.
    pub fn all(&self) -> [(&'static str, Heed); 5] {
        let Self { nftables, netfilter, xfrm, shaping, tc_filters } = *self;
        [
            ("nftables", nftables),
            ("netfilter", netfilter),
            ("xfrm", xfrm),
            ("shaping", shaping),
            ("tc_filters", tc_filters),
        ]
    }

    /// The key of a feature.
    pub fn key(feature: Feature) -> &'static str {
        match feature {
            Feature::Nftables | Feature::Iptables => "nftables",
            Feature::Netfilter => "netfilter",
            Feature::Xfrm => "xfrm",
            Feature::Shaping => "shaping",
            Feature::TcFilter => "tc_filters",
        }
    }

    /// Whether a feature is bypassed.
    pub fn bypasses(&self, feature: Feature) -> bool {
        self.all().contains(&(Self::key(feature), Heed::Bypass))
    }
}
