//! Converts `[filter]` to nftables tables, which filter where brickmoon does not get the packets.
//!
//! ```text
//! inet:   prerouting ─► by name: r0 ─┬─► r0_ipv4 ─► for this machine? the rules, in order; the action without a match
//! bridge: prerouting ─► by name: r0 ─┤
//! netdev: ingress of r0 ─────────────┴─► r0_ipv6 ─► likewise
//! ```
//!
//! Rules by name filter from the first frame of an interface that is deleted and created again, and stay when the
//! daemon is killed. The ingress chain sees packets of a bridge or bond member as brickmoon's program would; it exists
//! only as long as the interface, so it is created while brickmoon cannot use the interface.
//!
//! Workers filter what their steering program takes. The rest goes to Linux, and an ingress chain filters it there: frames for
//! the MACs of interfaces on the port (macvlan), for a MAC that control has not learned yet, and tagged ones. Frames for
//! the port itself pass that chain, since the one by name follows.
//!
//! For filters that nftables cannot apply in the same way (rates, source checks, very many rules), it drops all packets
//! that Linux would forward, but only while brickmoon cannot use the interface. On ports of workers that is after the daemon
//! was killed, and while its workers are restarted. Until then their steering program and they themselves hand packets to
//! Linux that arrive on the same interface as those that nobody has looked at. So an owned table, which ends with the
//! daemon, marks every packet in front of the chain that drops those without a mark:
//!
//! ```text
//! steering program, workers ─► ingress of r0: owned table: marks ─► netdev table: without mark? drops what Linux would forward
//! ```
//!
//! Inbound policies of IPsec are in an ingress chain of their own, with another mark ([`inbound`]).
//!
//! Frames with two tags are marked, and dropped without a mark, whatever the filters say, since nftables does not look
//! behind the second one.

mod inbound;
mod rules;

use crate::config::{Config, Device, Fail, HookFailure};
use bm_filter::Action;
use bm_ipsec::Policy;
use bm_netlink::nft::{
    CHECKED, Chain, Family, HANDED_OVER, Hook, Match, Nft, OURS, Rule, Table, Value, Verdict, owned_name,
};
use bm_port::Unattended;
use bm_wire::ReversePath;
use std::path::Path;

use rules::{Kind, any_of_transport, frame_is, later_fragment};

/// The families of our tables, the strictest first.
pub const FAMILIES: [Family; 3] = [Family::Netdev, Family::Inet, Family::Bridge];
/// Maximum number of rules: nftables evaluates them one after the other.
const RULES_MAX: usize = 1024;
/// Ethertypes of VLAN tags.
const TAGS: [u16; 2] = [0x8100, 0x88a8];

/// Whether the interface of a port exists, and whether brickmoon receives its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortInterface {
    /// It does not exist.
    Missing,
    /// The port uses the interface with this index, in the kernel.
    Usable(u32),
    /// Workers get the packets of its interface; Linux gets them when the workers end.
    ByWorkers {
        /// Index of the interface.
        ifindex: u32,
        /// Its MAC address, as far as is known.
        mac: [u8; 6],
        /// Whether a VLAN on it is in a VRF, whose addresses the ingress chain cannot look up.
        vlans_in_vrf: bool,
        /// Whether the owned table marks packets that the steering program and the workers hand to Linux.
        marked: bool,
    },
    /// It exists with this index, but brickmoon cannot use it.
    Unusable(u32),
}

/// A port and its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortNow {
    /// Its name in the configuration, by which rules refer to it.
    pub name: String,
    /// First name of its interface in Linux, by which packets are matched: another one if the port is given by an
    /// alternative name.
    pub device: String,
    /// Index in the configuration.
    pub index: usize,
    pub interface: PortInterface,
}

/// Name of the tables of the daemon with this socket; unique for each daemon and the same after a restart.
pub fn name(socket: &Path) -> String {
    if socket == Path::new(bm_api::request::SOCKET) {
        return OURS.into();
    }
    // FNV-1a: the same in each build.
    let mut hash: u32 = 0x811c_9dc5;
    for byte in socket.as_os_str().as_encoded_bytes() {
        hash = (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    }
    format!("{OURS}_{hash:08x}")
}

/// Removes the tables that a killed daemon has left; returns their description.
pub fn remove(name: &str) -> Vec<String> {
    let Ok(Some(mut nft)) = Nft::open() else { return Vec::new() };
    let mut any = false;
    for family in FAMILIES {
        any |= nft.is_there(family, name).unwrap_or(false) && nft.remove(family, name).is_ok();
    }
    any.then(|| format!("nftables (tables {name})")).into_iter().collect()
}

/// Why nftables cannot filter a port like brickmoon, so that it drops all packets instead; `None` if it can.
pub fn inexact(config: &Config, index: usize) -> Option<String> {
    let port = config.ports.get(index)?;
    let source = config.source_rule(port);
    if config.filter.rate_packets.is_some() {
        return Some("nftables cannot limit rates in the same way".into());
    }
    if source.own() != ReversePath::Off {
        return Some(format!("nftables cannot check sources in the same way (reverse_path = \"{source}\")"));
    }
    let rules = config.filter.rules.len();
    (rules > RULES_MAX).then(|| format!("{rules} rules are too many for nftables (at most {RULES_MAX})"))
}

/// What the steering program of a port does with packets that no worker fetches: what nftables cannot filter is dropped,
/// and everything if a hook must see it.
pub fn unattended(config: &Config, index: usize) -> Unattended {
    if config.hooks.iter().any(|hook| hook.on_failure == Some(HookFailure::Drop)) {
        return Unattended::Drop;
    }
    match inexact(config, index) {
        _ if config.filter.fail != Fail::Closed || !drops(config, index) => Unattended::ToLinux,
        None => Unattended::DropTwoTags,
        Some(_) => Unattended::Drop,
    }
}

/// Whether the filters drop any packets that arrive on a port.
pub fn drops(config: &Config, index: usize) -> bool {
    let Some(port) = config.ports.get(index) else { return false };
    let Device::Xdp(name) = &port.device else { return false };
    let filter = &config.filter;
    inexact(config, index).is_some()
        || filter.unmatched == Action::Drop
        || filter.tiny_fragments == Action::Drop
        || filter
            .rules
            .iter()
            .any(|rule| rule.action == Action::Drop && rule.port.as_ref().is_none_or(|port| port == name))
}

/// Whether nftables filters what brickmoon does not get.
pub fn is_closed(config: &Config) -> bool {
    config.filters_drop() && config.filter.fail == Fail::Closed
}

/// The tables for these ports, with the filters if they fail closed and the inbound policies of IPsec; families without any
/// are omitted.
pub fn tables(config: &Config, inbound: &[Policy], table: &str, ports: &[PortNow]) -> Vec<Table> {
    let tables = FAMILIES.into_iter().filter_map(|family| table_of(config, inbound, family, table, ports));
    tables.collect()
}

/// The table of a family.
fn table_of(
    config: &Config,
    inbound: &[Policy],
    family: Family,
    table: &str,
    ports: &[PortNow],
) -> Option<Table> {
    let mut chains = Vec::new();
    if family == Family::Netdev && !inbound.is_empty() {
        chains.extend(ports.iter().flat_map(|port| inbound::chains(inbound, port)));
    }
    let mut by_name = Vec::new();
    for port in ports.iter().filter(|port| is_closed(config) && drops(config, port.index)) {
        let conditions = conditions(config, family, port);
        let Some(conditions) = conditions else { continue };
        chains.extend(chains_of(config, family, port));
        let entries = entries(family, port, &conditions);
        match family {
            Family::Netdev => {
                let hook = Hook::Ingress(port.device.clone());
                let exact = inexact(config, port.index).is_none();
                let first = handed_over(port.interface);
                let elsewhere = filtered_elsewhere(port.interface).into_iter().filter(|_| exact);
                let rules = first.into_iter().chain(elsewhere).chain(entries).collect();
                chains.push(Chain { name: port.name.clone(), hook, rules });
            }
            Family::Inet | Family::Bridge => by_name.extend(entries),
        }
    }
    if !by_name.is_empty() {
        chains.push(Chain { name: "prerouting".into(), hook: Hook::Prerouting, rules: by_name });
    }
    (!chains.is_empty()).then(|| Table { family, name: table.into(), owned: false, chains })
}

/// The table with the inbound policies alone, for ports that workers have left.
pub fn inbound_table(inbound: &[Policy], table: &str, ports: &[PortNow]) -> Option<Table> {
    let chains: Vec<_> = ports.iter().flat_map(|port| inbound::chains(inbound, port)).collect();
    let is_needed = !inbound.is_empty() && !chains.is_empty();
    is_needed.then(|| Table { family: Family::Netdev, name: table.into(), owned: false, chains })
}

/// The table that exists only as long as the daemon; it marks packets on ports of workers that the tables of [`tables`] drop
/// without it. `None` if there are none.
pub fn owned_table(config: &Config, inbound: &[Policy], table: &str, ports: &[PortNow]) -> Option<Table> {
    let chains: Vec<_> = ports.iter().filter_map(|port| owned_chain(config, inbound, port)).collect();
    let name = owned_name(table);
    (!chains.is_empty()).then_some(Table { family: Family::Netdev, name, owned: true, chains })
}

/// The chain of the owned table for a port.
fn owned_chain(config: &Config, inbound: &[Policy], port: &PortNow) -> Option<Chain> {
    let PortInterface::ByWorkers { ifindex, .. } = port.interface else { return None };
    let here = is_interface(ifindex);
    let mark = |matches, bit| Rule { comment: "from brickmoon".into(), matches, verdict: Verdict::Mark(bit) };
    let mut rules = match inexact(config, port.index) {
        _ if !is_closed(config) || !drops(config, port.index) => Vec::new(),
        Some(_) => vec![mark(vec![here.clone()], HANDED_OVER)],
        None => TAGS.map(|tag| mark(vec![here.clone(), frame_is(tag)], HANDED_OVER)).into(),
    };
    if !inbound.is_empty() {
        rules.push(mark(vec![here], CHECKED));
    }
    let hook = Hook::Ingress(port.device.clone());
    (!rules.is_empty()).then(|| Chain { name: port.name.clone(), hook, rules })
}

/// Conditions under which a table of this family filters packets of a port; `None` if it never does.
fn conditions(config: &Config, family: Family, port: &PortNow) -> Option<Vec<Match>> {
    let exact = inexact(config, port.index).is_none();
    if family == Family::Netdev {
        let filters = match port.interface {
            PortInterface::Unusable(_) => true,
            PortInterface::ByWorkers { marked, .. } => exact || marked,
            PortInterface::Missing | PortInterface::Usable(_) => false,
        };
        return filters.then(Vec::new);
    }
    let mut name = port.device.clone().into_bytes();
    name.resize(16, 0);
    let named = Match::Is(Value::InterfaceName, name, None);
    let other_than = |ifindex: u32| Match::IsNot(Value::Interface, ifindex.to_ne_bytes().to_vec(), None);
    Some(match (family, port.interface) {
        // The ingress chain knows which packets are for this machine.
        (_, PortInterface::Unusable(ifindex)) => vec![named, other_than(ifindex)],
        // An interface that brickmoon has is in no bridge, so this filters only if it is added to one.
        (Family::Bridge, _) | (_, PortInterface::Missing) => vec![named],
        (_, PortInterface::ByWorkers { .. }) if exact => vec![named],
        (_, PortInterface::Usable(ifindex) | PortInterface::ByWorkers { ifindex, .. }) => {
            vec![named, other_than(ifindex)]
        }
    })
}

/// The rule of an ingress chain that accepts what the steering program and the workers have handed to Linux. With the index,
/// since another interface of the same name is not theirs yet.
fn handed_over(interface: PortInterface) -> Option<Rule> {
    let PortInterface::ByWorkers { ifindex, marked: true, .. } = interface else { return None };
    Some(accept_marked(ifindex, HANDED_OVER))
}

/// The rule that accepts what the owned table has marked with a bit.
fn accept_marked(ifindex: u32, bit: u32) -> Rule {
    let mask = bit.to_ne_bytes().to_vec();
    let marked = Match::Is(Value::Priority, mask.clone(), Some(mask));
    let comment = "from brickmoon".into();
    Rule { comment, matches: vec![is_interface(ifindex), marked], verdict: Verdict::AcceptUnmarked(bit) }
}

fn is_interface(ifindex: u32) -> Match {
    Match::Is(Value::Interface, ifindex.to_ne_bytes().to_vec(), None)
}

/// Rules of an ingress chain that pass frames which are filtered later, by the name of the port. The index makes another
/// interface of the same name another chain.
fn filtered_elsewhere(interface: PortInterface) -> Vec<Rule> {
    let PortInterface::ByWorkers { ifindex, mac, vlans_in_vrf, .. } = interface else { return Vec::new() };
    let here = is_interface(ifindex);
    let own = Match::Is(Value::Link(0, 6), mac.to_vec(), None);
    let mut matches: Vec<_> =
        [0x0800, 0x86dd].map(|ip| vec![here.clone(), own.clone(), link_type(ip)]).into();
    if vlans_in_vrf {
        matches.extend(TAGS.map(|tag| vec![link_type(tag)]));
    }
    let rules = matches.into_iter().map(|matches| Rule {
        comment: "by name".into(),
        matches,
        verdict: Verdict::Accept,
    });
    rules.collect()
}

fn link_type(ethertype: u16) -> Match {
    Match::Is(Value::Link(12, 2), ethertype.to_be_bytes().to_vec(), None)
}

/// The rules that send packets of a port to its chains.
fn entries(family: Family, port: &PortNow, conditions: &[Match]) -> Vec<Rule> {
    let to = |of: &[Match], verdict: Verdict| {
        let matches = conditions.iter().chain(of).cloned().collect();
        Rule { comment: String::new(), matches, verdict }
    };
    let [ipv4, ipv6] = [0x0800, 0x86dd].map(frame_is);
    let goto = |of: &[Match], kind| to(of, Verdict::Goto(chain_name(&port.name, kind)));
    let mut rules = vec![
        goto(&[ipv4.clone(), later_fragment(Kind::Ipv4)], Kind::Ipv4Later),
        goto(&[ipv4], Kind::Ipv4),
        goto(&[ipv6.clone(), any_of_transport(), later_fragment(Kind::Ipv6)], Kind::Ipv6Later),
        goto(&[ipv6.clone(), any_of_transport()], Kind::Ipv6),
        goto(&[ipv6], Kind::Unknown),
    ];
    // Workers look behind two tags, and give Linux what they do not forward.
    let from_workers = matches!(port.interface, PortInterface::ByWorkers { marked: false, .. });
    if family != Family::Inet && !from_workers {
        // Linux removes one tag. Packets with a second one are dropped.
        rules.extend(TAGS.map(|tagged| to(&[frame_is(tagged)], Verdict::Drop)));
    }
    rules
}

fn chain_name(port: &str, kind: Kind) -> String {
    let kind = match kind {
        Kind::Ipv4 => "ipv4",
        Kind::Ipv4Later => "ipv4_later",
        Kind::Ipv6 => "ipv6",
        Kind::Ipv6Later => "ipv6_later",
        Kind::Unknown => "ipv6_malformed",
    };
    format!("{port}_{kind}")
}

/// The chains of a port: packets for this machine are accepted, then the filters decide.
fn chains_of(config: &Config, family: Family, port: &PortNow) -> Vec<Chain> {
    let chains = Kind::ALL.map(|kind| {
        let mut rules = rules::not_forwarded(family, kind);
        if kind == Kind::Unknown || inexact(config, port.index).is_some() {
            rules.push(Rule { comment: String::new(), matches: Vec::new(), verdict: Verdict::Drop });
        } else {
            rules.extend(rules::of_filter(&config.filter, &port.name, kind));
        }
        Chain { name: chain_name(&port.name, kind), hook: Hook::Nowhere, rules }
    });
    chains.into()
}

#[cfg(test)]
mod tests;
