//! Messages captured from the kernel (Linux 6.18; veth `va` is interface 3, `vb` is 2), and how they are read.
//!
//! Messages that netlink-packet-route supports are also read by it, with the same result.

#![allow(clippy::unwrap_used)]

use bm_netlink::next_hop::{Member, Resilient};
use bm_netlink::{Hop, HopFlags, Kind, Malformed, Message, NextHop, Object, RouteBody, RouteEvent, Via};
use bm_netlink::{RouteKind, RouteMessage, neighbor};
use netlink_packet_core::NetlinkMessage;
use netlink_packet_route::{RouteNetlinkMessage, route::RouteAttribute};
use std::net::IpAddr;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

fn read(hex: &str) -> Message {
    let mut messages = Message::read_all(&bytes(hex)).unwrap();
    assert_eq!(messages.len(), 1, "{messages:?}");
    messages.pop().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn body(via: Via) -> RouteBody {
    RouteBody { protocol: 3, via, ..RouteBody::default() }
}

/// `ip route add 198.51.100.0/24 via 192.0.2.2`
const ADDED: &str = "3c00000018000006 8a13026b554d0000 0218 0000 fe03 0001 00000000 08000f00fe000000
    08000100c6336400 08000500c0000202 0800040003000000";
/// `ip route replace 198.51.100.0/24 via 192.0.2.3 mtu lock 1400 src 192.0.2.1`
const REPLACED: &str = "5800000018000001 8a13026b5d4d0000 0218 0000 fe03 0001 00000000 08000f00fe000000
    08000100c6336400 14000800 0800010004000000 0800020078050000 08000700c0000201 08000500c0000203
    0800040003000000";
/// `ip route append 198.51.100.0/24 via 192.0.2.4`
const APPENDED: &str = "3c0000001800000c 8a13026b644d0000 0218 0000 fe03 0001 00000000 08000f00fe000000
    08000100c6336400 08000500c0000204 0800040003000000";
/// `ip route add 198.51.101.0/24 nexthop via 192.0.2.2 weight 3 nexthop via 192.0.2.3`
const TWO_HOPS: &str = "5000000018000006 8a13026b694d0000 0218 0000 fe03 0001 00000000 08000f00fe000000
    08000100c6336500 24000900 1000000203000000 08000500c0000202 1000000003000000 08000500c0000203";
/// `ip route add 198.51.102.0/24 via inet6 2001:db8::2 dev va`
const VIA_SIX: &str = "4c00000018000006 8a13026b714d0000 0218 0000 fe03 0001 00000000 08000f00fe000000
    08000100c6336600 160012000a0020010db8000000000000000000000002 0000 0800040003000000";
/// `ip route add blackhole 203.0.113.0/24 metric 7`
const BLACKHOLE: &str = "3400000018000006 8a13026b7d4d0000 0218 0000 fe03 0006 00000000 08000f00fe000000
    08000100cb007100 0800060007000000";
/// `ip route add 198.51.103.0/24 nhid 20`, a group; the kernel lists its hops as well.
const BY_OBJECT: &str = "5800000018000006 8b13026b944d0000 0218 0000 fe03 0001 00000000 08000f00fe000000
    08000100c6336700 08001e0014000000 24000900 1000000103000000 08000500c0000202
    1000000003000000 08000500c0000203";
/// `ip -6 route append 2001:db8:1::/48 via 2001:db8::4`, after `nexthop via ::2 nexthop via ::3`
const SIX_APPENDED: &str = "c40000001800000c 8c13026ba74d0000 0a30 0000 fe03 0001 00000000 08000f00fe000000
    1400010020010db8000100000000000000000000 0800060000040000 58000900
    1c00000003000000 1400050020010db8000000000000000000000004
    1c00000003000000 1400050020010db8000000000000000000000002
    1c00000003000000 1400050020010db8000000000000000000000003
    24000c0000000000000000000000000000000000000000000000000000000000 00000000 0500140000000000";
/// `ip -6 route del 2001:db8:1::/48 via 2001:db8::3`
const SIX_HOP_GONE: &str = "8800000019000000 8c13026bb24d0000 0a30 0000 fe03 0001 00000000 08000f00fe000000
    1400010020010db8000100000000000000000000 0800060000040000 1400050020010db8000000000000000000000003
    0800040003000000 24000c0000000000000000000000000000000000000000000000000000000000 00000000
    0500140000000000";
/// `ip -6 route add unreachable 2001:db8:2::/48`
const SIX_UNREACHABLE: &str = "7400000018000006 8c13026bc24d0000 0a30 0000 fe03 0007 00000000
    08000f00fe000000 1400010020010db8000200000000000000000000 0800060000040000 0800040001000000
    24000c0000000000000000000000000000000000000000000000000000000000 00000000 0500140000000000";

fn route4(hex: &str) -> RouteMessage<u32> {
    match read(hex) {
        Message::Route4(route) => route,
        other => panic!("{other:?}"),
    }
}

fn route6(hex: &str) -> RouteMessage<u128> {
    match read(hex) {
        Message::Route6(route) => route,
        other => panic!("{other:?}"),
    }
}

#[test]
fn ipv4_routes_are_read_with_event_and_next_hop() {
    let added = route4(ADDED);
    let prefix = "198.51.100.0/24".parse().unwrap();
    assert_eq!((added.event, added.table, added.prefix), (RouteEvent::Added, 254, prefix));
    assert_eq!(added.body, body(Via::One(Hop::via(ip("192.0.2.2"), 3))));

    let replaced = route4(REPLACED);
    assert_eq!((replaced.event, replaced.prefix), (RouteEvent::Replaced, prefix));
    let expected = RouteBody {
        mtu: 1400,
        mtu_locked: true,
        preferred_source: Some(ip("192.0.2.1")),
        ..body(Via::One(Hop::via(ip("192.0.2.3"), 3)))
    };
    assert_eq!(replaced.body, expected);
    assert_eq!(route4(APPENDED).event, RouteEvent::Appended);

    let heavy = Hop { weight: 3, ..Hop::via(ip("192.0.2.2"), 3) };
    let two = Via::from_hops(vec![heavy, Hop::via(ip("192.0.2.3"), 3)]);
    assert_eq!(route4(TWO_HOPS).body, body(two));
    assert_eq!(route4(VIA_SIX).body, body(Via::One(Hop::via(ip("2001:db8::2"), 3))));
    let blackhole = RouteBody { kind: RouteKind::Blackhole, priority: 7, ..body(Via::Nowhere) };
    assert_eq!(route4(BLACKHOLE).body, blackhole);
    assert_eq!(route4(BY_OBJECT).body, body(Via::Object(20)), "the object counts, not its current hops");
}

#[test]
fn ipv6_hops_are_sorted_however_the_kernel_lists_them() {
    let appended = route6(SIX_APPENDED);
    let hop = |last: u32| Hop::via(ip(&format!("2001:db8::{last}")), 3);
    let expected = RouteBody { priority: 1024, ..body(Via::from_hops(vec![hop(2), hop(3), hop(4)])) };
    assert_eq!((appended.event, appended.body), (RouteEvent::Appended, expected));

    let gone = route6(SIX_HOP_GONE);
    assert_eq!((gone.event, gone.body.via), (RouteEvent::Deleted, Via::One(hop(3))));

    let refused = route6(SIX_UNREACHABLE);
    assert_eq!((refused.event, refused.body.kind), (RouteEvent::Added, RouteKind::Unreachable));
    assert_eq!(refused.prefix, "2001:db8:2::/48".parse().unwrap());
}

#[test]
fn listed_routes_are_no_events_and_cloned_ones_are_ignored() {
    let mut listed = bytes(ADDED);
    listed[6..8].copy_from_slice(&[2, 0]);
    let messages = Message::read_all(&listed).unwrap();
    assert!(matches!(&messages[..], [Message::Route4(route)] if route.event == RouteEvent::Listed));
    let mut cloned = bytes(ADDED);
    cloned[16 + 9] = 2;
    assert_eq!(Message::read_all(&cloned), Ok(vec![]));
}

#[test]
fn the_library_reads_the_same_from_routes() {
    for hex in
        [ADDED, REPLACED, APPENDED, TWO_HOPS, VIA_SIX, BLACKHOLE, BY_OBJECT, SIX_APPENDED, SIX_UNREACHABLE]
    {
        let parsed = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes(hex)).unwrap();
        let netlink_packet_core::NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(theirs)) =
            parsed.payload
        else {
            panic!("{hex}: not a new route");
        };
        let (kind, protocol, priority, hops) = match read(hex) {
            Message::Route4(ours) => summary(ours),
            Message::Route6(ours) => summary(ours),
            other => panic!("{other:?}"),
        };
        assert_eq!(u8::from(theirs.header.kind), kind, "{hex}");
        assert_eq!(u8::from(theirs.header.protocol), protocol, "{hex}");
        let mut their_hops = 0;
        for attribute in &theirs.attributes {
            match attribute {
                RouteAttribute::Priority(theirs) => assert_eq!(*theirs, priority),
                RouteAttribute::MultiPath(list) => their_hops = list.len(),
                RouteAttribute::Oif(_) => their_hops = 1,
                _ => {}
            }
        }
        assert!(hops.is_none_or(|hops| hops == their_hops), "{hex}");
    }
}

fn summary<A: bm_wire::prefix::Address>(route: RouteMessage<A>) -> (u8, u8, u32, Option<usize>) {
    let hops = match &route.body.via {
        Via::Object(_) => None,
        via => Some(via.hops().len()),
    };
    (route.body.kind.number(), route.body.protocol, route.body.priority, hops)
}

/// `ip nexthop add id 10 via 192.0.2.2 dev va`
const OBJECT: &str = "3000000068000506 8b13026b804d0000 02fd0000 00000000 080001000a000000
    0800050003000000 08000600c0000202";
/// `ip nexthop add id 20 group 10,2/11`
const GROUP: &str = "4400000068000506 8b13026b874d0000 00000000 00000000 0800010014000000 0600030000000000
    14000200 0a00000001000000 0b00000000000000 08000e0000000080";
/// `ip nexthop add id 21 group 10/11 type resilient buckets 8 idle_timer 30`
const RESILIENT: &str = "6c00000068000506 8b13026b8a4d0000 00000000 00000000 0800010015000000
    0600030001000000 14000200 0a00000000000000 0b00000000000000 28000c80 0600010008000000
    08000200b80b0000 0800030000000000 0c00040000000000 00000000 08000e0000000080";
/// `ip nexthop add id 30 blackhole`
const DROPS: &str = "2400000068000506 8b13026b8f4d0000 02000000 00000000 080001001e000000 04000400";

#[test]
fn next_hop_objects_and_groups() {
    let object = |hex| match read(hex) {
        Message::NextHop(next_hop) => next_hop,
        other => panic!("{other:?}"),
    };
    let hop = Hop::via(ip("192.0.2.2"), 3);
    assert_eq!(object(OBJECT), NextHop { id: 10, protocol: 0, object: Object::Hop(hop) });
    let members =
        |weight| -> Box<[Member]> { [Member { id: 10, weight }, Member { id: 11, weight: 1 }].into() };
    let group = |members, resilient| Object::Group { members, resilient };
    assert_eq!(object(GROUP), NextHop { id: 20, protocol: 0, object: group(members(2), None) });
    let keeps = Resilient { buckets: 8, idle_timer: 3000, unbalanced_timer: 0 };
    assert_eq!(object(RESILIENT).object, group(members(1), Some(keeps)));
    assert_eq!(object(DROPS).object, Object::Blackhole);
    let mut gone = bytes(OBJECT);
    gone[4] = 105;
    assert_eq!(Message::read_all(&gone), Ok(vec![Message::NextHopGone(10)]));
    // A next hop for a bridge's forwarding database (NHA_FDB) is not used by routes.
    let mut fdb = bytes(DROPS);
    fdb[34] = 11;
    assert_eq!(Message::read_all(&fdb), Ok(vec![]));
}

/// A veth, reduced to the attributes that are read: `vb` (2), up without carrier, MTU 1500, peer 3.
const VETH: &str = "7c00000010000000 0000000000000000 0000 0100 02000000 03100000 00000000
    07000300 76620000 05001000 02000000 08000400dc050000 08002000 02000000 08000500 03000000
    0a000100 02000000000b 0000 10001200 09000100 7665746800000000 08000a00 07000000 08002500 05000000
    08000d00 e8030000";
/// VLAN 100 (802.1ad) on interface 3, master of VRF 9.
const VLAN: &str = "6000000010000000 0000000000000000 0000 0100 07000000 03100100 00000000
    0a000300 76612e31303000 00 08000500 03000000 08000a00 09000000
    24001200 09000100 766c616e00000000 14000280 06000100 64000000 06000500 88a80000";
/// XFRM interface 11 on 3, with if_id 42: `ip link add ipsec0 type xfrm dev r0 if_id 42`.
const XFRM: &str = "5800000010000000 0000000000000000 0000 feff 0b000000 90000000 00000000
    0b000300 697073656330 0000 08000500 03000000
    24001200 09000100 7866726d00000000 14000280 08000100 03000000 08000200 2a000000";
/// VRF 9 with table 10.
const VRF: &str = "4000000010000000 0000000000000000 0000 0100 09000000 c3040100 00000000
    08000300 76726600 18001200 08000100 76726600 0c000280 08000100 0a000000";

#[test]
fn links_of_all_relevant_kinds() {
    let link = |hex| match read(hex) {
        Message::Link(link) => link,
        other => panic!("{other:?}"),
    };
    let veth = link(VETH);
    assert_eq!((veth.ifindex, &*veth.name, veth.mtu), (2, "vb", 1500));
    assert_eq!((veth.mac, veth.kind.clone()), (Some([2, 0, 0, 0, 0, 11]), Kind::Veth));
    assert_eq!((veth.up(), veth.carrier(), veth.running()), (true, false, false));
    assert_eq!((veth.lower, veth.master, veth.lower_namespace), (None, Some(7), None));
    assert_eq!(veth.rx_queues, 2);
    // IFF_LOWER_UP follows the carrier at once, IFF_RUNNING up to a second later. Linux forwards in between.
    let mut early = bytes(VETH);
    early[26] |= 1;
    let Message::Link(early) = Message::read_all(&early).unwrap().remove(0) else { panic!("a link") };
    assert_eq!((early.flags, early.carrier(), early.running()), (0x1_1003, true, true));
    assert!(!early.operational());
    let vlan = link(VLAN);
    assert_eq!((vlan.kind, vlan.lower), (Kind::Vlan { id: 100, protocol: 0x88a8 }, Some(3)));
    assert!(vlan.flags & 0x1_0000 != 0 && vlan.master == Some(9));
    assert_eq!(link(VRF).kind, Kind::Vrf { table: 10 });
    assert_eq!((link(XFRM).kind, link(XFRM).lower), (Kind::Xfrm { if_id: 42 }, Some(3)));
    // A VLAN link without a VLAN id is not a VLAN.
    let mut cut = bytes(VLAN);
    cut[82] = 9;
    assert_eq!(Message::read_all(&cut), Err(Malformed::Missing { kind: 1 }));
}

#[test]
fn messages_of_a_bridge_about_its_port_do_not_change_the_link() {
    let mut gone = bytes(VETH);
    gone[4] = 17;
    assert_eq!(Message::read_all(&gone), Ok(vec![Message::LinkGone(2)]));
    gone[16] = 7; // AF_BRIDGE: the link has left the bridge
    assert_eq!(Message::read_all(&gone), Ok(vec![]));
}

/// `ip addr add 192.0.2.1/24 dev va`
const ADDRESS: &str = "4c00000014000000 8913026b484d0000 02188000 03000000 08000100c0000201
    08000200c0000201 0700030076610000 0800080080000000 14000600ffffffffffffffff3e3105003e310500";
/// `ip addr add 2001:db8::1/64 dev va`, still tentative.
const SIX_ADDRESS: &str = "4800000014000000 0000000000000000 0a40c000 03000000
    1400010020010db8000000000000000000000001 14000600ffffffffffffffff4e3105004e310500 08000800c2000000";
/// `ip addr add 10.9.9.1 peer 10.9.9.2/32 dev va`
const PEER: &str = "3000000014000000 0000000000000000 02208000 03000000 080001000a090902 080002000a090901
    0800080080000000";

#[test]
fn addresses_with_peer_and_state() {
    let address = |hex| match read(hex) {
        Message::Address(address) => address,
        other => panic!("{other:?}"),
    };
    let four = address(ADDRESS);
    assert_eq!((four.ifindex, four.local, four.length, four.peer), (3, ip("192.0.2.1"), 24, None));
    assert!(four.usable());
    let six = address(SIX_ADDRESS);
    assert_eq!((six.local, six.length, six.usable()), (ip("2001:db8::1"), 64, false));
    let peer = address(PEER);
    assert_eq!((peer.local, peer.peer), (ip("10.9.9.1"), Some(ip("10.9.9.2"))));
}

/// `ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev va`
const NEIGHBOR: &str = "4c0000001c000000 00000000ce4d0000 02000000 03000000 80000001 08000100c0000209
    0a000200020000000009 0000 0800040000000000 1400030000000000000000000000000001000000";
/// ff02::16 on vb: needs no resolution.
const MULTICAST: &str = "580000001c000000 0000000000000000 0a000000 02000000 40000005
    14000100ff020000000000000000000000000016 0a000200333300000016 0000 0800040000000000
    14000300e8170000780100007801000000000000";

#[test]
fn neighbors_without_proxy_bridge_and_noarp_entries() {
    let Message::Neighbor(known) = read(NEIGHBOR) else { panic!("not a neighbor") };
    assert_eq!((known.ifindex, known.address, known.state), (3, ip("192.0.2.9"), neighbor::state::PERMANENT));
    assert_eq!(known.reachable_at(), Some([2, 0, 0, 0, 0, 9]));
    let Message::Neighbor(silent) = read(MULTICAST) else { panic!("not a neighbor") };
    assert_eq!((silent.state, silent.reachable_at()), (0, None));
    let mut proxy = bytes(NEIGHBOR);
    proxy[26] = 8;
    assert_eq!(Message::read_all(&proxy), Ok(vec![]));
    let mut bridge = bytes(NEIGHBOR);
    bridge[16] = 7;
    assert_eq!(Message::read_all(&bridge), Ok(vec![]));
}

/// `ip rule add from 192.0.2.0/24 fwmark 5 lookup 100 prio 50`
const RULE: &str = "5400000020000000 8d13026be74d0000 02001800 64000001 00000000 08000f0064000000
    08000e00ffffffff 0500150000000000 0800060032000000 08000a0005000000 08001000ffffffff 08000200c0000200";
/// `ip rule add l3mdev prio 1000`
const VRF_RULE: &str = "4400000020000000 8d13026bf14d0000 02000000 00000001 00000000 08000f0000000000
    08000e00ffffffff 0500150000000000 08000600e8030000 0500130001000000";

#[test]
fn selective_rules_are_distinguished_from_standard_ones() {
    let rule = |hex| match read(hex) {
        Message::Rule(rule) => rule,
        other => panic!("{other:?}"),
    };
    let selects = rule(RULE);
    assert_eq!((selects.priority, selects.table, selects.mark), (50, 100, Some((5, u32::MAX))));
    assert_eq!((selects.source, selects.standard()), (Some((ip("192.0.2.0"), 24)), false));
    assert!(rule(VRF_RULE).l3mdev && rule(VRF_RULE).standard());
    assert_eq!(selects.to_string(), "IPv4 50: from 192.0.2.0/24 fwmark 0x5/0xffffffff lookup 100");
}

/// `sysctl -w net.ipv4.conf.va.rp_filter=1`: holds only what changed.
const NETCONF: &str = "2400000050000000 0000000000000000 02000000 0800010003000000 0800030001000000";

#[test]
fn settings_change_one_at_a_time() {
    let mut mirror = bm_netlink::Mirror::default();
    let all = "2c00000050000000 0000000000000000 02000000 0800010003000000 0800020001000000 0800060001000000";
    mirror.apply(read(all));
    mirror.apply(read(NETCONF));
    let netconf = mirror.netconf(bm_netlink::Family::V4, 3);
    assert!(netconf.forwarding && netconf.ignore_routes_with_linkdown);
    assert_eq!((netconf.rp_filter, mirror.rp_filter(3), mirror.rp_filter(4)), (1, 1, 0));
}

#[test]
fn truncated_messages_and_flipped_bits_cause_no_panic() {
    let samples =
        [REPLACED, TWO_HOPS, VIA_SIX, SIX_APPENDED, RESILIENT, VETH, VLAN, PEER, NEIGHBOR, RULE, NETCONF];
    for hex in samples {
        let whole = bytes(hex);
        for end in 0..whole.len() {
            let mut cut = whole[..end].to_vec();
            if end >= 4 {
                cut[..4].copy_from_slice(&(end as u32).to_ne_bytes());
            }
            let _ = Message::read_all(&cut);
        }
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let _ = Message::read_all(&flipped);
        }
    }
}

#[test]
fn flags_of_dead_links_are_kept_and_those_of_hardware_ignored() {
    let mut offloaded = bytes(TWO_HOPS);
    offloaded[16 + 12 + 8 + 8 + 4 + 2] = 0x8 | 0x10 | 0x1; // offload, linkdown, dead
    let [Message::Route4(route)] = &Message::read_all(&offloaded).unwrap()[..] else { panic!("not a route") };
    assert_eq!(route.body.via.hops()[0].flags, HopFlags(0x11));
}
