//! The only place that defines what may differ between two correct routers.
//!
//! 1. *IPv4 identification of packets that the router itself creates* (errors, replies): Linux derives it from a
//!    secret. It is set to 0, and the header checksum is updated, but only if it was correct.
//! 2. *Flow label of IPv6 packets that the router itself creates*: Linux hashes it with a secret that changes with
//!    each boot. It is set to 0; no checksum covers it.
//! 3. *The time in an IPv4 timestamp option*: milliseconds since midnight. It is set to 0, and the header checksum
//!    is updated as in 1. Quoted packets are not changed, since errors quote what was received.
//! 4. *Order of frames*: sorted lists are compared for each end, since packets on a fast path may overtake those on a
//!    slow one. `flow` checks the order within a flow.
//! 5. *When* an answer comes, and so how many pass a rate limit: cases run with limits off, and the limits have their
//!    own tests.
//! 6. Noise that the kernel sends at any time: MLD and IGMP reports, router solicitations, and ARP or ND that only
//!    confirms an entry. [`is_noise`] recognizes it; tests about these packets do not use it.
//! 7. *ICMP of the router itself* while Linux counts that it could not send some (`counters`): [`is_own_icmp`], only for the
//!    suites `model` and `flows`.
//! 8. *The fragments of a datagram* that Linux reassembled because connections are tracked: `reassembly` compares such
//!    datagrams as a whole, only for the suite `rulesets`.

use crate::lab::SIDES;
use crate::packet::put16;
use bm_wire::checksum;
use bm_wire::ethernet::ethertype;
use bm_wire::protocol::{ICMP, ICMPV6};

/// Where an untagged frame's packet begins.
const PACKET: usize = 14;
/// A packet with another TTL has not lost a hop on its way here: the router has made it.
const FORWARDED_TTL: u8 = 63;
/// An IPv4 address that one case adds to the router, besides those of its links.
pub const LOCAL4: &str = "10.77.1.2";
/// Such an IPv6 address.
pub const LOCAL6: &str = "2001:db8:1::3";
/// Option type of a timestamp (RFC 791).
const TIMESTAMP: u8 = 68;
/// Type of an ICMPv6 echo reply (RFC 4443 4.2).
const ECHO_REPLY6: u8 = 129;

/// The frame with everything normalised that may differ.
pub fn frame(mut frame: Vec<u8>) -> Vec<u8> {
    match kind(&frame) {
        Some(ethertype::IPV4) => ipv4(&mut frame[PACKET..]),
        Some(ethertype::IPV6) => ipv6(&mut frame[PACKET..]),
        _ => {}
    }
    frame
}

/// Whether a frame is an ICMP error or echo reply of the router itself.
pub fn is_own_icmp(frame: &[u8]) -> bool {
    let packet = frame.get(PACKET..).unwrap_or_default();
    match kind(frame) {
        Some(ethertype::IPV4) => {
            let kind = packet.get(usize::from(packet[0] & 15) * 4);
            let is_error_or_reply = kind.is_some_and(|kind| matches!(kind, 0 | 3 | 5 | 11 | 12));
            packet[9] == ICMP && packet[8] != FORWARDED_TTL && is_error_or_reply
        }
        Some(ethertype::IPV6) => {
            let is_error_or_reply = packet.get(40).is_some_and(|kind| *kind < 128 || *kind == ECHO_REPLY6);
            packet[6] == ICMPV6 && packet[7] != FORWARDED_TTL && is_error_or_reply
        }
        _ => false,
    }
}

fn kind(frame: &[u8]) -> Option<u16> {
    let kind = u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]);
    let least = if kind == ethertype::IPV6 { 40 } else { 20 };
    (frame.len() >= PACKET + least).then_some(kind)
}

fn ipv4(packet: &mut [u8]) {
    let header_len = usize::from(packet[0] & 15) * 4;
    if header_len < 20 || header_len > packet.len() || checksum::sum(&packet[..header_len]) != 0xffff {
        return;
    }
    let source = [packet[12], packet[13], packet[14], packet[15]].map(|byte| byte.to_string()).join(".");
    if source == LOCAL4 || SIDES.iter().any(|side| side.v4(1) == source) {
        put16(packet, 4, 0);
    }
    clear_timestamps(&mut packet[20..header_len]);
    let sum = checksum::ipv4_header(&packet[..header_len]);
    put16(packet, 10, sum);
}

/// Zeroes the times in a timestamp option: with flags 0 it holds only times, otherwise addresses and times.
fn clear_timestamps(options: &mut [u8]) {
    let mut at = 0;
    while at + 1 < options.len() && options[at] != 0 {
        let length = if options[at] == 1 { 1 } else { usize::from(options[at + 1]).max(2) };
        if options[at] == TIMESTAMP && at + length <= options.len() && length >= 4 {
            let filled = usize::from(options[at + 2]).saturating_sub(1).min(length);
            let (first, step) = if options[at + 3] & 15 == 0 { (4, 4) } else { (8, 8) };
            for word in (first..filled).step_by(step).filter(|word| word + 4 <= length) {
                options[at + word..at + word + 4].fill(0);
            }
        }
        at += length;
    }
}

fn ipv6(packet: &mut [u8]) {
    let source = std::net::Ipv6Addr::from(<[u8; 16]>::try_from(&packet[8..24]).expect("16 bytes"));
    let source = source.to_string();
    let own = SIDES.iter().any(|side| side.v6(1) == source) || source == "fe80::1" || source == LOCAL6;
    if own {
        packet[1] &= 0xf0;
        packet[2..4].fill(0);
    }
}

/// Whether a frame is one that a Linux kernel may send at any time by itself.
pub fn is_noise(frame: &[u8]) -> bool {
    let packet = frame.get(PACKET..).unwrap_or_default();
    match kind(frame) {
        Some(ethertype::ARP) => true,
        Some(ethertype::IPV4) => packet[9] == 2 && packet[8] == 1,
        Some(ethertype::IPV6) => {
            // MLD reports follow a hop-by-hop header of 8 bytes with the router alert.
            let (next, message) = if packet[6] == 0 {
                (packet.get(40), packet.get(48))
            } else {
                (Some(&packet[6]), packet.get(40))
            };
            next == Some(&58) && matches!(message, Some(131 | 132 | 133 | 143))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Side;
    use crate::packet::{Ip4, time_exceeded4};

    #[test]
    fn the_id_of_an_error_may_differ_but_not_its_checksum() {
        let about = Ip4::udp("192.0.2.2", "10.0.0.1", 8).ttl(1).bytes();
        let error = |id| Side::Src.to_neighbor(2, &time_exceeded4("192.0.2.1", &about).id(id).bytes());
        assert_eq!(frame(error(0x77)), frame(error(0)));
        let mut wrong = error(0x77);
        wrong[PACKET + 10] ^= 1;
        assert_eq!(frame(wrong.clone()), wrong);
    }

    #[test]
    fn the_id_of_a_forwarded_packet_must_be_equal() {
        let sent = Side::Snk.to_neighbor(2, &Ip4::udp("192.0.2.2", "10.0.0.1", 8).id(7).bytes());
        assert_eq!(frame(sent.clone()), sent);
    }

    #[test]
    fn times_may_differ_but_not_addresses() {
        let with = |time: u8| {
            let option = [68, 20, 13, 1, 192, 0, 2, 1, 1, 2, 3, time, 0, 0, 0, 0, 0, 0, 0, 0];
            Side::Snk.to_neighbor(2, &Ip4::udp("192.0.2.2", "10.0.0.1", 8).options(&option).bytes())
        };
        assert_ne!(with(1), with(2));
        assert_eq!(frame(with(1)), frame(with(2)));
        assert_eq!(frame(with(1))[PACKET + 24..PACKET + 32], [192, 0, 2, 1, 0, 0, 0, 0]);
    }
}
