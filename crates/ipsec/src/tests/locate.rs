//! What a packet says about ESP in it.

use crate::names_esp;
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
        assert!(!names_esp(&fragment(protocol::UDP, 0, &udp(4500, 0x1001)[..10])), "{name}: a short one");
    }
    assert!(!names_esp(&[]) && !names_esp(&[0x45]) && !names_esp(&[0x60; 40]));
}
