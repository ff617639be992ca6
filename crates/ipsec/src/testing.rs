//! Packets and SAs for tests.

use std::net::{IpAddr, Ipv4Addr};

use bm_wire::ipv4::{Ipv4, Ipv4Header};
use bm_wire::ipv6::Ipv6Header;
use bm_wire::protocol;

use crate::sa::{Direction, Sa, SaId};
use crate::secret::Secret;
use crate::suite::Suite;

/// An SA of a suite with keys that are not zeros.
pub fn sa(suite: Suite, direction: Direction) -> Sa {
    let key =
        |length: usize, first: u8| Secret::new(&(0..length).map(|at| first + at as u8).collect::<Vec<_>>());
    let id = SaId { spi: 0x1234_5678, destination: Ipv4Addr::new(192, 0, 2, 2).into() };
    Sa {
        encryption_key: key(suite.encryption_key_len(), 1),
        integrity_key: key(suite.integrity_key_len(), 101),
        ..Sa::new(direction, id, IpAddr::from([192, 0, 2, 1]), suite)
    }
}

/// An IPv4 packet with UDP.
pub fn ipv4_udp(source: [u8; 4], destination: [u8; 4], ports: [u16; 2], payload: usize) -> Vec<u8> {
    let header = Ipv4Header {
        source: u32::from_be_bytes(source),
        destination: u32::from_be_bytes(destination),
        protocol: protocol::UDP,
        ttl: 63,
        total_len: (28 + payload) as u16,
        ..Ipv4Header::default()
    };
    let mut packet = vec![0; 28 + payload];
    header.emit(&mut packet).expect("there is room");
    let ip = Ipv4::parse(&packet[..]).expect("it is whole");
    let pseudo = ip.pseudo();
    fill_udp(&mut packet[20..], &pseudo, ports);
    packet
}

/// An IPv6 packet with UDP.
pub fn ipv6_udp(source: u128, destination: u128, ports: [u16; 2], payload: usize) -> Vec<u8> {
    let mut packet = vec![0; 48 + payload];
    let header = Ipv6Header {
        source,
        destination,
        next_header: protocol::UDP,
        hop_limit: 63,
        payload_len: (8 + payload) as u16,
        traffic_class: 0,
        flow_label: 0x12345,
    };
    header.emit(&mut packet).expect("there is room");
    let pseudo = bm_wire::checksum::Pseudo::V6 { source, destination };
    fill_udp(&mut packet[40..], &pseudo, ports);
    packet
}

fn fill_udp(datagram: &mut [u8], pseudo: &bm_wire::checksum::Pseudo, ports: [u16; 2]) {
    let length = datagram.len() as u16;
    for (at, number) in [(0, ports[0]), (2, ports[1]), (4, length)] {
        datagram[at..at + 2].copy_from_slice(&number.to_be_bytes());
    }
    datagram[8..].iter_mut().zip((0..=u8::MAX).cycle()).for_each(|(byte, value)| *byte = value);
    bm_wire::udp::Udp::parse(datagram).expect("it is whole").fill_checksum(pseudo);
}
