//! `[filter]` as tables of nftables, which filter where no program of ours gets the packets.
//!
//! ```text
//! inet:   prerouting ─► by name: r0 ─┬─► r0_ipv4 ─► for this machine? the rules, in order; what no rule matches
//! bridge: prerouting ─► by name: r0 ─┤
//! netdev: ingress of r0 ─────────────┴─► r0_ipv6 ─► likewise
//! ```
//!
//! Rules by name filter from the first frame of an interface that was deleted and made again, and stay when the daemon
//! is killed. The chain at ingress sees a member of a bridge or a bond as brickmoon's program would; it exists only as
//! long as the interface, so it is put when the interface is not brickmoon's.
//!
//! What nftables cannot do as brickmoon does (rates, checks of the source, very many rules) is not tried by halves: then
//! everything is dropped that Linux would forward, but only while the interface is not brickmoon's.

mod rules;

use crate::config::{Config, Device, SourceRule};
use bm_filter::Action;
use bm_netlink::nft::{Chain, Family, Hook, Match, Nft, OURS, Rule, Table, Value, Verdict};
use std::path::Path;

use rules::{Kind, any_of_transport, frame_is, later_fragment};

/// The families of our tables. What filters more comes before what filters less.
pub const FAMILIES: [Family; 3] = [Family::Netdev, Family::Inet, Family::Bridge];
/// More rules than this take too long one after the other.
const RULES_MAX: usize = 1024;

/// What a port has of its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Has {
    /// There is no such interface.
    Nothing,
    /// The interface, whose number this is.
    Interface {
        /// Its number.
        ifindex: u32,
        /// Whether workers get the packets; if they end, Linux does.
        workers: bool,
    },
    /// There is an interface of this number, which is not brickmoon's.
    Denied(u32),
}

/// A port, and what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortNow {
    /// Its interface's name.
    pub name: String,
    /// Where it stands in the configuration.
    pub index: usize,
    /// What it has.
    pub has: Has,
}

/// The name of the tables of the daemon at this socket: each daemon has its own, and finds it again.
pub fn name(socket: &Path) -> String {
    if socket == Path::new(bm_api::request::SOCKET) {
        return OURS.into();
    }
    // FNV-1a: the same in each build.
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let hash = socket.as_os_str().as_encoded_bytes().iter().fold(0x811c_9dc5, step);
    format!("{OURS}_{hash:08x}")
}

/// Removes the tables that a daemon has left which was killed, and says which.
pub fn remove(name: &str) -> Vec<String> {
    let Ok(Some(mut nft)) = Nft::open() else { return Vec::new() };
    let mut remove =
        |family: &Family| nft.is_there(*family, name).unwrap_or(false) && nft.remove(*family, name).is_ok();
    let any = FAMILIES.iter().filter(|family| remove(family)).count() > 0;
    any.then(|| format!("nftables (tables {name})")).into_iter().collect()
}

/// Why nftables cannot filter for a port as brickmoon does, so that it drops everything instead.
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

/// Whether something is dropped that comes in on a port.
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

/// The tables for these ports; those of a family that has none are left out.
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

/// What has to be so for a packet on a port to be filtered in a table of this family; none if it never is.
fn conditions(config: &Config, family: Family, port: &PortNow) -> Option<Vec<Match>> {
    if family == Family::Netdev {
        return matches!(port.has, Has::Denied(_)).then(Vec::new);
    }
    let mut name = port.name.clone().into_bytes();
    name.resize(16, 0);
    let named = Match::Is(Value::InterfaceName, name, None);
    let other_than = |ifindex: u32| Match::IsNot(Value::Interface, ifindex.to_ne_bytes().to_vec(), None);
    let always = |workers: bool| workers && inexact(config, port.index).is_none();
    Some(match (family, port.has) {
        // The chain at ingress knows which packets are for this machine.
        (_, Has::Denied(ifindex)) => vec![named, other_than(ifindex)],
        // An interface that brickmoon has is in no bridge, so this filters if it is put into one.
        (Family::Bridge, _) | (_, Has::Nothing) => vec![named],
        (_, Has::Interface { workers, .. }) if always(workers) => vec![named],
        (_, Has::Interface { ifindex, .. }) => vec![named, other_than(ifindex)],
    })
}

/// The rules by which packets of a port come to its chains.
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
        // Linux takes one tag off. What stands behind a second one is not looked for.
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

/// The chains of a port: what is for this machine is accepted, then the filters decide.
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
