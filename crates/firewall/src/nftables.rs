//! The nftables ruleset: which packets its chains can drop, change or count. This includes chains of `iptables-nft`.
//!
//! Only base chains at hooks that a routed packet passes count: prerouting, forward and postrouting of the families
//! inet, ip and ip6, ingress of inet, ingress and egress of netdev; and output, which ICMP errors about such packets pass. A packet that arrives on a bridge port goes to
//! Linux already, so the bridge family does not matter, nor does arp.
//!
//! A chain with policy drop concerns all packets. In one with policy accept each rule counts that has an effect: with
//! its own matches and those of the rules that lead to it. A rule that only accepts or returns has none, since
//! without it the packet would get as far or meet a later rule, which counts by itself. Rules that depend on
//! connections concern both directions of them and everything related: all packets.
//!
//! A rule also leads to the chains that elements of its verdict maps name, and what the elements of a set do to the
//! packets that look them up (counters, limits, quotas) is an effect of the rule, so these elements are read as well.
//! Other elements are not: a set does not narrow the packets that a rule matches.
//!
//! A flowtable forwards packets of its flows at the ingress of its interfaces, so these are Linux's.
//!
//! Rules that brickmoon has written ([`bm_netlink::nft`]) are known by their mark, and skipped. Whatever else there is in a
//! table of such a name counts.
//!
//! Whatever requires connection tracking does so regardless of its position: in any chain of any table, dormant or
//! not, in a named object or in a set that counts connections. The kernel then reassembles fragments that arrive.

mod analysis;
mod elements;
mod expression;
mod part;
mod read;
mod resolve;
mod rule;
mod tracking;
mod verdict;

pub(super) use part::{Nftables, from_messages};
pub(super) use read::{GROUP, is_event};

use super::condition::{Condition, Families};
use bm_wire::Family;
use elements::Set;
use std::collections::HashMap;

/// Hooks of the families inet, ip and ip6 (`NF_INET_*`).
mod hook {
    pub const PREROUTING: u32 = 0;
    pub const FORWARD: u32 = 2;
    pub const OUTPUT: u32 = 3;
    pub const POSTROUTING: u32 = 4;
    pub const INGRESS: u32 = 5;
    /// Of the family netdev.
    pub(crate) const NETDEV_INGRESS: u32 = 0;
    pub(crate) const NETDEV_EGRESS: u32 = 1;
}

/// Families of tables (`NFPROTO_*`).
mod nfproto {
    pub const INET: u8 = 1;
    pub const IPV4: u8 = 2;
    pub(crate) const NETDEV: u8 = 5;
    pub const BRIDGE: u8 = 7;
    pub const IPV6: u8 = 10;
}

/// A table by family and name; names of chains are unique within it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct TableName {
    pub family: u8,
    pub name: Box<str>,
}

/// The parts of a ruleset that matter here.
#[derive(Debug, Default)]
pub(super) struct Ruleset {
    /// Tables that are not dormant, with their base chains at hooks of routed packets and of ICMP errors about them.
    pub bases: Vec<Base>,
    /// Rules, by chain.
    pub chains: HashMap<(TableName, Box<str>), Vec<Rule>>,
    /// Sets and maps.
    pub sets: HashMap<(TableName, Box<str>), Set>,
    /// Named objects that require connection tracking, and in which table.
    pub tracking: Vec<(TableName, String)>,
    pub flowtables: Vec<Flowtable>,
}

/// A flowtable: packets of its flows are forwarded, translated and counted where they come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flowtable {
    pub table: TableName,
    pub name: Box<str>,
    pub devices: Vec<DeviceName>,
}

/// A base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Base {
    pub table: TableName,
    pub name: Box<str>,
    pub place: Place,
    pub drops: bool,
}

/// The hook of a base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the way of packets of these families.
    Ip(Families),
    /// In the way of ICMP errors about packets of these families.
    Output(Families),
    /// After the drivers of these interfaces.
    Ingress(Vec<DeviceName>),
    /// Before the drivers of these.
    Egress(Vec<DeviceName>),
}

/// Interface of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DeviceName {
    /// This name.
    Exactly(Box<str>),
    /// All whose names begin like this.
    Prefix(Box<str>),
}

/// A rule: the packets it matches, its effect, and the chains it leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rule {
    pub handle: u64,
    pub condition: Condition,
    /// Its first effect on packets, in nft's words.
    pub effect: Option<Box<str>>,
    /// What about it concerns connections.
    pub stateful: Option<Box<str>>,
    /// What in it requires connection tracking.
    pub tracks: Option<Box<str>>,
    /// The chains that it jumps or goes to.
    pub targets: Vec<Box<str>>,
    /// The sets and maps in which it looks something up, in order.
    pub lookups: Vec<Lookup>,
}

/// A lookup in a set or a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lookup {
    pub set: Box<str>,
    /// Packets that get to it.
    pub condition: Condition,
    pub kind: LookupKind,
}

/// What a lookup is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupKind {
    /// Whether it is in a set, or a value.
    Value,
    /// What becomes of the packet.
    Verdict,
    /// Which named object the packet is given to.
    Object,
}

impl Base {
    /// Its name as an administrator would look for it.
    fn title(&self) -> String {
        title(&self.table, &self.name)
    }
}

fn title(table: &TableName, chain: &str) -> String {
    format!("chain {chain} of {}", table.title())
}

impl TableName {
    fn title(&self) -> String {
        let family = match self.family {
            nfproto::INET => "inet",
            nfproto::IPV4 => "ip",
            nfproto::IPV6 => "ip6",
            nfproto::NETDEV => "netdev",
            nfproto::BRIDGE => "bridge",
            _ => "other",
        };
        format!("table {family} {}", self.name)
    }

    /// Families whose packets are tracked because of it. Bridges track those of both.
    fn tracked(&self) -> Families {
        match self.family {
            nfproto::INET | nfproto::BRIDGE => Families::BOTH,
            nfproto::IPV4 => Families::only(Family::V4),
            nfproto::IPV6 => Families::only(Family::V6),
            _ => Families { ipv4: false, ipv6: false },
        }
    }
}

#[cfg(test)]
mod tests;
