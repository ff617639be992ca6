//! What selectors are compared with: addresses, protocol and ports of a packet.

use bm_filter::{Key, Kind};
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;
use std::net::IpAddr;

use crate::selector::has_ports;

/// The key of an IP packet; `None` if its IP header is malformed.
#[inline]
pub fn key(packet: &[u8]) -> Option<Key> {
    match packet.first()? >> 4 {
        4 => Ipv4::parse(packet).ok().map(|ip| ipv4(&ip)),
        6 => Ipv6::parse(packet).ok().map(|ip| ipv6(&ip)),
        _ => None,
    }
}

fn ipv4(ip: &Ipv4<&[u8]>) -> Key {
    let addresses = [ip.source(), ip.destination()];
    if ip.fragment_offset() > 0 {
        return Key::ipv4(addresses, ip.protocol(), 0, Kind::Later);
    }
    match ports(ip.protocol(), ip.payload()) {
        Ports::Found(ports) => Key::ipv4(addresses, ip.protocol(), ports, Kind::Ports),
        Ports::None => Key::ipv4(addresses, ip.protocol(), 0, Kind::None),
        Ports::Truncated => Key::ipv4(addresses, ip.protocol(), 0, Kind::None).with_truncated_header(),
    }
}

fn ipv6(ip: &Ipv6<&[u8]>) -> Key {
    let addresses = [ip.source(), ip.destination()].map(|address| IpAddr::from(address.to_be_bytes()));
    let key = |protocol, ports: u32, kind| {
        Key::new(addresses, protocol, Some(((ports >> 16) as u16, ports as u16)), kind, 0)
    };
    let Ok(upper) = ip.upper() else {
        return key(ip.next_header(), 0, Kind::None).with_truncated_header();
    };
    if !upper.is_head() {
        return key(upper.protocol, 0, Kind::Later);
    }
    match ports(upper.protocol, &ip.packet()[upper.offset..]) {
        Ports::Found(ports) => key(upper.protocol, ports, Kind::Ports),
        Ports::None => key(upper.protocol, 0, Kind::None),
        Ports::Truncated => key(upper.protocol, 0, Kind::None).with_truncated_header(),
    }
}

enum Ports {
    Found(u32),
    None,
    Truncated,
}

#[inline]
fn ports(protocol: u8, payload: &[u8]) -> Ports {
    match payload.first_chunk() {
        _ if !has_ports(protocol) => Ports::None,
        Some(ports) => Ports::Found(u32::from_be_bytes(*ports)),
        None => Ports::Truncated,
    }
}
