//! Checksums that a sender has left to its device inside tunnels, behind extension headers, and in SCTP.

use super::*;

const UDP: u8 = 17;
const TCP: u8 = 6;
const SCTP: u8 = 132;

type Pack = fn(u8, &[u8]) -> Vec<u8>;
/// A packet that is complete, and the same with the checksum left to a device.
type Both = [Vec<u8>; 2];

fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
    ip[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    let header = !sum(&ip, 0);
    ip[10..12].copy_from_slice(&header.to_be_bytes());
    [&ip, payload].concat()
}

fn ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0, 0, 0, next_header, 64];
    ip[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    ip.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    ip.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    [&ip, payload].concat()
}

/// The sum of the pseudo-header.
fn pseudo(packet: &[u8], protocol: u8, length: usize) -> u16 {
    let addresses = if packet[0] >> 4 == 4 { &packet[12..20] } else { &packet[8..40] };
    sum(addresses, u32::from(protocol) + length as u32)
}

fn both(pack: Pack, protocol: u8, payload: &[u8]) -> Both {
    let (header, field): (&[u8], _) = match protocol {
        UDP => (&[3, 232, 18, 181, 0, 0, 0, 0], 6),
        _ => (&[3, 232, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 32, 0, 0, 0, 0, 0], 16),
    };
    let mut partial = [header, payload].concat();
    let length = partial.len();
    if protocol == UDP {
        partial[4..6].copy_from_slice(&(length as u16).to_be_bytes());
    }
    let left = pseudo(&pack(protocol, &partial), protocol, length);
    partial[field..field + 2].copy_from_slice(&left.to_be_bytes());
    let mut whole = partial.clone();
    let right = !sum(&partial, 0);
    whole[field..field + 2].copy_from_slice(&right.to_be_bytes());
    [whole, partial].map(|segment| pack(protocol, &segment))
}

/// Both in UDP, whose checksum fits the complete one.
fn in_udp(pack: Pack, head: &[u8], [whole, partial]: &Both) -> Both {
    let [around, _] = both(pack, UDP, &[head, whole].concat());
    let mut half = around.clone();
    let at = around.len() - whole.len();
    half[at..].copy_from_slice(partial);
    [around, half]
}

fn in_ip(pack: Pack, protocol: u8, head: &[u8], inner: &Both) -> Both {
    [0, 1].map(|form| pack(protocol, &[head, &inner[form]].concat()))
}

fn without_checksum(packet: Vec<u8>) -> Vec<u8> {
    let mut packet = packet;
    let field = if packet[0] >> 4 == 4 { 26 } else { 46 };
    packet[field..field + 2].fill(0);
    packet
}

/// A frame to the second port.
fn framed(packet: &[u8]) -> Vec<u8> {
    let kind = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    [&mac(1)[..], &mac(0), &kind, packet].concat()
}

/// The partial one leaves as the complete one, and that as it is.
fn completes(lab: &mut Lab, [whole, partial]: &Both) {
    let (whole, partial) = (framed(whole), framed(partial));
    let before = lab.count(0, "sums_completed");
    assert_eq!(lab.run(0, &partial), (XDP_REDIRECT, whole.clone()), "{partial:02x?}");
    assert_eq!(lab.count(0, "sums_completed") - before, 1);
    assert_eq!(lab.run(0, &whole), (XDP_REDIRECT, whole));
}

#[test]
fn completes_checksums_inside_tunnels() {
    let Some(mut lab) = Lab::with_ports(2, settings()) else { return };
    lab.goes(1, &frame(BROADCAST, mac(1), "here"), &[0]);
    let vxlan = [&[8, 0, 0, 0, 0, 0, 1, 0][..], &[2; 12], &[8, 0]].concat();
    let bytes: Vec<u8> = (0..1200u32).map(|at| (at * at * 7 + at) as u8).collect();
    let packs = [ipv4 as Pack, ipv6];
    for (protocol, size) in [(TCP, 0), (TCP, 1), (TCP, 1200), (UDP, 0), (UDP, 77), (UDP, 901)] {
        for inner in packs.map(|pack| both(pack, protocol, &bytes[..size])) {
            let next = if inner[0][0] >> 4 == 4 { 4 } else { 41 };
            for pack in packs {
                let tunnel = in_udp(pack, &vxlan, &inner);
                completes(&mut lab, &tunnel);
                completes(&mut lab, &in_udp(ipv4, &vxlan, &tunnel));
                completes(&mut lab, &tunnel.map(without_checksum));
                completes(&mut lab, &in_ip(pack, next, &[], &inner));
                completes(&mut lab, &in_ip(pack, 47, &[0x20, 0, 8, 0, 0, 0, 0, 1], &inner));
            }
        }
    }
}

#[test]
fn completes_checksums_behind_extension_headers() {
    let Some(mut lab) = Lab::with_ports(2, settings()) else { return };
    lab.goes(1, &frame(BROADCAST, mac(1), "here"), &[0]);
    let segments = both(ipv6, TCP, b"data");
    let options = [TCP, 0, 1, 4, 0, 0, 0, 0];
    let behind = |options: &[u8], kind: u8| {
        segments.clone().map(|packet| ipv6(kind, &[options, &packet[40..]].concat()))
    };
    completes(&mut lab, &behind(&options, 60));
    let routing = [&[TCP, 2, 4, 1, 0, 0, 0, 0][..], &segments[0][24..40]].concat();
    completes(
        &mut lab,
        &behind(&routing, 43).map(|mut packet| {
            packet[39] ^= 0x55;
            packet
        }),
    );
}

/// The CRC32c of a packet of SCTP, a bit at a time.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut rest = !0u32;
    for byte in bytes {
        rest ^= u32::from(*byte);
        for _ in 0..8 {
            rest = rest >> 1 ^ if rest & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !rest
}

#[test]
fn completes_checksums_of_sctp() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283, "the published value");
    let Some(mut lab) = Lab::with_ports(2, settings()) else { return };
    lab.goes(1, &frame(BROADCAST, mac(1), "here"), &[0]);
    for (pack, size) in [(ipv4 as Pack, 0), (ipv6, 1), (ipv4, 63), (ipv6, 64), (ipv4, 1400)] {
        let chunk = [0, 3, 0, 4].into_iter().chain((0..size).map(|at| at as u8));
        let head = [3, 232, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0].into_iter();
        let partial: Vec<u8> = head.chain(chunk).collect();
        let mut whole = partial.clone();
        whole[8..12].copy_from_slice(&crc32c(&partial).to_le_bytes());
        completes(&mut lab, &[whole, partial].map(|packet| pack(SCTP, &packet)));
    }
    let zeros = framed(&ipv4(SCTP, &[0; 40]));
    assert_eq!(lab.run(0, &zeros), (XDP_REDIRECT, zeros), "no SCTP");
}

#[test]
fn leaves_what_is_complete_or_quoted_alone() {
    let Some(mut lab) = Lab::with_ports(2, settings()) else { return };
    lab.goes(1, &frame(BROADCAST, mac(1), "here"), &[0]);
    let [_, partial] = both(ipv4, TCP, b"quoted");
    let bytes: Vec<u8> = (0..1400u32).map(|at| (at * at * 31 + at * 3) as u8).collect();
    let [whole, _] = both(ipv4, UDP, &bytes);
    for packet in [
        ipv4(1, &[&[11, 0, 0, 0, 0, 0, 0, 0][..], &partial].concat()),
        ipv4(50, &[&[0, 0, 1, 0, 0, 0, 0, 1][..], &partial].concat()),
        without_checksum(whole.clone()),
        whole,
    ] {
        let frame = framed(&packet);
        assert_eq!(lab.run(0, &frame), (XDP_REDIRECT, frame));
    }
    assert_eq!(lab.count(0, "sums_completed"), 0);
}
