//! Applies the list of packets that only Linux may handle to interfaces, next hops and filters.
//!
//! ```text
//! Traffic::All, In   ─► Interface::linux_only_in          no packets of the family are forwarded from there
//! Traffic::Out       ─► Interface::linux_only_out         next hops there lead to Linux: one store each
//! Traffic::Fragments ─► Interface::linux_only_fragments   recognized by their headers, wherever they arrive
//! Traffic::Errors    ─► Tables::linux_tells             as with each of the others, Linux sends ICMP errors
//! Traffic::Matching  ─► rules in addition to filters      searched after them, on both paths
//! ```
//!
//! With a table of flows ([`Compiler::set_flows`]), entries of which all packets of a flow fare alike
//! ([`Repeats::EachFlow`]) are none of these: they make their families *by flow*. Linux gets what no flow is known of, and
//! the egress of a flow is learned from it.
//!
//! Matches that cannot be represented are widened, never narrowed: too many rules stand for all packets.

use std::collections::BTreeSet;
use std::sync::Arc;

use bm_filter::{AnyPrefix, Filters, Flat, Rule};
use bm_firewall::{Addresses, LinuxOnly, Match, Repeats, Traffic};
use bm_forward::Lease as WorkerLease;
use bm_forward::tables::DoubtfulSources;
use bm_netlink::{Kind, Mirror};

use super::{Compiler, Interfaces};

/// Maximum number of flat rules to search.
const RULES_MAX: usize = 4096;
/// Maximum depth of stacked links to follow: a VLAN in a VLAN on a port is three.
const DEPTH: usize = 8;

/// What only Linux may handle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Enforced {
    /// All packets of IPv4, and of IPv6.
    all: [bool; 2],
    /// Links on which packets arrive.
    input: BTreeSet<u32>,
    /// Links by which packets leave.
    output: BTreeSet<u32>,
    /// All fragments of IPv4, and of IPv6, which Linux reassembles.
    fragments: [bool; 2],
    /// ICMP errors about packets of IPv4, and of IPv6.
    errors: [bool; 2],
    matching: Vec<Match>,
    /// Families, IPv4 first, of which Linux only gets packets of unknown flows.
    by_flow: [bool; 2],
}

impl Enforced {
    /// What a list asks for. With `flows` there is a table of flows.
    pub(super) fn from_list(list: &[LinuxOnly], flows: bool) -> Self {
        let mut enforced = Self::default();
        for entry in list {
            if flows && let Some(families) = families_by_flow(entry) {
                (0..2).for_each(|family| enforced.by_flow[family] |= families[family]);
                continue;
            }
            match &entry.traffic {
                Traffic::All { ipv4, ipv6 } => {
                    enforced.all[0] |= ipv4;
                    enforced.all[1] |= ipv6;
                }
                Traffic::Fragments { ipv4, ipv6 } => {
                    enforced.fragments[0] |= ipv4;
                    enforced.fragments[1] |= ipv6;
                }
                Traffic::Errors { ipv4, ipv6 } => {
                    enforced.errors[0] |= ipv4;
                    enforced.errors[1] |= ipv6;
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

    /// Leaves all packets to Linux in place of those that rules match, since there are too many rules.
    pub fn without_rules(&self) -> Self {
        Self { all: [true; 2], matching: Vec::new(), ..self.clone() }
    }

    /// Families, IPv4 first, about whose packets Linux sends ICMP errors: any other entry may concern them, too.
    pub fn errors(&self) -> [bool; 2] {
        let others = Self { errors: [false; 2], ..self.clone() } != Self::default();
        self.errors.map(|errors| errors || others)
    }

    /// Removes forwarding from interfaces for packets that only Linux may handle.
    pub fn mark(&self, mirror: &Mirror, interfaces: &mut Interfaces) {
        for interface in &mut interfaces.list {
            let alive = interface.ifindex != 0;
            let links = links_of(mirror, interface.ifindex);
            let input = alive && links.iter().any(|link| self.input.contains(link));
            let forwards = [interface.forward_ipv4, interface.forward_ipv6];
            let each_packet = self.all.map(|all| all || input);
            interface.by_flow = [0, 1]
                .map(|family| alive && forwards[family] && self.by_flow[family] && !each_packet[family]);
            interface.linux_only_in =
                [0, 1].map(|family| alive && (each_packet[family] || self.by_flow[family]));
            interface.linux_only_out = alive && links.iter().any(|link| self.output.contains(link));
            interface.linux_only_fragments = self.fragments.map(|fragments| alive && fragments);
            interface.forward_ipv4 &= !interface.linux_only_in[0];
            interface.forward_ipv6 &= !interface.linux_only_in[1];
        }
    }

    /// Rules that match all packets that only Linux may handle; `None` if they are too many.
    pub fn rules(&self, mirror: &Mirror, interfaces: &Interfaces) -> Option<Vec<Flat>> {
        let mut rules = Vec::new();
        for of in &self.matching {
            let rule = rule_of(of);
            match of.input {
                None => rules.extend(Flat::may_match(&rule, None)),
                Some(link) => {
                    for (index, interface) in interfaces.list.iter().enumerate() {
                        let ifindex = interface.ifindex;
                        if ifindex != 0 && links_of(mirror, ifindex).contains(&link) {
                            rules.extend(Flat::may_match(&rule, Some(index as u16)));
                        }
                    }
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
    /// Sources besides the machine's addresses that Linux may refuse.
    pub fn doubtful(&self) -> &DoubtfulSources {
        &self.state.doubtful
    }

    /// Until when workers forward with the compiled tables; they check it with each burst.
    pub fn lease(&self) -> &Arc<WorkerLease> {
        &self.lease
    }

    /// Sets whether there is a table of flows. Takes effect with the next [`Self::set_linux_only`].
    pub(crate) fn set_flows(&mut self, flows: bool) {
        self.flows = flows;
    }

    /// Families, IPv4 first, of which Linux only gets packets of unknown flows.
    pub(crate) fn by_flow(&self) -> [bool; 2] {
        [0, 1].map(|family| self.interfaces().list.iter().any(|own| own.by_flow[family]))
    }

    /// Whether an entry of the list is applied by rules in addition to filters.
    pub(crate) fn needs_rules(&self, entry: &LinuxOnly) -> bool {
        let by_flow = self.flows && families_by_flow(entry).is_some();
        matches!(entry.traffic, Traffic::Matching(_)) && !by_flow
    }

    /// Sets the packets that only Linux may handle. Takes effect with the next [`Self::apply`].
    pub fn set_linux_only(&mut self, list: &[LinuxOnly]) {
        let enforced = Enforced::from_list(list, self.flows);
        self.reshape |= self.enforced != enforced;
        self.enforced = enforced;
    }

    /// Updates interfaces; returns the rules for packets that only Linux may handle.
    pub(super) fn interfaces_now(
        &self,
        mirror: &Mirror,
        vrfs: &BTreeSet<Option<u32>>,
    ) -> (Interfaces, Vec<Flat>) {
        let ipsec = self.ipsec_links(mirror);
        let mut interfaces = self.state.interfaces.now(mirror, &self.ports, ipsec.as_deref(), |table| {
            vrfs.iter().position(|vrf| *vrf == Some(table)).unwrap_or_default() as u16
        });
        let rules = self.enforced.rules(mirror, &interfaces).filter(|_| !self.has_too_many_rules);
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

    /// Updates interfaces, rules for packets that only Linux may handle, and filters. If there are too many rules, all
    /// packets are left to Linux.
    pub(super) fn interfaces_and_filters(
        &mut self,
        mirror: &Mirror,
        vrfs: &BTreeSet<Option<u32>>,
    ) -> FilteredInterfaces {
        self.has_too_many_rules = false;
        let (interfaces, rules) = self.interfaces_now(mirror, vrfs);
        match self.filtering.filters(&interfaces, &rules) {
            Ok(filters) => FilteredInterfaces { interfaces, rules, filters },
            Err(error) => {
                tracing::warn!(%error, "leaving all packets to Linux: its firewall has too many rules");
                self.has_too_many_rules = true;
                let (interfaces, rules) = self.interfaces_now(mirror, vrfs);
                let filters = self.filtering.filters(&interfaces, &rules).ok().flatten();
                FilteredInterfaces { interfaces, rules, filters }
            }
        }
    }
}

/// Interfaces, and the filters for their packets.
pub(super) struct FilteredInterfaces {
    pub interfaces: Interfaces,
    /// Rules for packets that only Linux may handle.
    pub rules: Vec<Flat>,
    pub filters: Option<Arc<Filters>>,
}

/// The families, IPv4 first, of an entry that Linux decides once for each flow; `None` for one that it decides for each
/// packet, or that is about packets without a flow.
pub(crate) fn families_by_flow(entry: &LinuxOnly) -> Option<[bool; 2]> {
    if entry.repeats == Repeats::EachPacket {
        return None;
    }
    match &entry.traffic {
        Traffic::All { ipv4, ipv6 } => Some([*ipv4, *ipv6]),
        Traffic::In(_) | Traffic::Out(_) => Some([true; 2]),
        Traffic::Matching(of) => Some(match of.addresses {
            Addresses::Any => [true; 2],
            Addresses::Ipv4(..) => [true, false],
            Addresses::Ipv6(..) => [false, true],
        }),
        Traffic::Fragments { .. } | Traffic::Errors { .. } => None,
    }
}

/// A link, the lower links that its frames pass on their way from the wire, and its VRF: Linux evaluates rules for
/// each of them.
fn links_of(mirror: &Mirror, ifindex: u32) -> Vec<u32> {
    let lower_links = std::iter::successors(Some(ifindex), |ifindex| {
        let link = mirror.link(*ifindex)?;
        link.lower.filter(|_| link.lower_namespace.is_none())
    });
    let mut links: Vec<u32> = lower_links.take(DEPTH).collect();
    let master = mirror.link(ifindex).and_then(|link| mirror.link(link.master?));
    links.extend(master.filter(|master| matches!(master.kind, Kind::Vrf { .. })).map(|vrf| vrf.ifindex));
    links
}

/// Whether packets that leave by one of `out` leave by `link`: the same link, or one below or above it.
pub(crate) fn leaves_by(mirror: &Mirror, link: u32, out: &[u32]) -> bool {
    out.iter().any(|ifindex| links_of(mirror, *ifindex).contains(&link))
}

/// A match as a filter rule, without its interface.
pub(crate) fn rule_of(of: &Match) -> Rule {
    let (source, destination) = match &of.addresses {
        Addresses::Any => (None, None),
        // A prefix of length 0 still selects the family.
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
