//! What a packet says about ESP in it.

use crate::{Failure, Located, locate, names_esp};
use bm_wire::ipv4::Ipv4Header;
use bm_wire::protocol;

fn ipv4(protocol: u8, offset: u16, upper: &[u8]) -> Vec<u8> {
    let length = 20 + upper.len() as u16;
    let header = Ipv4Header {
        total_len: length,
        ttl: 64,
        protocol,
        more_fragments: true,
        fragment_offset: offset,
        ..Ipv4Header::default()
    };
    let mut packet = vec![0; 20];
    header.emit(&mut packet).unwrap();
    [&packet[..], upper].concat()
}

/// With a fragment header at this offset, behind destination options.
fn ipv6(protocol: u8, offset: u16, upper: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 16 + upper.len() as u8, 60, 64];
    packet.extend([7; 32]);
    packet.extend([44, 0, 1, 4, 0, 0, 0, 0]);
    packet.extend([&[protocol, 0][..], &(offset | 1).to_be_bytes(), &[0; 4]].concat());
    [&packet[..], upper].concat()
}

fn udp(port: u16, marker: u32) -> Vec<u8> {
    [&[0x12, 0x34][..], &port.to_be_bytes(), &[0, 40, 0, 0], &marker.to_be_bytes(), &[9; 20]].concat()
}

#[test]
fn fragments_of_esp_are_told_from_those_of_ike() {
    for (name, fragment) in [("IPv4", ipv4 as fn(u8, u16, &[u8]) -> Vec<u8>), ("IPv6", ipv6)] {
        for offset in [0, 1480] {
            assert!(names_esp(&fragment(protocol::ESP, offset, &[1; 24])), "{name} at {offset}");
            assert!(!names_esp(&fragment(protocol::UDP, offset, &udp(5000, 0x1001))), "{name}: another port");
            assert!(!names_esp(&fragment(protocol::UDP, offset, &udp(4500, 0))), "{name}: IKE");
            assert!(!names_esp(&fragment(protocol::TCP, offset, &udp(4500, 0x1001))), "{name}: TCP");
        }
        assert!(names_esp(&fragment(protocol::UDP, 0, &udp(4500, 0x1001))), "{name}");
        // Without ports it may be of IKE.
        assert!(!names_esp(&fragment(protocol::UDP, 1480, &udp(4500, 0x1001))), "{name}: a later one");
        assert!(names_esp(&fragment(protocol::UDP, 0, &udp(4500, 0x1001)[..8])), "{name}: its SPI follows");
    }
    assert!(!names_esp(&[]) && !names_esp(&[0x45]) && !names_esp(&[0x60; 40]));
    // What follows the packet in its frame says nothing about it.
    let header = Ipv4Header { total_len: 31, ttl: 64, protocol: protocol::UDP, ..Ipv4Header::default() };
    let mut short = vec![0; 20];
    header.emit(&mut short).unwrap();
    short.extend([&udp(4500, 0x1001)[..11], &[1; 20]].concat());
    assert!(!names_esp(&short));
}

#[test]
fn esp_is_not_taken_out_of_a_header_with_a_wrong_checksum() {
    let length = 20 + 40;
    let header = Ipv4Header { total_len: length, ttl: 64, protocol: protocol::ESP, ..Ipv4Header::default() };
    let mut packet = vec![1; length.into()];
    header.emit(&mut packet).unwrap();
    assert!(matches!(locate(&packet), Ok(Located::Esp(_))));
    for bit in 0..160 {
        packet[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(locate(&packet), Err(Failure::Malformed), "bit {bit}");
        packet[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn esp_is_not_taken_from_behind_headers_that_must_not_be_passed_over() {
    let behind = |kind: u8, extension: [u8; 7]| {
        let mut packet = vec![0x60, 0, 0, 0, 0, 8 + 40, kind, 64];
        packet.extend([7; 32]);
        packet.extend([&[protocol::ESP][..], &extension, &[1; 40]].concat());
        locate(&packet)
    };
    for kind in [protocol::HOP_BY_HOP, protocol::DESTINATION_OPTIONS] {
        // Padding, and an unknown option that says "skip over".
        for options in [[0, 0, 0, 0, 0, 0, 0], [0, 1, 4, 0, 0, 0, 0], [0, 0x1e, 3, 9, 9, 9, 0]] {
            assert!(matches!(behind(kind, options), Ok(Located::Esp(_))), "{kind}: {options:?}");
        }
        // "Discard", with an error or without, and options that do not end with the header.
        for options in [[0, 0x5e, 4, 0, 0, 0, 0], [0, 0x9e, 4, 0, 0, 0, 0], [0, 0xde, 4, 0, 0, 0, 0]] {
            assert_eq!(behind(kind, options), Err(Failure::NotEsp), "{kind}: {options:?}");
        }
        for options in [[0, 1, 5, 0, 0, 0, 0], [0, 1, 3, 0, 0, 0, 1]] {
            assert_eq!(behind(kind, options), Err(Failure::NotEsp), "{kind}: {options:?}");
        }
    }
    assert_eq!(behind(protocol::AUTHENTICATION, [0; 7]), Err(Failure::NotEsp));
    // Type and segments left.
    assert!(matches!(behind(protocol::ROUTING, [0, 253, 0, 0, 0, 0, 0]), Ok(Located::Esp(_))));
    assert_eq!(behind(protocol::ROUTING, [0, 253, 1, 0, 0, 0, 0]), Err(Failure::NotEsp));
}
