//! Random histories of a machine: after each step, workers must do what the oracle says.

use super::*;
use bm_netlink::next_hop::{Member, NextHop as NextHopObject, Object, Resilient};
use bm_netlink::{Rule, Sysctls};
use proptest::prelude::*;

/// A step, in small numbers that are interpreted with the mirror.
#[derive(Clone, Debug)]
enum Step {
    Link {
        which: u8,
        flags: u8,
        master: bool,
    },
    LinkGone {
        which: u8,
    },
    Vlan {
        on: u8,
    },
    Neighbor {
        at: u8,
        on: u8,
        state: u8,
        mac: u8,
    },
    NeighborGone {
        at: u8,
        on: u8,
    },
    Route {
        table: u8,
        prefix: u8,
        kind: u8,
        hops: Vec<(u8, u8, u8)>,
        metric: u8,
        mtu: bool,
        tos: bool,
        preference: u8,
    },
    RouteGone {
        table: u8,
        prefix: u8,
        nth: u8,
    },
    Object {
        id: u8,
        gateway: u8,
        on: u8,
    },
    Group {
        id: u8,
        members: Vec<(u8, u8)>,
        resilient: bool,
    },
    ObjectGone {
        id: u8,
    },
    Rules {
        which: u8,
    },
    UseNeighbors(bool),
    IgnoreLinkdown {
        on: u8,
        ignore: bool,
    },
    LinuxOnly {
        out: u8,
        comes_in: u8,
        rules: bool,
    },
}

fn steps() -> impl Strategy<Value = Step> {
    let hop = (any::<u8>(), any::<u8>(), 1u8..4);
    prop_oneof![
        2 => (0u8..4, 0u8..3, any::<bool>()).prop_map(|(which, flags, master)| Step::Link { which, flags, master }),
        1 => (0u8..4).prop_map(|which| Step::LinkGone { which }),
        1 => (0u8..2).prop_map(|on| Step::Vlan { on }),
        4 => (any::<u8>(), 0u8..5, any::<u8>(), 0u8..6)
            .prop_map(|(at, on, state, mac)| Step::Neighbor { at, on, state, mac }),
        1 => (any::<u8>(), 0u8..5).prop_map(|(at, on)| Step::NeighborGone { at, on }),
        10 => (any::<u8>(), any::<u8>(), any::<u8>(), prop::collection::vec(hop, 1..4), 0u8..2, any::<bool>(), 0u8..12, 0usize..3)
            .prop_map(|(table, prefix, kind, hops, metric, mtu, tos, preference)| {
                Step::Route { table, prefix, kind, hops, metric, mtu, tos: tos == 0, preference: [0, 1, 3][preference] }
            }),
        4 => (any::<u8>(), any::<u8>(), any::<u8>())
            .prop_map(|(table, prefix, nth)| Step::RouteGone { table, prefix, nth }),
        2 => (0u8..4, any::<u8>(), any::<u8>()).prop_map(|(id, gateway, on)| Step::Object { id, gateway, on }),
        2 => (0u8..2, prop::collection::vec((0u8..4, 1u8..5), 1..4), 0u8..4)
            .prop_map(|(id, members, kind)| Step::Group { id, members, resilient: kind == 0 }),
        1 => (0u8..6).prop_map(|id| Step::ObjectGone { id }),
        1 => (0u8..6).prop_map(|which| Step::Rules { which }),
        1 => any::<bool>().prop_map(Step::UseNeighbors),
        1 => (0u8..5, any::<bool>()).prop_map(|(on, ignore)| Step::IgnoreLinkdown { on, ignore }),
        1 => (0u8..32, 0u8..8, any::<bool>())
            .prop_map(|(out, comes_in, rules)| Step::LinuxOnly { out, comes_in, rules }),
    ]
}

/// Links: 1 and 2 are ports, 3 is a VLAN on 1, 4 is not ours, 9 is a VRF with table 10.
const LINKS: [u32; 4] = [1, 2, 3, 4];
const VRF: u32 = 9;
/// `NETCONFA_IFINDEX_ALL`: the settings of all interfaces.
pub const ALL: u32 = -1i32 as u32;
const TABLES: [u32; 5] = [254, 254, 255, 10, 253];
const PREFIXES4: [&str; 9] = [
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.1.0/24",
    "10.1.1.0/28",
    "10.1.1.7/32",
    "192.0.2.0/24",
    "192.0.2.1/32",
    "10.1.1.1/32",
];
const PREFIXES6: [&str; 6] =
    ["::/0", "2001:db8::/32", "2001:db8:1::/48", "2001:db8:1::1/128", "fe80::/64", "2001:db8:1::/64"];
const PROBES: [&str; 19] = [
    "10.1.1.1",
    "10.1.1.7",
    "10.1.1.9",
    "10.1.1.99",
    "10.1.2.1",
    "10.9.9.9",
    "192.0.2.1",
    "192.0.2.2",
    "192.0.2.77",
    "203.0.113.1",
    "10.1.0.0",
    "10.1.1.255",
    "2001:db8:1::1",
    "2001:db8:1::2",
    "2001:db8:1:1::1",
    "2001:db8:2::1",
    "2001:db9::1",
    "fe80::1",
    "fe80::2",
];
/// Neighbors and gateways.
const NEAR: [&str; 12] = [
    "10.1.1.1",
    "10.1.1.7",
    "10.1.1.9",
    "192.0.2.1",
    "192.0.2.2",
    "10.1.2.1",
    "2001:db8:1::1",
    "2001:db8:1::2",
    "2001:db8:1:1::1",
    "fe80::1",
    "fe80::2",
    "2001:db8:2::1",
];
const STATES: [u16; 8] = [
    neighbor::state::REACHABLE,
    neighbor::state::STALE,
    neighbor::state::DELAY,
    neighbor::state::PROBE,
    neighbor::state::PERMANENT,
    neighbor::state::FAILED,
    neighbor::state::INCOMPLETE,
    neighbor::state::REACHABLE,
];

fn pick<T: Copy>(list: &[T], at: u8) -> T {
    list[usize::from(at) % list.len()]
}

impl World {
    fn whole_machine() -> Self {
        let mut world = Self::new();
        world.tell(netconf_of(10, ALL, 2, 1));
        for ifindex in [4, VRF] {
            world.tell(Message::Link(machine_link(ifindex, UP, false)));
        }
        world.tell(Message::Link(machine_link(3, UP, false)));
        for (index, ifindex) in LINKS.into_iter().enumerate() {
            // Addresses that stay, so that no hop is dead while its link is up.
            let local = ip(&format!("198.51.100.{}", index * 4 + 1));
            let address =
                Address { ifindex, local, length: 30, peer: None, broadcast: None, scope: 0, flags: 0x80 };
            world.tell(Message::Address(address));
        }
        world.compile();
        world
    }

    fn carry_out(&mut self, step: &Step) {
        match step {
            Step::Link { which, flags, master } => {
                let flags = [UP, UP, NO_CARRIER][usize::from(*flags) % 3];
                self.tell(Message::Link(machine_link(pick(&LINKS, *which), flags, *master)));
            }
            Step::LinkGone { which: 0..3 } => {}
            Step::LinkGone { which } => {
                let ifindex = pick(&LINKS, *which);
                self.tell(Message::LinkGone(ifindex));
            }
            Step::Vlan { on } => {
                let lower = Some(pick(&[1, 4], *on));
                self.tell(Message::Link(Link { lower, ..machine_link(3, UP, false) }));
            }
            Step::Neighbor { at, on, state, mac: last } => {
                let state = pick(&STATES, *state);
                let known = state & neighbor::state::VALID != 0;
                // One in six is a group MAC, which no neighbor should have.
                let address = if *last == 0 { [3, 0, 0, 0, 0, 1] } else { mac(*last) };
                self.neighbor(pick(&LINKS, *on), pick(&NEAR, *at), state, known.then_some(address));
            }
            Step::NeighborGone { at, on } => {
                let (ifindex, address) = (pick(&LINKS, *on), ip(pick(&NEAR, *at)));
                let gone = Neighbor { ifindex, address, state: 1, mac: None, router: false };
                self.tell(Message::NeighborGone(gone));
            }
            Step::Route { .. } => self.put_route(step),
            Step::RouteGone { table, prefix, nth } => self.drop_route(pick(&TABLES, *table), *prefix, *nth),
            Step::Object { id, gateway, on } => {
                let hop = self.hop_of((*gateway, *on, 1), None);
                if let Some(hop) =
                    hop.filter(|hop| self.mirror.link(hop.ifindex).is_some_and(|l| l.carrier()))
                {
                    self.object(u32::from(*id) + 1, Object::Hop(hop));
                }
            }
            Step::Group { id, members, resilient } => self.put_group(*id, members, *resilient),
            Step::ObjectGone { id } => {
                self.tell(Message::NextHopGone(pick(&[1, 2, 3, 4, 20, 21], *id)));
            }
            Step::Rules { which } => self.change_rules(*which),
            Step::UseNeighbors(used) => {
                let sysctls = Sysctls { ipv4_multipath_use_neigh: u32::from(*used), ..Sysctls::default() };
                self.mirror.set_sysctls(sysctls);
            }
            Step::LinuxOnly { out, comes_in, rules } => {
                let of = |bits: u8| {
                    LINKS.into_iter().chain([VRF]).enumerate().filter(move |(at, _)| bits >> at & 1 == 1)
                };
                let out: BTreeSet<u32> = of(*out).map(|(_, link)| link).collect();
                let all = out.iter().map(|link| Traffic::Out(*link));
                let all = all.chain(of(*comes_in).map(|(_, link)| Traffic::In(link)));
                let matching = Match { input: Some(3), protocol: Some(6), ..Match::default() };
                self.only_linux(all.chain(rules.then_some(Traffic::Matching(matching))));
                self.linux_only = out;
            }
            Step::IgnoreLinkdown { on, ignore } => {
                // Linux copies the setting of all interfaces to each, for IPv6.
                let all = usize::from(*on) == LINKS.len();
                let on = if all { LINKS.to_vec() } else { vec![pick(&LINKS, *on)] };
                for link in &on {
                    self.tell(netconf(10, *link, *ignore));
                }
                let on = if all { ALL } else { on[0] };
                self.tell(netconf(2, on, *ignore));
            }
        }
    }

    fn put_route(&mut self, step: &Step) {
        let Step::Route { table, prefix, kind, hops, metric, mtu, tos, preference } = step else { return };
        let prefix = prefix_of(*prefix);
        let six = prefix.contains(':');
        let kinds = [
            RouteKind::Blackhole,
            RouteKind::Unreachable,
            RouteKind::Prohibit,
            RouteKind::Throw,
            RouteKind::Local,
        ];
        let hops: Vec<Hop> = hops.iter().filter_map(|hop| self.hop_of(*hop, Some(six))).collect();
        let mut body = match kind % 16 {
            at @ 0..5 => of_kind(kinds[usize::from(at)]),
            5..7 => {
                let id = pick(&[1, 2, 3, 4, 20, 21], kind / 16);
                if self.mirror.next_hop(id).is_none() {
                    return;
                }
                unicast(Via::Object(id))
            }
            7..11 => unicast(Via::from_hops(hops.into_iter().take(1).collect())),
            // An IPv6 route has several hops only if all have gateways.
            11.. if six && hops.iter().any(|hop| hop.gateway.is_none()) => return,
            _ => unicast(Via::from_hops(hops)),
        };
        if body.kind == RouteKind::Unicast && body.via == Via::Nowhere {
            return;
        }
        body.priority = u32::from(*metric);
        body.mtu = if *mtu { 1400 } else { 0 };
        body.tos = if *tos && !six { 8 } else { 0 };
        body.preference = if six { *preference } else { 0 };
        // Some are added behind those of their metric.
        let event = if *preference == 1 { RouteEvent::Appended } else { RouteEvent::Replaced };
        self.route(event, pick(&TABLES, *table), prefix, body);
    }

    /// A hop on a link that is up, with the flags of the kernel. A gateway of the route's family, or of
    /// IPv6 for either; the family of an object is `None`.
    fn hop_of(&self, (gateway, on, weight): (u8, u8, u8), six: Option<bool>) -> Option<Hop> {
        let link = self.mirror.link(pick(&LINKS, on)).filter(|link| link.up())?;
        let flags = HopFlags(if link.carrier() { 0 } else { HopFlags::LINKDOWN });
        let gateway = match gateway % 16 {
            0..4 => None,
            at => Some(ip(NEAR[usize::from(at) - 4])),
        };
        if six == Some(true) && gateway.is_some_and(|gateway| gateway.is_ipv4()) {
            return None;
        }
        let encap = u16::from(weight == 3 && on >= 250);
        Some(Hop { gateway, ifindex: link.ifindex, weight: u16::from(weight), flags, encap, others: 0 })
    }

    fn drop_route(&mut self, table: u32, prefix: u8, nth: u8) {
        let text = prefix_of(prefix);
        let body = match text.parse::<Prefix<u32>>() {
            Ok(prefix) => {
                let list = self.mirror.ipv4().get(table, prefix);
                list.get(usize::from(nth) % list.len().max(1)).and_then(|id| self.mirror.ipv4().body(*id))
            }
            Err(_) => {
                let list = self.mirror.ipv6().get(table, text.parse().unwrap());
                list.get(usize::from(nth) % list.len().max(1)).and_then(|id| self.mirror.ipv6().body(*id))
            }
        };
        if let Some(body) = body.cloned() {
            self.route(RouteEvent::Deleted, table, text, body);
        }
    }

    pub fn object(&mut self, id: u32, object: Object) {
        self.tell(Message::NextHop(NextHopObject { id, protocol: 4, object }));
    }

    fn put_group(&mut self, id: u8, members: &[(u8, u8)], resilient: bool) {
        let member = |(id, weight): &(u8, u8)| Member { id: u32::from(*id) + 1, weight: u16::from(*weight) };
        let mut members: Vec<Member> = members.iter().map(member).collect();
        members.sort_by_key(|member| member.id);
        members.dedup_by_key(|member| member.id);
        let is_hop = |member: &Member| {
            matches!(self.mirror.next_hop(member.id).map(|hop| &hop.object), Some(Object::Hop(_)))
        };
        if members.iter().all(is_hop) {
            let resilient = resilient.then(Resilient::default);
            self.object(20 + u32::from(id), Object::Group { members: members.into(), resilient });
        }
    }

    fn change_rules(&mut self, which: u8) {
        for family in Family::BOTH {
            let rule = |priority, table, l3mdev, mark| Rule {
                l3mdev,
                mark,
                ..Rule::lookup(family, priority, table)
            };
            let marked = rule(50, 77, false, Some((1, u32::MAX)));
            let usual =
                [rule(0, 255, false, None), rule(1000, 0, true, None), rule(32_766, 254, false, None)];
            let last = rule(32_767, 253, false, None);
            // `ip` refuses to add what is there already.
            let add = |mirror: &mut Mirror, rule: Rule| {
                if !mirror.rules().contains(&rule) {
                    mirror.apply(Message::Rule(rule));
                }
            };
            match which {
                0 => add(&mut self.mirror, marked),
                1..4 if self.mirror.rules().contains(&marked) => self.mirror.apply(Message::RuleGone(marked)),
                1..4 => {}
                _ => {
                    usual.into_iter().for_each(|rule| add(&mut self.mirror, rule));
                    if family == Family::V4 {
                        add(&mut self.mirror, last);
                    }
                }
            }
        }
    }
}

fn prefix_of(at: u8) -> &'static str {
    let all = PREFIXES4.len() + PREFIXES6.len();
    let at = usize::from(at) % all;
    PREFIXES4.get(at).unwrap_or_else(|| &PREFIXES6[at - PREFIXES4.len()])
}

fn machine_link(ifindex: u32, flags: u32, master: bool) -> Link {
    let plain = link(ifindex, flags);
    match ifindex {
        VRF => Link { kind: Kind::Vrf { table: 10 }, ..plain },
        2 if master => Link { master: Some(VRF), ..plain },
        3 => Link { kind: Kind::Vlan { id: 100, protocol: 0x8100 }, lower: Some(1), ..plain },
        _ => plain,
    }
}

/// `RTM_NEWNETCONF` that sets whether routes on a link without carrier are ignored.
pub fn netconf(family: u8, ifindex: u32, ignore: bool) -> Message {
    netconf_of(family, ifindex, 6, ignore.into())
}

/// `RTM_NEWNETCONF` of one setting.
pub fn netconf_of(family: u8, ifindex: u32, setting: u8, value: u32) -> Message {
    let mut message = vec![36, 0, 0, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, family, 0, 0, 0];
    message.extend_from_slice(&[8, 0, 1, 0]);
    message.extend_from_slice(&ifindex.to_ne_bytes());
    message.extend_from_slice(&[8, 0, setting, 0]);
    message.extend_from_slice(&value.to_ne_bytes());
    Message::read_all(&message).unwrap().remove(0)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tables_agree_with_linuxs_rules(history in prop::collection::vec(prop::collection::vec(steps(), 1..4), 1..40)) {
        let probes: Vec<IpAddr> = PROBES.iter().map(|probe| ip(probe)).collect();
        let mut world = World::whole_machine();
        for batch in &history {
            batch.iter().for_each(|step| world.carry_out(step));
            world.compile();
            if let Err(why) = world.agree(&probes).and_then(|()| world.is_sound()) {
                return Err(TestCaseError::fail(format!("after {batch:?}: {why}")));
            }
        }
        // Compiling everything at once gives the same as step by step.
        world.compile_all(&[Change::Everything]);
        prop_assert_eq!(world.agree(&probes).and_then(|()| world.is_sound()), Ok(()));
    }
}
