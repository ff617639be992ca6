//! The Ethernet header in front of the packet: types, tags, and lengths of frames.

use bm_tests::case::Case;
use bm_tests::lab::Side;
use bm_tests::packet::{self, Ip4, Ip6};
use bm_wire::Mac;
use bm_wire::ethernet::{Tag, ethertype};

fn udp() -> Vec<u8> {
    Ip4::udp("192.0.2.2", "10.9.9.9", 20).bytes()
}

fn udp6() -> Vec<u8> {
    Ip6::udp("2001:db8:1::2", "2001:db8:a000::9", 20).bytes()
}

fn typed(kind: u16, payload: &[u8]) -> Vec<u8> {
    packet::frame(Side::Src.mac(1), Side::Src.mac(2), kind, payload)
}

pub fn cases() -> Vec<Case> {
    [types(), tags()].concat()
}

fn types() -> Vec<Case> {
    let kinds = [0x88b5, 0x8847, 0x8863, 0x0842, 0x9000, 0xffff];
    let unknown = kinds
        .into_iter()
        .fold(Case::new(0, "unknown-types"), |case, kind| case.sends_frame(Side::Src, typed(kind, &udp())));
    let lengths =
        [0, 48, 0x05dc, 0x05ff].into_iter().fold(Case::new(0, "lengths-for-types"), |case, length| {
            case.sends_frame(Side::Src, typed(length, &udp()))
        });
    let lldp =
        packet::frame(Mac([1, 0x80, 0xc2, 0, 0, 0x0e]), Side::Src.mac(2), ethertype::LLDP, &[2, 7, 4, 0, 0]);
    let groups = Case::new(0, "link-local-groups").sends_frame(Side::Src, lldp);
    let runt = Case::new(0, "frames-without-payload")
        .sends_frame(Side::Src, typed(ethertype::IPV4, &[]))
        .sends_frame(Side::Src, typed(ethertype::IPV6, &[]))
        .sends_frame(Side::Src, typed(ethertype::VLAN, &[]));
    let odd_source = [Mac::BROADCAST, Mac([1, 0, 0x5e, 0, 0, 1]), Mac::default(), Side::Src.mac(1)];
    let odd_source = odd_source.into_iter().fold(Case::new(0, "odd-source-macs"), |case, source| {
        let expected = Side::Snk.to_neighbor(2, &packet::routed(&udp()));
        case.sends_frame(Side::Src, packet::ip_frame(Side::Src.mac(1), source, &udp()))
            .expects(Side::Snk, expected)
    });
    vec![unknown, lengths, groups, runt, odd_source]
}

fn tags() -> Vec<Case> {
    let tagged = |tag: Tag, packet: &[u8]| packet::tagged(&Side::Src.to_router(packet), tag);
    let service = |vid| Tag { protocol: ethertype::SERVICE_VLAN, ..Tag::vlan(vid) };
    let each = |case: Case, tags: &[Tag]| {
        tags.iter().fold(case, |case, tag| {
            case.sends_frame(Side::Src, tagged(*tag, &udp())).sends_frame(Side::Src, tagged(*tag, &udp6()))
        })
    };
    let out = |case: Case| {
        let v4 = Side::Snk.to_neighbor(2, &packet::routed(&udp()));
        case.expects(Side::Snk, v4).expects(Side::Snk, Side::Snk.to_neighbor(2, &packet::routed(&udp6())))
    };
    let urgent = Tag { pcp: 7, dei: true, ..Tag::vlan(0) };
    let inner = packet::tagged(&Side::Src.to_router(&udp()), Tag::vlan(0));
    vec![
        each(
            Case::new(0, "tagged-without-an-interface"),
            &[Tag::vlan(1), Tag::vlan(100), Tag::vlan(4095), service(7)],
        ),
        out(each(Case::new(89, "priority-tag"), &[Tag::vlan(0)])),
        out(each(Case::new(89, "priority-tag-urgent"), &[urgent])),
        Case::new(89, "two-tags-without-an-interface")
            .sends_frame(Side::Src, packet::tagged(&inner, service(7)))
            .sends_frame(Side::Src, packet::tagged(&inner, Tag::vlan(7))),
    ]
}
