//! ICMP errors about ESP packets of ours that were too big for a link on their way (RFC 1191, RFC 8201).
//!
//! Nobody authenticates such an error. But it quotes the SPI and sequence number of the packet, which only those on the way
//! can know, so whoever has sent it can drop the packets anyhow (RFC 4301 8.2.1).

use std::net::IpAddr;

use bm_wire::icmp::{self, Icmp};
use bm_wire::icmpv6::{self, Icmpv6};
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;
use bm_wire::prefix::Address as _;
use bm_wire::protocol;
use bm_wire::udp;

use crate::sa::SaId;

/// An error about an ESP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooBig {
    /// The SA of the packet.
    pub id: SaId,
    /// The low half of its sequence number.
    pub number: u32,
    /// The largest packet for the link, in bytes; 0 if the router does not say (RFC 1191 5).
    pub mtu: u32,
}

impl TooBig {
    /// The error in an IP packet; `None` if it is no such error, or one that contradicts itself.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => ipv4(packet),
            6 => ipv6(packet),
            _ => None,
        }
    }

    fn about(destination: IpAddr, protocol: u8, upper: &[u8], mtu: u32) -> Option<Self> {
        let esp = match protocol {
            protocol::ESP => upper,
            protocol::UDP => upper.get(udp::HEADER_LEN..)?,
            _ => return None,
        };
        let [spi, number] = [0, 4].map(|at| esp.get(at..)?.first_chunk().copied().map(u32::from_be_bytes));
        Some(Self { id: SaId { spi: spi?, destination }, number: number?, mtu })
    }
}

fn ipv4(packet: &[u8]) -> Option<TooBig> {
    let ip = Ipv4::parse(packet).ok().filter(|ip| ip.protocol() == protocol::ICMP && !ip.is_fragment())?;
    let message = Icmp::parse(ip.payload()).ok()?;
    let kind = (message.kind(), message.code());
    if kind != (icmp::kind::DESTINATION_UNREACHABLE, icmp::unreachable::FRAGMENTATION_NEEDED)
        || !message.checksum_ok()
    {
        return None;
    }
    let about = Ipv4::parse_quoted(message.data()).ok()?;
    if about.total_len() <= message.mtu() || about.is_fragment() {
        return None;
    }
    let upper = message.data().get(about.header_len()..)?;
    TooBig::about(about.destination().show(), about.protocol(), upper, message.mtu().into())
}

fn ipv6(packet: &[u8]) -> Option<TooBig> {
    let ip = Ipv6::parse(packet).ok().filter(|ip| ip.next_header() == protocol::ICMPV6)?;
    let message = Icmpv6::parse(ip.payload()).ok()?;
    if message.kind() != icmpv6::kind::PACKET_TOO_BIG || !message.checksum_ok(&ip.pseudo()) {
        return None;
    }
    let about = Ipv6::parse_quoted(message.data()).ok()?;
    let upper = about.upper().ok().filter(|upper| upper.is_head())?;
    if about.total_len() as u64 <= message.rest().into() {
        return None;
    }
    let esp = message.data().get(upper.offset..)?;
    TooBig::about(about.destination().show(), upper.protocol, esp, message.rest())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ESP: [u8; 16] = [0, 0, 0x10, 1, 0, 0, 0, 9, 5, 5, 5, 5, 5, 5, 5, 5];
    const UDP: [u8; 8] = [0x11, 0x94, 0x11, 0x94, 0, 24, 0, 0];

    /// An IPv4 packet of which an error quotes the first bytes.
    fn about4(protocol: u8, upper: &[u8]) -> Vec<u8> {
        let header = [0x45, 0, 5, 220, 0, 1, 0x40, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1];
        let mut packet = [&header, upper].concat();
        packet.resize(1500, 0);
        packet
    }

    fn error4(about: &[u8], mtu: u16) -> Vec<u8> {
        let sender = icmp::Sender { source: 0xc000_0209, ttl: 64, id: 1 };
        let mut error = vec![0; 600];
        let problem = icmp::destination_unreachable(icmp::unreachable::FRAGMENTATION_NEEDED, mtu);
        let length = problem.emit(&sender, &Ipv4::parse_quoted(about).unwrap(), &mut error).unwrap();
        error.truncate(length);
        error
    }

    fn error6(next_header: u8, upper: &[u8], mtu: u32) -> Vec<u8> {
        let mut about = vec![0x60, 0, 0, 0, 0, 0, next_header, 64];
        for address in ["2001:db8:a::1", "2001:db8:b::1"] {
            about.extend(address.parse::<std::net::Ipv6Addr>().unwrap().octets());
        }
        about.extend(upper);
        about.resize(1500, 0);
        about[4..6].copy_from_slice(&1460u16.to_be_bytes());
        let mut error = vec![0; 1400];
        let sender = icmpv6::Sender { source: 1, hop_limit: 64 };
        let about = Ipv6::parse(&about[..]).unwrap();
        let length = icmpv6::packet_too_big(mtu).emit(&sender, &about, &mut error).unwrap();
        error.truncate(length);
        error
    }

    #[test]
    fn errors_name_the_packet_and_the_mtu() {
        let of = |destination: &str, mtu| {
            let id = SaId { spi: 0x1001, destination: destination.parse().unwrap() };
            Some(TooBig { id, number: 9, mtu })
        };
        let in_udp = [&UDP[..], &ESP].concat();
        assert_eq!(TooBig::parse(&error4(&about4(50, &ESP), 1400)), of("198.51.100.1", 1400));
        assert_eq!(TooBig::parse(&error4(&about4(17, &in_udp), 0)), of("198.51.100.1", 0));
        assert_eq!(TooBig::parse(&error6(50, &ESP, 1300)), of("2001:db8:b::1", 1300));
        assert_eq!(TooBig::parse(&error6(17, &in_udp, 1300)), of("2001:db8:b::1", 1300));
        // Behind destination options.
        let behind = [&[50, 0, 1, 4, 0, 0, 0, 0][..], &ESP].concat();
        assert_eq!(TooBig::parse(&error6(60, &behind, 1300)), of("2001:db8:b::1", 1300));
    }

    #[test]
    fn whatever_is_no_such_error_says_nothing() {
        let right = error4(&about4(50, &ESP), 1400);
        for at in [9, 20, 21, 22, 40] {
            let mut wrong = right.clone();
            wrong[at] ^= 1;
            assert_eq!(TooBig::parse(&wrong), None, "byte {at}");
        }
        assert_eq!(TooBig::parse(&error4(&about4(50, &ESP), 1500)), None, "it would have fitted");
        assert_eq!(TooBig::parse(&error4(&about4(6, &ESP), 1400)), None);
        let mut right = error6(50, &ESP, 1300);
        right[47] ^= 1;
        assert_eq!(TooBig::parse(&right), None, "its checksum is wrong");
        (0..right.len()).for_each(|length| assert_eq!(TooBig::parse(&right[..length]), None));
    }
}
