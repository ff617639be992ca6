//! Frames through a whole router in memory, while its tables change, time passes and Linux refuses packets.
//!
//! Checks: every account adds up after each step and no frame is lost (a [`Lab`] asserts both); forwarded packets have
//! a correct header and matching lengths.

use std::sync::Arc;

use bm_filter::{Action, Filters, Flat, Rule, Tree};
use bm_forward::filter::{FilterSet, RuleCounts};
use bm_forward::testing::Lab;
use bm_wire::ReversePath;
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;

use crate::input::Input;

const PORTS: usize = 3;
/// Networks on three ports, the last of which has a small MTU, and a VLAN in a VRF; routes of all kinds.
const LINES: &str = "
    interface left 0 02:00:00:00:00:01 192.0.2.1/24 2001:db8:1::1/64 fe80::1/64
    interface right 1 02:00:00:00:00:02 198.51.100.1/24 2001:db8:2::1/64 fe80::2/64
    interface narrow 2 02:00:00:00:00:03 mtu 1300 203.0.113.1/24 2001:db8:3::1/64
    interface blue 0 02:00:00:00:00:01 vlan 7 vrf 1 10.7.0.1/24 2001:db8:7::1/64
    neighbor 192.0.2.9 left 02:00:00:00:01:09
    neighbor 2001:db8:1::9 left 02:00:00:00:01:09
    neighbor 198.51.100.7 right 02:00:00:00:02:07
    neighbor 2001:db8:2::7 right 02:00:00:00:02:07
    neighbor 203.0.113.5 narrow 02:00:00:00:03:05
    neighbor 2001:db8:3::5 narrow 02:00:00:00:03:05
    route 8.0.0.0/8 via 198.51.100.7 right
    route 8.8.0.0/16 via 198.51.100.7 right mtu 600
    route 9.0.0.0/8 via 203.0.113.5 narrow
    route 10.0.0.0/8 group 198.51.100.7 right 2 203.0.113.5 narrow 1
    route 11.0.0.0/8 via 198.51.100.99 right
    route 12.0.0.0/8 blackhole
    route 13.0.0.0/8 unreachable
    route 14.0.0.0/8 prohibit
    route 15.0.0.0/8 host
    route 10.0.0.0/8 vrf 1 via 203.0.113.5 narrow
    route 2001:db8:8::/48 via 2001:db8:2::7 right
    route 2001:db8:9::/48 via 2001:db8:3::5 narrow
    route 2001:db8:a::/48 group 2001:db8:2::7 right 1 2001:db8:3::5 narrow 1
    route 2001:db8:b::/48 via 2001:db8:2::99 right
    route 2001:db8:c::/48 unreachable
    route 2001:db8:d::/48 blackhole";
/// Changes between packets.
const CHANGES: [&str; 8] = [
    "no route 8.0.0.0/8",
    "route 8.0.0.0/8 via 203.0.113.5 narrow",
    "no neighbor 198.51.100.7 right",
    "neighbor 198.51.100.7 right 02:00:00:00:02:08",
    "neighbor 198.51.100.99 right 02:00:00:00:02:99",
    "no neighbor 2001:db8:2::7 right",
    "neighbor 2001:db8:2::7 right 02:00:00:00:02:07",
    "route 0.0.0.0/0 via 198.51.100.7 right",
];

/// Runs a sequence of steps.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut lab = Lab::new(LINES);
    let mut steps = 0;
    while !input.is_empty() && steps < 64 {
        step(&mut lab, &mut input);
        steps += 1;
    }
    lab.run();
    check(&lab);
    // Long enough for waiting packets to be dropped.
    lab.pass(10);
    lab.pass(4000);
    check(&lab);
}

fn step(lab: &mut Lab, input: &mut Input<'_>) {
    let step = input.byte();
    let port = usize::from(step >> 4) % PORTS;
    match step & 0xf {
        // An arbitrary frame.
        0 | 1 => lab.send(port, frame(input.counted())),
        // A packet in a valid frame.
        2..=5 => lab.send(port, frame(&framed(port, input.counted(), step & 1 == 1))),
        6 | 7 => {
            lab.run();
            check(lab);
        }
        8 => lab.send_from_linux(port, frame(input.counted())),
        9 => lab.change(input.one_of::<&str>(&CHANGES)),
        10 => lab.pass(u64::from(input.byte()) * 16),
        11 => lab.linux_refuses(port, input.byte() & 1 == 1),
        12 => lab.fail("right", "198.51.100.99"),
        13 => lab.filter(Arc::new(filters(input))),
        _ => lab.send(port, frame(&tagged(port, input.number(), input.counted()))),
    }
}

/// Cuts a frame to the length of a slot, since no device receives more.
fn frame(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(1518)]
}

/// A frame to the port's own MAC, optionally with a corrected IPv4 checksum.
pub fn framed(port: usize, packet: &[u8], mended: bool) -> Vec<u8> {
    let six = packet.first().is_some_and(|first| first >> 4 == 6);
    let kind: [u8; 2] = if six { [0x86, 0xdd] } else { [8, 0] };
    let mut packet = packet.to_vec();
    if mended && !six {
        mend(&mut packet);
    }
    [&[2, 0, 0, 0, 0, port as u8 + 1, 2, 0, 0, 0, 9, 9][..], &kind, &packet].concat()
}

fn mend(packet: &mut [u8]) {
    let length = packet.first().map_or(0, |first| usize::from(first & 0xf) * 4);
    if let Some(header) = packet.get_mut(..length).filter(|_| length >= 20) {
        header[10..12].fill(0);
        let sum = bm_wire::checksum::checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

fn tagged(port: usize, tag: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = framed(port, packet, true);
    let [high, low] = tag.to_be_bytes();
    frame.splice(12..12, [0x81, 0, high, low]);
    frame
}

fn filters(input: &mut Input<'_>) -> FilterSet {
    let chosen = input.byte();
    let dns = Rule {
        action: Action::Drop,
        protocol: Some(17),
        destination_ports: Some(53..=53),
        ..Rule::default()
    };
    let net = Rule { action: Action::Drop, source: "192.0.2.128/25".parse().ok(), ..Rule::default() };
    let six = Rule { action: Action::Drop, destination: "2001:db8:9::/48".parse().ok(), ..Rule::default() };
    let rules = [dns, net, six].into_iter().zip(0u16..).filter(|(_, at)| chosen >> at & 1 == 1);
    let flat = rules.flat_map(|(rule, at)| Flat::from_rule(&rule, at, None)).collect();
    let filters = Filters {
        tree: Tree::grow(flat).expect("there is room for three"),
        drop_unmatched: chosen & 0x10 != 0,
        drop_tiny_fragments: chosen & 0x20 != 0,
        rate: None,
    };
    let check = if chosen & 0x40 != 0 { ReversePath::Strict } else { ReversePath::Off };
    FilterSet {
        filters: Arc::new(filters),
        checks: vec![check; PORTS + 1],
        unknown: [false; 2],
        ports: vec![true; PORTS],
        counts: Arc::new(RuleCounts::new().expect("memory for counters")),
        rates: None,
    }
}

/// Asserts that accounts add up and sent frames are correct.
fn check(lab: &Lab) {
    lab.check();
    for (port, frame) in lab.answer().sent {
        let from_us = frame.get(6..12) == Some(&[2, 0, 0, 0, 0, port as u8 + 1][..]);
        let tagged = frame.get(12..14) == Some(&[0x81, 0][..]);
        let packet = frame.get(if tagged { 18 } else { 14 }..).unwrap_or_default();
        // Packets that Linux sends through a port are not changed.
        if !from_us {
            continue;
        }
        match frame[12..14] {
            [8, 0] => {
                let ip = Ipv4::parse(packet).expect("an IPv4 packet that was sent has a whole header");
                assert!(ip.checksum_ok(), "wrong checksum: {frame:02x?}");
                assert_eq!(usize::from(ip.total_len()), packet.len(), "{frame:02x?}");
                assert!(ip.ttl() > 0, "{frame:02x?}");
            }
            [0x86, 0xdd] => {
                let ip = Ipv6::parse(packet).expect("an IPv6 packet that was sent has a whole header");
                assert_eq!(ip.total_len(), packet.len(), "{frame:02x?}");
                assert!(ip.hop_limit() > 0, "{frame:02x?}");
            }
            _ => {}
        }
    }
}
