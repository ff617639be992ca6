//! Checksums that a sender has left to its device, in every place where Linux may leave one.

use super::*;
use bm_wire::checksum::{Pseudo, checksum};
use bm_wire::protocol;

const PARTIAL: &str = "linux_partial_sum";

/// A frame to `in` with an IPv4 packet from 192.0.2.1 to 198.51.100.7.
fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 198, 51, 100, 7];
    packet[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    let header = checksum(&packet);
    packet[10..12].copy_from_slice(&header.to_be_bytes());
    [&IPV4[..12], &[8, 0], &packet, payload].concat()
}

/// A frame to `in` with an IPv6 packet between the addresses of [`IPV6`].
fn ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = IPV6[14..54].to_vec();
    packet[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    (packet[6], packet[7]) = (next_header, 64);
    [&IPV6[..12], &[0x86, 0xdd], &packet, payload].concat()
}

fn pseudo(frame: &[u8]) -> Pseudo {
    match frame[12] {
        8 => bm_wire::ipv4::Ipv4::parse(&frame[14..]).unwrap().pseudo(),
        _ => bm_wire::ipv6::Ipv6::parse(&frame[14..]).unwrap().pseudo(),
    }
}

/// The payload of such a frame with a UDP header in front whose checksum is right.
fn udp(pack: fn(u8, &[u8]) -> Vec<u8>, payload: &[u8]) -> Vec<u8> {
    let length = 8 + payload.len() as u16;
    let mut datagram = [&[0x12, 0x34, 0x12, 0xb5][..], &length.to_be_bytes(), &[0, 0], payload].concat();
    let right = pseudo(&pack(protocol::UDP, &datagram)).checksum(protocol::UDP, &datagram);
    datagram[6..8].copy_from_slice(&if right == 0 { 0xffff } else { right }.to_be_bytes());
    datagram
}

/// A packet with a TCP segment whose checksum is left to a device, without the Ethernet header.
fn partial_tcp() -> Vec<u8> {
    let mut segment = [0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 0x20, 0, 0, 0, 0, 0, 1, 2, 3];
    let left = pseudo(&ipv4(protocol::TCP, &segment)).sum(protocol::TCP, segment.len());
    segment[16..18].copy_from_slice(&left.to_be_bytes());
    ipv4(protocol::TCP, &segment)[14..].to_vec()
}

/// VXLAN with that packet inside, and its checksum as Linux computes it: as if the one inside were complete.
fn vxlan(pack: fn(u8, &[u8]) -> Vec<u8>) -> Vec<u8> {
    let head = [&[8, 0, 0, 0, 0, 0, 1, 0][..], &IPV4[..14]].concat();
    let partial = partial_tcp();
    let mut whole = partial.clone();
    let right = checksum(&whole[20..]);
    whole[36..38].copy_from_slice(&right.to_be_bytes());
    let right = udp(pack, &[&head[..], &whole].concat());
    [&right[..8], &head, &partial].concat()
}

/// A lab with routes to everything, whose first interface is a veth.
fn veth() -> Option<Lab> {
    let mut lab = lab()?;
    let hop = lab.hop(1);
    lab.set4("0.0.0.0/0", hop);
    lab.set6("::/0", hop);
    lab.configuration.interfaces[0].partial_sums = true;
    lab.publish();
    Some(lab)
}

#[test]
fn what_may_have_a_partial_sum_inside_is_left_to_linux() {
    let Some(mut lab) = veth() else { return };
    let mut zero = vxlan(ipv4);
    zero[6..8].fill(0);
    let tcp = partial_tcp();
    let gre = [&[0, 0, 8, 0][..], &tcp].concat();
    let options = [&[protocol::TCP, 0, 1, 4, 0, 0, 0, 0][..], &tcp[20..]].concat();
    let sctp = [&[0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0][..], &[0, 0, 0, 4]].concat();
    let frames = [
        ("VXLAN with a checksum", ipv4(protocol::UDP, &vxlan(ipv4))),
        ("VXLAN with a checksum over IPv6", ipv6(protocol::UDP, &vxlan(ipv6))),
        ("VXLAN without a checksum", ipv4(protocol::UDP, &zero)),
        ("VXLAN without a checksum over IPv6", ipv6(protocol::UDP, &zero)),
        ("IP in IP", ipv4(protocol::IPV4, &tcp)),
        ("IPv4 in IPv6", ipv6(protocol::IPV4, &tcp)),
        ("GRE", ipv4(protocol::GRE, &gre)),
        ("GRE over IPv6", ipv6(protocol::GRE, &gre)),
        ("destination options", ipv6(protocol::DESTINATION_OPTIONS, &options)),
        ("routing header", ipv6(protocol::ROUTING, &options)),
        ("SCTP", ipv4(protocol::SCTP, &sctp)),
        ("SCTP over IPv6", ipv6(protocol::SCTP, &sctp)),
        ("unknown", ipv4(253, &tcp)),
    ];
    for (name, frame) in &frames {
        println!("{name}");
        lab.check_linux(frame, PARTIAL);
    }
    lab.configuration.interfaces[0].partial_sums = false;
    lab.publish();
    for (name, frame) in &frames {
        assert_eq!(lab.pass(frame).0, XDP_REDIRECT, "{name} from a network card");
    }
}

#[test]
fn what_is_surely_complete_is_forwarded() {
    let Some(mut lab) = veth() else { return };
    let sctp = [&[0x12, 0x34, 0, 80, 0, 0, 0, 1, 1, 2, 3, 4][..], &[0, 0, 0, 4]].concat();
    for (name, frame) in [
        (
            "UDP, too short for a packet",
            ipv4(protocol::UDP, &[&[1, 2, 3, 4, 0, 35, 0, 0][..], &[7; 27]].concat()),
        ),
        ("ICMP", ipv4(protocol::ICMP, &[8; 100])),
        ("ICMPv6", ipv6(protocol::ICMPV6, &[128; 100])),
        ("ESP", ipv4(protocol::ESP, &[1; 100])),
        ("fragment", ipv6(protocol::FRAGMENT, &[&[17, 0, 0, 1, 0, 0, 0, 1][..], &[1; 96]].concat())),
        ("OSPF", ipv4(89, &[1; 100])),
        ("unknown, too short for a packet", ipv6(253, &[1; 27])),
        ("SCTP", ipv4(protocol::SCTP, &sctp)),
    ] {
        assert_eq!(lab.pass(&frame).0, XDP_REDIRECT, "{name}");
    }
}

/// Every length that a frame in one buffer can have, whole and with one bit wrong.
#[test]
fn udp_is_forwarded_if_its_checksum_is_right() {
    let Some(mut lab) = veth() else { return };
    lab.configuration.interfaces.iter_mut().for_each(|interface| interface.mtu = 3000);
    lab.publish();
    let bytes: Vec<u8> = (0..3000u32).map(|at| (at * at * 31 + at * 7 + 3) as u8).collect();
    for size in (28..300).chain((300..2900).step_by(61)) {
        for (pack, header) in [(ipv4 as fn(u8, &[u8]) -> Vec<u8>, 34), (ipv6, 54)] {
            let frame = pack(protocol::UDP, &udp(pack, &bytes[..size]));
            assert_eq!(lab.pass(&frame).0, XDP_REDIRECT, "{size} bytes behind {header}");
            for at in [header, header + 8, header + 8 + size / 2, header + 8 + size - 1] {
                let mut wrong = frame.clone();
                wrong[at] ^= 0x10;
                lab.check_linux(&wrong, PARTIAL);
            }
            let mut other_length = frame.clone();
            other_length[header + 5] ^= 1;
            lab.check_linux(&other_length, PARTIAL);
        }
    }
}

/// What the check of a whole datagram costs. The packets have no route, so that they are not changed.
#[test]
#[ignore = "measures, some seconds: cargo test --release -p bm-fastpath sums::cost -- --ignored --nocapture"]
fn cost() {
    const PACKETS: u32 = 100_000;
    let Some(mut lab) = lab() else { return };
    for size in [18, 100, 500, 1000, 1472] {
        let frame = ipv4(protocol::UDP, &udp(ipv4, &vec![7; size]));
        let mut took: [Vec<f64>; 2] = Default::default();
        for _ in 0..15 {
            for (partial_sums, took) in [false, true].into_iter().zip(&mut took) {
                lab.configuration.interfaces[0].partial_sums = partial_sums;
                lab.publish();
                let context = bm_bpf::testing::xdp_context(frame.len(), lab.ifindex);
                let mut context: Vec<u8> = context.iter().flat_map(|word| word.to_ne_bytes()).collect();
                let input = ProgramInput {
                    data_in: Some(&frame),
                    context_in: Some(&mut context),
                    repeat: PACKETS,
                    ..ProgramInput::default()
                };
                let program = program(&mut lab.kernel.object, forwards(bm_bpf::AttachType::Xdp));
                took.push(program.test_run(input).unwrap().duration.as_nanos() as f64);
            }
        }
        let [card, veth] = took.map(|mut took| {
            took.sort_by(f64::total_cmp);
            [took[0], took[took.len() / 2], took[took.len() - 1]]
        });
        println!("{size} bytes, min, median, max in ns: from a card {card:?}, from a veth {veth:?}");
    }
}
