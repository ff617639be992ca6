//! `[firewall]`: which parts of Linux keep their say in packets.

use bm_netlink::Feature;

/// Whether a part of Linux keeps its say in the packets that it is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heed {
    /// Those packets are left to Linux.
    #[default]
    Honor,
    /// They are forwarded as all others, as if it were not there.
    Bypass,
}

/// The words for it.
pub(super) const HEEDS: [(&str, Heed); 2] = [("honor", Heed::Honor), ("bypass", Heed::Bypass)];

/// `[firewall]`.
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
    /// tc filters and BPF programs at tc's ingress and egress.
    pub tc_filters: Heed,
}

impl Firewall {
    /// All keys with what they say.
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

    /// The key that a part of Linux goes by.
    pub fn key(feature: Feature) -> &'static str {
        match feature {
            Feature::Nftables | Feature::Iptables => "nftables",
            Feature::Netfilter => "netfilter",
            Feature::Xfrm => "xfrm",
            Feature::Shaping => "shaping",
            Feature::TcFilter => "tc_filters",
        }
    }

    /// Whether a part of Linux has no say.
    pub fn bypasses(&self, feature: Feature) -> bool {
        self.all().contains(&(Self::key(feature), Heed::Bypass))
    }
}
