//! What selectors are compared with: addresses, protocol and ports of a packet.

use bm_filter::{Key, Kind};
use bm_wire::icmp::Icmp;
use bm_wire::icmpv6::Icmpv6;
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;
use bm_wire::protocol;
use std::net::IpAddr;

use bm_wire::protocol::has_ports;

/// The key of an IP packet; `None` if its IP header is malformed.
#[inline]
pub fn key(packet: &[u8]) -> Option<Key> {
    match packet.first()? >> 4 {
        4 => Ipv4::parse(packet).ok().map(|ip| ipv4(&ip)),
        6 => Ipv6::parse(packet).ok().map(|ip| ipv6(&ip)),
        _ => None,
    }
}

/// For an ICMP error, the key of a reply to the packet that it quotes; `None` for other packets.
pub fn key_of_quoted_reply(packet: &[u8]) -> Option<Key> {
    let quoted = match packet.first()? >> 4 {
        4 => {
            let ip = Ipv4::parse(packet).ok()?;
            let is_icmp = ip.protocol() == protocol::ICMP && ip.fragment_offset() == 0;
            let message = Icmp::parse(ip.payload()).ok().filter(|message| is_icmp && message.is_error())?;
            ipv4(&Ipv4::parse_quoted(message.data()).ok()?)
        }
        6 => {
            let ip = Ipv6::parse(packet).ok()?;
            let upper =
                ip.upper().ok().filter(|upper| upper.protocol == protocol::ICMPV6 && upper.is_head())?;
            let message = Icmpv6::parse(ip.packet().get(upper.offset..)?).ok();
            ipv6(&Ipv6::parse_quoted(message.filter(Icmpv6::is_error)?.data()).ok()?)
        }
        _ => return None,
    };
    Some(quoted.reversed())
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

#[cfg(test)]
mod tests {
    use super::*;
    use bm_wire::icmp::{self, Sender};
    use bm_wire::icmpv6;

    /// UDP from port 1 to port 2, without its checksum.
    const UDP: [u8; 8] = [0, 1, 0, 2, 0, 8, 0, 0];

    #[test]
    fn a_reply_to_what_an_ipv4_error_quotes() {
        let mut about = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 2, 0, 7, 10, 1, 0, 9];
        about.extend(UDP);
        let sender = Sender { source: 0xc000_0201, ttl: 64, id: 1 };
        let mut error = [0; 100];
        let ip = Ipv4::parse(&about).unwrap();
        let length = icmp::time_exceeded(0).emit(&sender, &ip, &mut error).unwrap();
        let found = key_of_quoted_reply(&error[..length]);
        assert_eq!(found, Some(Key::ipv4([0x0a01_0009, 0x0a02_0007], 17, 0x0002_0001, Kind::Ports)));
        // The end of what is quoted may be missing. Its ports may be, too.
        error[2..4].copy_from_slice(&50u16.to_be_bytes());
        let cut = Key::ipv4([0x0a01_0009, 0x0a02_0007], 17, 0, Kind::None).with_truncated_header();
        assert_eq!(key_of_quoted_reply(&error[..50]), Some(cut));
        error[2..4].copy_from_slice(&40u16.to_be_bytes());
        assert_eq!(key_of_quoted_reply(&error[..40]), None);
        // Others quote nothing.
        assert_eq!(key_of_quoted_reply(&about), None);
        assert_eq!(key_of_quoted_reply(&[]), None);
    }

    #[test]
    fn a_reply_to_what_an_ipv6_error_quotes() {
        let mut about = vec![0x60, 0, 0, 0, 0, 8, 17, 64];
        let [from, to] = ["2001:db8:2::7", "2001:db8:1::9"].map(|text| text.parse::<IpAddr>().unwrap());
        for address in [from, to] {
            let IpAddr::V6(address) = address else { unreachable!() };
            about.extend(address.octets());
        }
        about.extend(UDP);
        let sender = icmpv6::Sender { source: 1, hop_limit: 64 };
        let mut error = [0; 120];
        let ip = Ipv6::parse(&about[..]).unwrap();
        let length = icmpv6::time_exceeded(0).emit(&sender, &ip, &mut error).unwrap();
        let key = Key::new([to, from], 17, Some((2, 1)), Kind::Ports, 0);
        assert_eq!(key_of_quoted_reply(&error[..length]), Some(key));
        assert_eq!(key_of_quoted_reply(&about), None);
    }
}
