//! The nftables ruleset: which packets its chains can drop, change or count. This includes chains of `iptables-nft`.
//!
//! Only base chains of type nat count, and those at hooks that a routed packet passes: prerouting, forward and postrouting
//! of the families inet, ip and ip6, ingress of inet, ingress and egress of netdev; and output, which ICMP errors about such
//! packets pass. A packet that arrives on a bridge port goes to Linux already, so the bridge family does not matter, nor
//! does arp.
//!
//! A chain with policy drop concerns all packets. In one with policy accept each rule counts that has an effect: with
//! its own matches and those of the rules that lead to it. A rule that only accepts or returns has none, since
//! without it the packet would get as far or meet a later rule, which counts by itself. Rules that depend on
//! connections concern both directions of them and everything related: all packets. So does a chain of type nat, even
//! without a rule: as long as there is one, at whatever hook, Linux translates connections that it has translated before.
//!
//! A rule also leads to the chains that elements of its verdict maps name, and what the elements of a set do to the
//! packets that look them up (counters, limits, quotas) is an effect of the rule, so these elements are read as well.
//! Other elements are not: a set does not narrow the packets that a rule matches.
//!
//! A flowtable forwards packets of its flows at the ingress of its interfaces, so these are Linux's.
//!
//! What a rule decides about one packet of a flow it decides about all (an entry with [`crate::Repeats::EachFlow`]) unless a
//! plain packet of an established connection meets something in it that treats each packet on its own:
//!
//! | the same for all packets of a flow | each packet on its own |
//! |---|---|
//! | addresses, ports, protocols, interfaces, `meta mark` | length, dscp, ttl, other bytes of headers, TCP options, time, cpu, priority |
//! | `ct` state, mark, label, zone, helper, direction, tuple, status but `assured` | `ct` expiration, packets, bytes, avgpkt, `status assured` |
//! | sets and maps by these | sets whose elements time out or are added by rules, or have limits or quotas |
//! | `fib`, `rt` (flows end as routes change) | `socket`, `ipsec`, `osf`, hashes, `numgen` |
//! | accept, drop, reject, jump, goto, return | `queue` |
//! | NAT, `notrack`, `ct helper`, `ct timeout` | `limit`, `quota`, `ct count`, `synproxy`, `tproxy`, other named objects |
//! | `meta mark set`, `ct mark set`, from what stays the same | other `set`s, `add @set` and `update @set`, `dup`, `fwd`, `flow add` |
//! | counters, unless they are [`crate::Counters::Exact`]; log, if a drop follows | log |
//!
//! Of `iptables-nft`, matches and targets in `compat` likewise; unknown ones treat each packet on its own.
//!
//! Packets of an established connection do not meet: chains of type nat; what is behind a match of other states, or behind
//! an accept that all of them have met; and what matches only packets that are never plain (SYN, FIN, RST, fragments,
//! ICMP, extension headers). What matches only some packets of a flow and accepts them or leads them elsewhere counts if a
//! later rule, or the policy, does something to the others.
//!
//! Rules that brickmoon has written ([`bm_netlink::nft`]) are known by their mark, and skipped. Whatever else there is in a
//! table of such a name counts.
//!
//! Whatever requires connection tracking does so regardless of its position: in any chain of any table, dormant or
//! not, in a named object or in a set that counts connections. The kernel then reassembles fragments that arrive.

mod analysis;
mod attributes;
mod compat;
mod elements;
mod expression;
mod field;
mod flow;
mod part;
mod plain;
mod read;
mod resolve;
mod rule;
mod step;
mod table;
mod tracking;
mod verdict;

pub(super) use part::{Nftables, from_messages};
pub(super) use read::{GROUP, is_event};

use super::condition::{Condition, Families};
use bm_wire::Family;
use elements::Set;
use std::collections::HashMap;
use step::{Encounters, Key, States, Step, Target};

/// Hooks of the families inet, ip and ip6 (`NF_INET_*`).
mod hook {
    pub const PREROUTING: u32 = 0;
    pub const INPUT: u32 = 1;
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
    /// Base chains of tables that are not dormant: those at hooks of routed packets and of ICMP errors about them, and all of
    /// type nat.
    pub bases: Vec<Base>,
    /// Rules, by chain.
    pub chains: HashMap<(TableName, Box<str>), Vec<Rule>>,
    /// Sets and maps.
    pub sets: HashMap<(TableName, Box<str>), Set>,
    /// Named objects that require connection tracking, and in which table.
    pub tracking: Vec<(TableName, String)>,
    /// Whether there is a named object that gives connections timeouts of their own.
    pub has_timeouts: bool,
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
    /// Whether it is of type nat.
    pub is_nat: bool,
    /// States in which packets of flows pass it.
    pub states: States,
}

/// The hook of a base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the way of packets of these families.
    Ip(Families),
    /// In the way of packets of these families to this machine: of type nat.
    Input(Families),
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
    pub targets: Vec<Target>,
    /// The sets and maps in which it looks something up, in order.
    pub lookups: Vec<Lookup>,
    /// What in it flows meet, in order, until that is evaluated.
    pub steps: Vec<Step>,
    /// In which states they meet what.
    pub met: Encounters,
    /// Whether it gives connections timeouts of their own.
    pub has_timeout: bool,
}

/// A lookup in a set or a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lookup {
    pub set: Box<str>,
    /// Packets that get to it.
    pub condition: Condition,
    pub kind: LookupKind,
    pub key: Key,
    /// Whether only packets match whose key is not there.
    pub inverted: bool,
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

    /// Whether packets pass it before their connection is looked up, so that any state may be ahead.
    fn is_early(&self) -> bool {
        self.states == States::ALL
    }

    /// States in which packets get to the next rule. Before connections are looked up the state may still change, so that
    /// packets of all states get there or of none.
    fn settled(&self, states: States) -> States {
        if self.is_early() && !states.is_empty() { States::ALL } else { states }
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

    /// The only family of packets that its chains see.
    fn single_family(&self) -> Option<Family> {
        match self.family {
            nfproto::IPV4 => Some(Family::V4),
            nfproto::IPV6 => Some(Family::V6),
            _ => None,
        }
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
