//! What flow records say about a packet, from its first bytes.

use bm_wire::ethernet::{Ethernet, ethertype};
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;
use bm_wire::protocol;
use std::net::IpAddr;

/// The place of the flags in TCP's header.
const FLAGS: usize = 13;

/// The key fields of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Destination, then source.
    pub macs: [[u8; 6]; 2],
    /// Of the outer tag; 0 without one.
    pub vlan: u16,
    /// Source, then destination: of the same family.
    pub addresses: [IpAddr; 2],
    /// Bytes of the packet, as its header says.
    pub length: u32,
    pub protocol: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Source and destination, or 0 and type and code of ICMP; 0 where the packet has none or they are cut off.
    pub ports: [u16; 2],
    pub tcp_flags: u8,
}

impl Headers {
    /// `None` for what is not IP, or cut off within the IP header.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let ethernet = Ethernet::parse(frame).ok()?;
        let network = ethernet.network().ok()?;
        let packet = frame.get(network.offset..)?;
        let (mut headers, upper) = match network.ethertype {
            ethertype::IPV4 => of_ipv4(packet)?,
            ethertype::IPV6 => of_ipv6(packet)?,
            _ => return None,
        };
        headers.macs = [ethernet.destination().0, ethernet.source().0];
        headers.vlan = network.outer.map_or(0, |tag| tag.vid);
        headers.add_upper(upper);
        Some(headers)
    }

    /// Ports and flags; `upper` is empty where they are cut off, or in another fragment.
    fn add_upper(&mut self, upper: &[u8]) {
        let half = |at: usize| upper.get(at..at + 2).map_or(0, |half| u16::from_be_bytes([half[0], half[1]]));
        match self.protocol {
            protocol::TCP | protocol::UDP | protocol::SCTP => self.ports = [half(0), half(2)],
            // Type and code where collectors look for them.
            protocol::ICMP | protocol::ICMPV6 => self.ports = [0, half(0)],
            _ => {}
        }
        if self.protocol == protocol::TCP {
            self.tcp_flags = upper.get(FLAGS).copied().unwrap_or(0);
        }
    }
}

fn of_ipv4(packet: &[u8]) -> Option<(Headers, &[u8])> {
    let ip = Ipv4::parse_quoted(packet).ok()?;
    let upper = if ip.fragment_offset() == 0 { packet.get(ip.header_len()..) } else { None };
    let headers = Headers {
        macs: [[0; 6]; 2],
        vlan: 0,
        addresses: [ip.source(), ip.destination()].map(|address| IpAddr::V4(address.into())),
        length: ip.total_len().into(),
        protocol: ip.protocol(),
        tos: ip.tos(),
        ttl: ip.ttl(),
        ports: [0; 2],
        tcp_flags: 0,
    };
    Some((headers, upper.unwrap_or_default()))
}

fn of_ipv6(packet: &[u8]) -> Option<(Headers, &[u8])> {
    let ip = Ipv6::parse_quoted(packet).ok()?;
    let found = ip.upper().ok();
    let upper = found.as_ref().filter(|upper| upper.is_head()).and_then(|upper| packet.get(upper.offset..));
    let headers = Headers {
        macs: [[0; 6]; 2],
        vlan: 0,
        addresses: [ip.source(), ip.destination()].map(|address| IpAddr::V6(address.into())),
        length: ip.total_len() as u32,
        protocol: found.as_ref().map_or(ip.next_header(), |upper| upper.protocol),
        tos: ip.traffic_class(),
        ttl: ip.hop_limit(),
        ports: [0; 2],
        tcp_flags: 0,
    };
    Some((headers, upper.unwrap_or_default()))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// From 192.0.2.1 port 1024 to 198.51.100.2 port 80, TCP with SYN, TTL 63, 60 bytes.
    pub(crate) const TCP4: [u8; 54] = [
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, // Ethernet
        0x45, 0x10, 0, 60, 0, 1, 0x40, 0, 63, 6, 0, 0, 192, 0, 2, 1, 198, 51, 100, 2, // IPv4
        4, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0xa0, 2, 0xff, 0xff, 0, 0, 0, 0, // TCP
    ];

    /// In VLAN 5, from 2001:db8::1 to 2001:db8::2, an echo request of 104 bytes.
    pub fn icmp6() -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0xe0, 5, 0x86, 0xdd];
        frame.extend([0x60, 0, 0, 0, 0, 64, 58, 64]);
        for last in [1, 2] {
            frame.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        frame.extend([128, 0, 0, 0, 0, 7, 0, 1]);
        frame
    }

    #[test]
    fn packets_are_described_by_their_headers() {
        let headers = Headers::of(&TCP4).unwrap();
        assert_eq!(headers.addresses.map(|address| address.to_string()), ["192.0.2.1", "198.51.100.2"]);
        assert_eq!((headers.ports, headers.tcp_flags, headers.length, headers.vlan), ([1024, 80], 2, 60, 0));
        assert_eq!((headers.protocol, headers.tos, headers.ttl), (6, 0x10, 63));
        let headers = Headers::of(&icmp6()).unwrap();
        assert_eq!(headers.addresses.map(|address| address.to_string()), ["2001:db8::1", "2001:db8::2"]);
        assert_eq!((headers.ports, headers.length, headers.vlan), ([0, 0x8000], 104, 5));
    }

    #[test]
    fn frames_that_are_cut_off_or_not_ip_are_no_flows() {
        for length in 0..34 {
            assert_eq!(Headers::of(&TCP4[..length]), None, "{length}");
        }
        assert_eq!(Headers::of(&TCP4[..36]).unwrap().ports, [1024, 0]);
        assert_eq!(Headers::of(&[&TCP4[..12], &[8, 6], &TCP4[14..]].concat()), None);
        let icmp6 = icmp6();
        assert!((0..58).all(|length| Headers::of(&icmp6[..length]).is_none()));
    }
}
