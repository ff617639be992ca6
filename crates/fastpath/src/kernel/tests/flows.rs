//! Packets that are forwarded by flow: what is translated, what ends a flow, and what is left to Linux.

use super::*;
use crate::jiffies::jiffies;
use bm_flows::{Action as FlowAction, EndReason, FlowIndex, Insert, Key, Table};
use bm_wire::checksum::checksum;
use bm_wire::protocol;
use std::net::IpAddr;

/// Generation of nftables in a new network namespace.
const GENERATION: u32 = 1;
const FLOWS: usize = 1024;
/// Offsets in a frame with an IPv4 or IPv6 header.
const UPPER: [usize; 2] = [34, 54];
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
const CLOSED: Option<EndReason> = Some(EndReason::Closed);

/// A lab whose only interface that takes packets leaves them to Linux, unless there is a flow.
fn by_flow() -> Option<(Lab, Table)> {
    let mut lab = lab()?;
    if let Some(why) = why_no_flows() {
        eprintln!("skipped: {why}");
        return None;
    }
    let area = lab.kernel.take_flows(FLOWS).unwrap();
    let table = Table::new(area.memory, area.max).unwrap();
    table.set_until(area.lease.until());
    table.set_generation(GENERATION);
    table.set_families([true, true]);
    let input = &mut lab.configuration.interfaces[0];
    (input.forward, input.linux_only) = ([false; 2], [true; 2]);
    (input.by_flow, input.looked_at) = (true, true);
    lab.publish();
    let hop = lab.hop(9);
    lab.set4("0.0.0.0/0", hop);
    lab.set6("::/0", hop);
    Some((lab, table))
}

/// Addresses and ports of a packet: those of the literals, and others.
fn ends(ipv6: bool, translated: bool) -> (IpAddr, IpAddr, u16, u16) {
    let [source, destination] = match (ipv6, translated) {
        (false, false) => ["192.0.2.1", "198.51.100.7"],
        (false, true) => ["203.0.113.9", "10.1.2.3"],
        (true, false) => ["2001:db8:1::1", "2001:db8:2::7"],
        (true, true) => ["2001:db8:ffff::9", "2001:db8:2:3::1"],
    };
    let ports = if translated { (61_001, 8080) } else { (0x1234, 53) };
    (source.parse().unwrap(), destination.parse().unwrap(), ports.0, ports.1)
}

fn key(ipv6: bool, protocol: u8) -> Key {
    let (source, destination, source_port, destination_port) = ends(ipv6, false);
    Key { source, destination, source_port, destination_port, protocol, interface: 0 }
}

fn action(ipv6: bool, translated: bool) -> FlowAction {
    let (source, destination, source_port, destination_port) = ends(ipv6, translated);
    FlowAction { out: 1, source, destination, source_port, destination_port, connection: None }
}

/// Adds a flow.
fn add(table: &mut Table, key: &Key, action: &FlowAction) -> FlowIndex {
    match table.insert(key, action, 0) {
        Insert::Inserted(index) => index,
        other => panic!("{other:?}, although the table has room"),
    }
}

fn bytes_of(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// A frame to `in` with a complete checksum, TTL 2 and these addresses; with `flags` it is TCP.
fn frame(ipv6: bool, translated: bool, flags: Option<u8>, payload: &[u8]) -> Vec<u8> {
    let (source, destination, source_port, destination_port) = ends(ipv6, translated);
    let mut upper = [source_port.to_be_bytes(), destination_port.to_be_bytes()].concat();
    let number = match flags {
        Some(flags) => {
            upper.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0x20, 0, 0, 0, 0, 0]);
            protocol::TCP
        }
        None => {
            upper.extend((8 + payload.len() as u16).to_be_bytes());
            upper.extend([0, 0]);
            protocol::UDP
        }
    };
    upper.extend(payload);
    let length = (upper.len() as u16).to_be_bytes();
    let pseudo = [bytes_of(source), bytes_of(destination), vec![0, number], length.to_vec()].concat();
    let sum = checksum(&[pseudo, upper.clone()].concat());
    let at = if flags.is_some() { 16 } else { 6 };
    upper[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    let mut header = match ipv6 {
        false => [&[0x45, 0][..], &(20 + upper.len() as u16).to_be_bytes(), &[0, 1, 0, 0, 2, number, 0, 0]]
            .concat(),
        true => [&[0x60, 0, 0, 0][..], &length, &[number, 2]].concat(),
    };
    header.extend([bytes_of(source), bytes_of(destination)].concat());
    if !ipv6 {
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    [&IPV4[..12], if ipv6 { &[0x86, 0xdd] } else { &[8, 0] }, &header, &upper].concat()
}

/// A frame as it leaves through `out`: MACs and TTL of the router.
fn sent(frame: &[u8]) -> Vec<u8> {
    let mut sent = frame.to_vec();
    sent[..12].copy_from_slice(&[2, 0, 0, 1, 0, 9, 2, 0, 0, 0, 0, 2]);
    if frame[12] == 8 {
        sent[22] = 1;
        sent[24..26].fill(0);
        let sum = checksum(&sent[14..34]);
        sent[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        sent[21] = 1;
    }
    sent
}

#[test]
fn a_flow_is_forwarded_and_translated() {
    let Some((mut lab, mut table)) = by_flow() else { return };
    for ipv6 in [false, true] {
        for flags in [Some(ACK), Some(ACK | 8), None] {
            for translated in [false, true] {
                let number = if flags.is_some() { protocol::TCP } else { protocol::UDP };
                let frame_in = frame(ipv6, false, flags, b"data");
                lab.check_linux(&frame_in, "linux_firewall");
                let index = add(&mut table, &key(ipv6, number), &action(ipv6, translated));
                let expected = sent(&frame(ipv6, translated, flags, b"data"));
                assert_eq!(lab.pass(&frame_in), (XDP_REDIRECT, expected.clone()), "{ipv6} {flags:?}");
                let at_tc = lab.at_tc(&frame_in, 0);
                match ipv6 && translated {
                    true => assert_eq!(at_tc, (crate::Verdict::Linux, frame_in), "translated IPv6 at tc"),
                    false => assert_eq!(at_tc, (crate::Verdict::Redirect, expected), "{ipv6} {flags:?}"),
                }
                table.remove(index);
            }
        }
    }
}

/// Every value that a checksum can have, those with two forms of zero among them.
#[test]
fn checksums_are_as_linux_would_have_them() {
    let Some((mut lab, mut table)) = by_flow() else { return };
    add(&mut table, &key(false, protocol::UDP), &action(false, true));
    for payload in (0..=u16::MAX).step_by(251).chain(0xff00..=0xffff) {
        let frame_in = frame(false, false, None, &payload.to_be_bytes());
        let mut expected = sent(&frame(false, true, None, &payload.to_be_bytes()));
        if expected[40..42] == [0, 0] {
            expected[40..42].fill(0xff);
        }
        let mut frame_in = frame_in;
        if frame_in[40..42] == [0, 0] {
            frame_in[40..42].fill(0xff);
        }
        assert_eq!(lab.pass(&frame_in).1, expected, "{payload:x}");
        assert_eq!(lab.at_tc(&frame_in, 0).1, expected, "{payload:x}");
    }
    // None at all stays none.
    let without = |translated| {
        let mut frame = frame(false, translated, None, b"data");
        frame[40..42].fill(0);
        frame
    };
    assert_eq!(lab.pass(&without(false)).1, sent(&without(true)));
    assert_eq!(lab.at_tc(&without(false), 0).1, sent(&without(true)));
}

#[test]
fn what_is_not_ordinary_is_left_to_linux() {
    let Some((mut lab, mut table)) = by_flow() else { return };
    for ipv6 in [false, true] {
        let upper = UPPER[usize::from(ipv6)];
        add(&mut table, &key(ipv6, protocol::TCP), &action(ipv6, true));
        add(&mut table, &key(ipv6, protocol::UDP), &action(ipv6, true));
        for flags in [SYN, SYN | ACK, 0, ACK | 32, 8] {
            lab.check_linux(&frame(ipv6, false, Some(flags), b""), "linux_firewall");
        }
        let tcp = frame(ipv6, false, Some(ACK), b"data");
        let udp = frame(ipv6, false, None, b"data");
        for (frame, at, value) in [
            (&tcp, upper + 12, 0x40), // a header shorter than 20 bytes
            (&tcp, upper + 12, 0x70), // or longer than the segment
            (&tcp, upper + 3, 54),    // another port
            (&udp, upper + 5, 7),     // shorter than the UDP header
            (&udp, upper + 5, 13),    // longer than the packet
        ] {
            let mut odd = frame.clone();
            odd[at] = value;
            lab.check_linux(&odd, "linux_firewall");
        }
        assert_eq!(lab.pass(&tcp).0, XDP_REDIRECT);
    }
}

/// The other direction of [`action`], from `out`.
fn reply_key(ipv6: bool) -> Key {
    let (source, destination, source_port, destination_port) = ends(ipv6, true);
    Key {
        source: destination,
        destination: source,
        source_port: destination_port,
        destination_port: source_port,
        protocol: protocol::TCP,
        interface: 1,
    }
}

#[test]
fn fin_and_rst_end_both_directions() {
    let Some((mut lab, mut table)) = by_flow() else { return };
    for ipv6 in [false, true] {
        let index = add(&mut table, &key(ipv6, protocol::TCP), &action(ipv6, true));
        let reply = add(&mut table, &reply_key(ipv6), &FlowAction { out: 0, ..action(ipv6, false) });
        lab.check_linux(&frame(ipv6, false, Some(FIN | ACK), b""), "linux_firewall");
        assert!(table.get(index).ended == CLOSED && table.get(reply).ended == CLOSED);
    }
}

#[test]
fn a_flow_ends_in_both_directions_when_linux_has_no_connection_for_it() {
    let Some((mut lab, mut table)) = by_flow() else { return };
    let connection = Some(bm_flows::Connection { mark: 0, zone: 0 });
    for (ipv6, number) in [(false, protocol::TCP), (true, protocol::TCP), (false, protocol::UDP)] {
        let flags = (number == protocol::TCP).then_some(ACK);
        let key = Key { protocol: number, ..key(ipv6, number) };
        let index = add(&mut table, &key, &FlowAction { connection, ..action(ipv6, true) });
        let reply_key = Key { protocol: number, ..reply_key(ipv6) };
        let back = FlowAction { out: 0, connection, ..action(ipv6, false) };
        let reply = add(&mut table, &reply_key, &back);
        lab.check_linux(&frame(ipv6, false, flags, b""), "linux_firewall");
        let gone = Some(EndReason::Gone);
        assert_eq!((table.get(index).ended, table.get(reply).ended), (gone, gone));
    }
}

/// Linux keeps a connection whose RST has another number than the other side has acknowledged, and than that behind the packet
/// before it.
#[test]
fn an_rst_out_of_sequence_is_forwarded_and_ends_nothing() {
    let Some((mut lab, mut table)) = by_flow() else { return };
    let index = add(&mut table, &key(false, protocol::TCP), &action(false, true));
    let reply = add(&mut table, &reply_key(false), &FlowAction { out: 0, ..action(false, false) });
    let rst = frame(false, false, Some(RST), b"");
    // The frames have the number 1.
    table.set_acknowledged(reply, 2);
    assert_eq!(lab.pass(&rst), (XDP_REDIRECT, sent(&frame(false, true, Some(RST), b""))));
    assert!(table.get(index).ended.is_none() && table.get(reply).ended.is_none());
    table.remove(reply);
    let reply = add(&mut table, &reply_key(false), &FlowAction { out: 0, ..action(false, false) });
    table.set_acknowledged(reply, 1);
    lab.check_linux(&rst, "linux_firewall");
    assert!(table.get(index).ended == CLOSED && table.get(reply).ended == CLOSED);
    for flow in [index, reply] {
        table.remove(flow);
    }
    let index = add(&mut table, &key(false, protocol::TCP), &action(false, true));
    let reply = add(&mut table, &reply_key(false), &FlowAction { out: 0, ..action(false, false) });
    table.set_acknowledged(reply, 2);
    assert_eq!(lab.pass(&frame(false, false, Some(ACK), b"")).0, XDP_REDIRECT);
    lab.check_linux(&rst, "linux_firewall");
    assert!(table.get(index).ended == CLOSED && table.get(reply).ended == CLOSED);
}

/// A frame whose packet has no hop left.
fn without_hops(mut frame: Vec<u8>) -> Vec<u8> {
    if frame[12] == 8 {
        frame[22] = 1;
        frame[24..26].fill(0);
        let sum = checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame[21] = 1;
    }
    frame
}

/// A frame of IPv4 whose header has four bytes of options.
fn with_options(frame: &[u8]) -> Vec<u8> {
    let mut longer = [&frame[..34], &[1, 1, 1, 0], &frame[34..]].concat();
    longer[14] = 0x46;
    longer[17] += 4;
    longer[24..26].fill(0);
    let sum = checksum(&longer[14..38]);
    longer[24..26].copy_from_slice(&sum.to_be_bytes());
    longer
}

/// Connection tracking sees these segments, so an RST with the number behind the last one of them ends the connection.
#[test]
fn segments_that_linux_gets_count_at_an_rst() {
    let Some((mut lab, mut table)) = by_flow() else { return };
    for ipv6 in [false, true] {
        let rst = frame(ipv6, false, Some(RST), b"");
        let ack = frame(ipv6, false, Some(ACK), b"");
        let mut odd = vec![
            (frame(ipv6, false, Some(ACK | 32), b""), "linux_firewall"),
            (without_hops(ack.clone()), "linux_hops"),
        ];
        if !ipv6 {
            odd.push((with_options(&ack), "linux_header"));
        }
        for (before, cause) in odd {
            let index = add(&mut table, &key(ipv6, protocol::TCP), &action(ipv6, true));
            let reply = add(&mut table, &reply_key(ipv6), &FlowAction { out: 0, ..action(ipv6, false) });
            table.set_acknowledged(reply, 2);
            assert_eq!(lab.pass(&rst).0, XDP_REDIRECT);
            lab.check_linux(&before, cause);
            lab.check_linux(&rst, "linux_firewall");
            assert!(table.get(index).ended == CLOSED && table.get(reply).ended == CLOSED, "{cause}");
            for flow in [index, reply] {
                table.remove(flow);
            }
        }
    }
}

#[test]
fn fin_and_rst_end_a_flow() {
    let Some((mut lab, mut table)) = by_flow() else { return };
    for last in [FIN | ACK, RST, RST | ACK] {
        let index = add(&mut table, &key(false, protocol::TCP), &action(false, true));
        let data = frame(false, false, Some(ACK), b"data");
        assert_eq!(lab.pass(&data).0, XDP_REDIRECT);
        lab.check_linux(&frame(false, false, Some(last), b""), "linux_firewall");
        lab.check_linux(&data, "linux_firewall");
        table.remove(index);
    }
}

#[test]
fn flows_hold_for_one_ruleset_one_family_and_one_way_out() {
    let Some((mut lab, mut table)) = by_flow() else { return };
    let data = frame(false, false, Some(ACK), b"data");
    let mut flow = action(false, true);
    let index = add(&mut table, &key(false, protocol::TCP), &flow);
    assert_eq!(lab.pass(&data).0, XDP_REDIRECT);
    table.set_generation(GENERATION + 1);
    lab.check_linux(&data, "linux_firewall");
    // As soon as the kernel has committed another ruleset, without anybody telling the program.
    let done = Command::new("nft").args(["add", "table", "ip", "other"]).status();
    assert!(done.is_ok_and(|done| done.success()), "nft is needed");
    assert_eq!(lab.pass(&data).0, XDP_REDIRECT);
    table.set_families([false, true]);
    lab.check_linux(&data, "linux_firewall");
    table.set_families([true, false]);
    // The thread that learns flows has ended, and another process watches over the tables.
    let lease = lab.kernel.lease().unwrap();
    table.set_until(lease.until().wrapping_sub(jiffies(Duration::from_secs(3600))));
    lab.check_linux(&data, "linux_firewall");
    table.set_until(lease.until());
    assert_eq!(lab.pass(&data).0, XDP_REDIRECT);
    table.remove(index);
    flow.out = 0;
    add(&mut table, &key(false, protocol::TCP), &flow);
    lab.check_linux(&data, "linux_firewall");
    table.void();
    table.set_families([true; 2]);
    lab.check_linux(&data, "linux_firewall");
}
