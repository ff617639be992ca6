//! What only Linux may handle, as interfaces, next hops and filters go by it.
//!
//! ```text
//! Traffic::All, In   ─► Interface::linux_only_in          nothing of the family is forwarded from there
//! Traffic::Out       ─► Interface::linux_only_out         next hops there are Linux's: one store each
//! Traffic::Fragments ─► Interface::linux_only_fragments   told by their headers, wherever they come in
//! Traffic::Matching  ─► rules beside the filters'         searched behind them, on both paths
//! ```
//!
//! Whatever cannot be told apart is widened, never narrowed: rules that have no room stand for all packets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bm_filter::{AnyPrefix, Filters, Flat, Rule};
use bm_netlink::{Addresses, Kind, LinuxOnly, Match, Mirror, Traffic};

use super::{Compiler, Interfaces};

/// Flat rules that are searched; more of them are not worth what they cost.
const RULES_MAX: usize = 4096;
/// Links below each other that are followed: a VLAN in a VLAN on a port is three.
const DEPTH: usize = 8;

/// What only Linux may handle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Enforced {
    /// Families, IPv4 first.
    all: [bool; 2],
    /// Links that packets come in on.
    input: BTreeSet<u32>,
    /// Links that packets leave by.
    output: BTreeSet<u32>,
    /// Families, IPv4 first, whose fragments Linux reassembles.
    fragments: [bool; 2],
    matching: Vec<Match>,
}

impl Enforced {
    pub fn of(list: &[LinuxOnly]) -> Self {
        let mut enforced = Self::default();
        for entry in list {
            match &entry.traffic {
                Traffic::All { ipv4, ipv6 } => {
                    enforced.all[0] |= ipv4;
                    enforced.all[1] |= ipv6;
                }
                Traffic::Fragments { ipv4, ipv6 } => {
                    enforced.fragments[0] |= ipv4;
                    enforced.fragments[1] |= ipv6;
                }
                Traffic::In(link) => drop(enforced.input.insert(*link)),
                Traffic::Out(link) => drop(enforced.output.insert(*link)),
                Traffic::Matching(of) if !enforced.matching.contains(of) => {
                    enforced.matching.push(of.clone())
                }
                Traffic::Matching(_) => {}
            }
        }
        enforced
    }

    /// The same for all packets, since its rules have no room.
    pub fn without_rules(&self) -> Self {
        Self { all: [true; 2], matching: Vec::new(), ..self.clone() }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Has interfaces forward no more than what others than Linux may handle.
    pub fn mark(&self, mirror: &Mirror, interfaces: &mut Interfaces) {
        for interface in &mut interfaces.list {
            let alive = interface.ifindex != 0;
            let links = links_of(mirror, interface.ifindex);
            let any = |of: &BTreeSet<u32>| alive && links.iter().any(|link| of.contains(link));
            let input = any(&self.input);
            interface.linux_only_in = self.all.map(|all| alive && (all || input));
            interface.linux_only_out = any(&self.output);
            interface.linux_only_fragments = self.fragments.map(|fragments| alive && fragments);
            interface.forward_ipv4 &= !interface.linux_only_in[0];
            interface.forward_ipv6 &= !interface.linux_only_in[1];
        }
    }

    /// Rules of which one matches each packet that only Linux may handle; `None` if they are too many.
    pub fn rules(&self, mirror: &Mirror, interfaces: &Interfaces) -> Option<Vec<Flat>> {
        let mut rules = Vec::new();
        for of in &self.matching {
            let rule = rule_of(of);
            match of.input {
                None => rules.extend(Flat::may_match(&rule, None)),
                Some(link) => {
                    let is_there = |ifindex: u32| ifindex != 0 && links_of(mirror, ifindex).contains(&link);
                    let there = interfaces.list.iter().enumerate().filter(|(_, of)| is_there(of.ifindex));
                    rules.extend(there.flat_map(|(index, _)| Flat::may_match(&rule, Some(index as u16))));
                }
            }
            if rules.len() > RULES_MAX {
                return None;
            }
        }
        Some(rules)
    }
}

impl Compiler {
    /// Set while all packets are Linux's, which workers see with their next burst.
    pub fn aside(&self) -> &Arc<AtomicBool> {
        &self.aside
    }

    /// The packets that only Linux may handle. Takes effect with the next [`Self::apply`].
    pub fn set_linux_only(&mut self, list: &[LinuxOnly]) {
        let enforced = Enforced::of(list);
        self.reshape |= self.enforced != enforced;
        self.enforced = enforced;
    }

    /// Interfaces, and rules of what only Linux may handle on them.
    pub(super) fn interfaces_now(
        &self,
        mirror: &Mirror,
        vrfs: &BTreeSet<Option<u32>>,
    ) -> (Interfaces, Vec<Flat>) {
        let vrf_of = |table: u32| vrfs.iter().position(|vrf| *vrf == Some(table)).unwrap_or_default() as u16;
        let mut interfaces = self.small.interfaces.now(mirror, &self.ports, vrf_of);
        let rules = self.enforced.rules(mirror, &interfaces).filter(|_| !self.crowded);
        match rules {
            Some(rules) => {
                self.enforced.mark(mirror, &mut interfaces);
                (interfaces, rules)
            }
            None => {
                self.enforced.without_rules().mark(mirror, &mut interfaces);
                (interfaces, Vec::new())
            }
        }
    }

    /// Interfaces, rules of what only Linux may handle, and filters with them. Where rules have no room all packets
    /// are Linux's.
    pub(super) fn interfaces_and_filters(
        &mut self,
        mirror: &Mirror,
        vrfs: &BTreeSet<Option<u32>>,
    ) -> (Interfaces, Vec<Flat>, Option<Arc<Filters>>) {
        self.crowded = false;
        let (interfaces, rules) = self.interfaces_now(mirror, vrfs);
        match self.filtering.filters(&interfaces, &rules) {
            Ok(filters) => (interfaces, rules, filters),
            Err(error) => {
                tracing::warn!(%error, "leaving all packets to Linux: its firewall has too many rules");
                self.crowded = true;
                let (interfaces, rules) = self.interfaces_now(mirror, vrfs);
                let filters = self.filtering.filters(&interfaces, &rules).ok().flatten();
                (interfaces, rules, filters)
            }
        }
    }
}

/// A link, those that its frames come through on their way from the wire, and the VRF that it is in: Linux asks
/// rules of each.
fn links_of(mirror: &Mirror, ifindex: u32) -> Vec<u32> {
    let below = |ifindex: &u32| {
        let link = mirror.link(*ifindex)?;
        link.lower.filter(|_| link.lower_namespace.is_none())
    };
    let mut links: Vec<u32> = std::iter::successors(Some(ifindex), below).take(DEPTH).collect();
    let master = mirror.link(ifindex).and_then(|link| mirror.link(link.master?));
    links.extend(master.filter(|master| matches!(master.kind, Kind::Vrf { .. })).map(|vrf| vrf.ifindex));
    links
}

/// Whether packets that leave by one of `out` leave by `link`: it is that, or one below or above.
pub(crate) fn leaves_by(mirror: &Mirror, link: u32, out: &[u32]) -> bool {
    out.iter().any(|ifindex| links_of(mirror, *ifindex).contains(&link))
}

/// A match as a rule of filters, its interface aside.
pub(crate) fn rule_of(of: &Match) -> Rule {
    let (source, destination) = match &of.addresses {
        Addresses::Any => (None, None),
        // The prefix of all addresses still says the family.
        Addresses::Ipv4(source, destination) => {
            (Some(AnyPrefix::V4(source.unwrap_or_default())), destination.map(AnyPrefix::V4))
        }
        Addresses::Ipv6(source, destination) => {
            (Some(AnyPrefix::V6(source.unwrap_or_default())), destination.map(AnyPrefix::V6))
        }
    };
    Rule {
        source,
        destination,
        protocol: of.protocol,
        source_ports: of.source_ports.clone(),
        destination_ports: of.destination_ports.clone(),
        ..Rule::default()
    }
}
