//! Which routed packets only Linux may handle: those that a firewall, an IPsec policy or a traffic control setting of
//! the kernel can drop, change, delay or count.
//!
//! The list is made from the kernel's own settings and never leaves anything out: if a rule matches something that
//! [`Match`] cannot express, the entry covers more packets than the rule, up to [`Traffic::All`].
//!
//! Where Linux has decided about one packet of a flow and would decide the same about all later ones, the entry says so
//! ([`Repeats`]).
//!
//! Followed here, by [`LinuxOnlyWatch`]:
//!
//! | what | how it is followed | what it counts for |
//! |---|---|---|
//! | nftables, `iptables-nft` among it | events, then the whole ruleset of one generation | chains at prerouting, forward, output and postrouting, and of interfaces |
//! | XFRM policies and their default | events, then the list | directions fwd and out, with action block or a template |
//! | qdiscs, tc filters | events, then the list | what leaves by an interface, or comes in there |
//! | tcx and netkit programs | asked every 90 ms, 64 interfaces at a time | the same |
//! | legacy iptables and ip6tables | read every 50 ms where there are tables | as nftables; each of their rules counts packets |
//! | BPF links at netfilter's hooks | asked every 90 ms | all packets of their family, whatever the namespace |
//! | functions of modules at netfilter's hooks | asked every 90 ms, if the kernel lists hooks | all packets of their family |
//! | IPVS services | file read every 90 ms | all packets |
//!
//! Connection tracking also reassembles fragments of routed packets, whatever needs it: a rule in any chain, also for
//! input or output, a named object or a set. Then fragments of its address families are left to Linux; other packets
//! are not affected. Sets are not read, so a rule that uses one is treated as if the set contained everything.
//!
//! A chain at output sees the ICMP errors that a router sends about packets that it cannot forward. If it has policy
//! drop, or a rule with an effect, Linux sends these errors; no other packet is left to Linux for that reason. The same
//! goes for unknown functions and BPF programs at output.
//!
//! Settings, addresses and interfaces that only Linux knows how to use are found in the mirror ([`of_mirror`]).
//!
//! Other settings that affect routed packets are handled elsewhere, or not at all:
//!
//! - Routes with an encapsulation (MPLS, SRv6, BPF by lwtunnel and others) send their packets to Linux ([`bm_netlink::Hop`]).
//! - `ip rule` that asks for more than the destination sends all packets of its family to Linux ([`bm_netlink::Rule`]); a rule by
//!   firewall mark is one of those, whoever sets the mark.
//! - `forwarding`, `force_forwarding` and `rp_filter` are in the mirror ([`bm_netlink::Netconf`]).
//! - Ports of bridges are Linux's, so ebtables, the broute table and `br_netfilter` see what they always see.
//! - BPF programs of cgroups see packets of local sockets only, those of LSM hooks none. Taps (`tcpdump`, packet sockets) see
//!   but change nothing; what they see of forwarded packets on ports is less than without brickmoon.
//! - Security modules judge routed packets by labels that netfilter's rules or IPsec policies have given them; both count.
//! - Kernels without `NETFILTER_NETLINK_HOOK` do not tell which modules have hooks, so modules of others are not seen there.

mod bpf;
mod condition;
mod entries;
mod flows;
mod hooks;
mod legacy;
mod listing;
mod mirror;
mod names;
mod nftables;
mod part;
mod tc;
mod watch;
mod xfrm;
mod xt;

pub use flows::{Counters, Repeats, RulesetFacts};
pub use listing::from_listing;
pub use mirror::of_mirror;
pub use watch::{LinuxOnlyOptions, LinuxOnlyStatistics, LinuxOnlyWatch};
pub use xfrm::AppliedPolicies;

use std::fmt;
use std::ops::RangeInclusive;

use bm_wire::prefix::{Ipv4Prefix, Ipv6Prefix};

/// Part of the kernel that handles packets in its own way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Feature {
    /// nftables chains, those that `iptables-nft` makes among them.
    Nftables,
    /// Legacy iptables and ip6tables.
    Iptables,
    /// Other netfilter hooks: BPF programs, IPVS, modules.
    Netfilter,
    /// IPsec policies.
    Xfrm,
    /// Queueing disciplines other than the default.
    Shaping,
    /// tc filters and BPF programs at tc's ingress and egress.
    TcFilter,
    /// Settings in `/proc/sys/net`, addresses and routes that only Linux knows how to use.
    Setting,
    /// Interfaces that take the frames of others.
    Interface,
}

/// A set of packets. `None` in a field matches any value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Match {
    /// Interface that the packet comes in on, by its index.
    pub input: Option<u32>,
    /// Protocol, for IPv6 the last next header.
    pub protocol: Option<u8>,
    /// Source and destination prefix, of one family.
    pub addresses: Addresses,
    pub source_ports: Option<RangeInclusive<u16>>,
    pub destination_ports: Option<RangeInclusive<u16>>,
}

/// Family and prefixes of a [`Match`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// Both families.
    #[default]
    Any,
    /// IPv4, from and to these prefixes.
    Ipv4(Option<Ipv4Prefix>, Option<Ipv4Prefix>),
    /// IPv6, from and to these prefixes.
    Ipv6(Option<Ipv6Prefix>, Option<Ipv6Prefix>),
}

/// Which packets an entry is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Traffic {
    /// All packets of IPv4, of IPv6, or of both.
    All {
        /// Whether IPv4 is among them.
        ipv4: bool,
        /// Whether IPv6 is among them.
        ipv6: bool,
    },
    /// Packets that arrive on an interface.
    In(u32),
    /// Packets that leave through an interface.
    Out(u32),
    /// Fragments of IPv4, of IPv6, or of both.
    Fragments {
        /// Whether this includes IPv4.
        ipv4: bool,
        /// Whether this includes IPv6.
        ipv6: bool,
    },
    /// ICMP errors about forwarded packets of IPv4, of IPv6, or of both: Linux must send them, the packets themselves do
    /// not concern it.
    Errors {
        /// Whether this includes IPv4.
        ipv4: bool,
        /// Whether this includes IPv6.
        ipv6: bool,
    },
    /// Packets that match.
    Matching(Match),
}

/// Packets that only Linux may handle, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinuxOnly {
    /// What in the kernel handles them.
    pub feature: Feature,
    /// The packets.
    pub traffic: Traffic,
    /// Whether it decides the same about all packets of a flow.
    pub repeats: Repeats,
    /// What the administrator configured, in the words of iproute2 or nft: `chain forward of table inet filter has
    /// policy drop`.
    pub why: String,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Netfilter => "netfilter",
            Self::Xfrm => "xfrm",
            Self::Shaping => "shaping",
            Self::TcFilter => "tc filter",
            Self::Setting => "setting",
            Self::Interface => "interface",
        })
    }
}
