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
//! For filters that nftables cannot apply in the same way (rates, source checks, very many rules), it drops all packets
//! that Linux would forward, but only while brickmoon cannot use the interface.

mod rules;

use crate::config::{Config, Device, SourceRule};
use bm_filter::Action;
use bm_netlink::nft::{Chain, Family, Hook, Match, Nft, OURS, Rule, Table, Value, Verdict};
use std::path::Path;

use rules::{Kind, any_of_transport, frame_is, later_fragment};

/// The families of our tables, the strictest first.
pub const FAMILIES: [Family; 3] = [Family::Netdev, Family::Inet, Family::Bridge];
/// Maximum number of rules: nftables evaluates them one after the other.
const RULES_MAX: usize = 1024;

/// Whether the interface of a port exists, and whether brickmoon receives its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortInterface {
    /// It does not exist.
    Missing,
    /// The port uses it.
    Usable {
        /// Index of the interface.
        ifindex: u32,
        /// Whether workers get the packets; Linux gets them when the workers end.
        workers: bool,
    },
    /// It exists with this index, but brickmoon cannot use it.
    Unusable(u32),
}

/// A port and its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortNow {
    /// Name of its interface.
    pub name: String,
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
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let hash = socket.as_os_str().as_encoded_bytes().iter().fold(0x811c_9dc5, step);
    format!("{OURS}_{hash:08x}")
}

/// Removes the tables that a killed daemon has left; returns their description.
pub fn remove(name: &str) -> Vec<String> {
    let Ok(Some(mut nft)) = Nft::open() else { return Vec::new() };
    let mut remove =
        |family: &Family| nft.is_there(*family, name).unwrap_or(false) && nft.remove(*family, name).is_ok();
    let any = FAMILIES.iter().filter(|family| remove(family)).count() > 0;
    any.then(|| format!("nftables (tables {name})")).into_iter().collect()
}

/// Why nftables cannot filter a port like brickmoon, so that it drops all packets instead; `None` if it can.
pub fn inexact(config: &Config, index: usize) -> Option<String> {
    let port = config.ports.get(index)?;
    let source = config.source_rule(port);
    if config.filter.rate_packets.is_some() {
        return Some("nftables cannot limit rates in the same way".into());
    }
    if !matches!(source, SourceRule::Kernel | SourceRule::Off) {
        return Some(format!("nftables cannot check sources in the same way (reverse_path = \"{source}\")"));
    }
    let rules = config.filter.rules.len();
    (rules > RULES_MAX).then(|| format!("{rules} rules are too many for nftables (at most {RULES_MAX})"))
}

/// Whether the filters drop any packets that arrive on a port.
pub fn drops(config: &Config, index: usize) -> bool {
    let Some(port) = config.ports.get(index) else { return false };
    let Device::Xdp(name) = &port.device else { return false };
    let filter = &config.filter;
    let is_here = |rule: &&bm_filter::Rule| rule.port.as_ref().is_none_or(|port| port == name);
    inexact(config, index).is_some()
        || filter.unmatched == Action::Drop
        || filter.tiny_fragments == Action::Drop
        || filter.rules.iter().filter(is_here).any(|rule| rule.action == Action::Drop)
}

/// The tables for these ports; families without any are omitted.
pub fn tables(config: &Config, table: &str, ports: &[PortNow]) -> Vec<Table> {
    let ports: Vec<_> = ports.iter().filter(|port| drops(config, port.index)).collect();
    let make = |family| {
        let mut chains = Vec::new();
        let mut by_name = Vec::new();
        for port in &ports {
            let conditions = conditions(config, family, port);
            let Some(conditions) = conditions else { continue };
            chains.extend(chains_of(config, family, port));
            let entries = entries(family, &port.name, &conditions);
            match family {
                Family::Netdev => {
                    let hook = Hook::Ingress(port.name.clone());
                    chains.push(Chain { name: port.name.clone(), hook, rules: entries });
                }
                Family::Inet | Family::Bridge => by_name.extend(entries),
            }
        }
        if !by_name.is_empty() {
            chains.push(Chain { name: "prerouting".into(), hook: Hook::Prerouting, rules: by_name });
        }
        (!chains.is_empty()).then(|| Table { family, name: table.into(), chains })
    };
    FAMILIES.into_iter().filter_map(make).collect()
}

/// Conditions under which a table of this family filters packets of a port; `None` if it never does.
fn conditions(config: &Config, family: Family, port: &PortNow) -> Option<Vec<Match>> {
    if family == Family::Netdev {
        return matches!(port.interface, PortInterface::Unusable(_)).then(Vec::new);
    }
    let mut name = port.name.clone().into_bytes();
    name.resize(16, 0);
    let named = Match::Is(Value::InterfaceName, name, None);
    let other_than = |ifindex: u32| Match::IsNot(Value::Interface, ifindex.to_ne_bytes().to_vec(), None);
    let always = |workers: bool| workers && inexact(config, port.index).is_none();
    Some(match (family, port.interface) {
        // The ingress chain knows which packets are for this machine.
        (_, PortInterface::Unusable(ifindex)) => vec![named, other_than(ifindex)],
        // An interface that brickmoon has is in no bridge, so this filters only if it is added to one.
        (Family::Bridge, _) | (_, PortInterface::Missing) => vec![named],
        (_, PortInterface::Usable { workers, .. }) if always(workers) => vec![named],
        (_, PortInterface::Usable { ifindex, .. }) => vec![named, other_than(ifindex)],
    })
}

/// The rules that send packets of a port to its chains.
fn entries(family: Family, port: &str, conditions: &[Match]) -> Vec<Rule> {
    let to = |of: &[Match], verdict: Verdict| {
        let matches = conditions.iter().chain(of).cloned().collect();
        Rule { comment: String::new(), matches, verdict }
    };
    let [ipv4, ipv6] = [0x0800, 0x86dd].map(frame_is);
    let goto = |of: &[Match], kind| to(of, Verdict::Goto(chain_name(port, kind)));
    let mut rules = vec![
        goto(&[ipv4.clone(), later_fragment(Kind::Ipv4)], Kind::Ipv4Later),
        goto(&[ipv4], Kind::Ipv4),
        goto(&[ipv6.clone(), any_of_transport(), later_fragment(Kind::Ipv6)], Kind::Ipv6Later),
        goto(&[ipv6.clone(), any_of_transport()], Kind::Ipv6),
        goto(&[ipv6], Kind::Unknown),
    ];
    if family != Family::Inet {
        // Linux removes one tag. Packets with a second one are dropped.
        rules.extend([0x8100, 0x88a8].map(|tagged| to(&[frame_is(tagged)], Verdict::Drop)));
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
    let chain = |kind: Kind| {
        let mut rules = rules::not_forwarded(family, kind);
        if kind == Kind::Unknown || inexact(config, port.index).is_some() {
            rules.push(Rule { comment: String::new(), matches: Vec::new(), verdict: Verdict::Drop });
        } else {
            rules.extend(rules::of_filter(&config.filter, &port.name, kind));
        }
        Chain { name: chain_name(&port.name, kind), hook: Hook::Nowhere, rules }
    };
    Kind::ALL.map(chain).into()
}

#[cfg(test)]
mod tests;
