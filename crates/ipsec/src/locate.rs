//! Finds the ESP header of a packet that is for us: after the IP header, or in UDP (RFC 3948).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::{self, Ipv6};
use bm_wire::protocol;
use bm_wire::udp;

use crate::failure::Failure;
use crate::sa::SaId;

/// The only port of IKE and ESP in UDP that is not agreed upon (RFC 3948 2).
pub(crate) const NAT_TRAVERSAL: u16 = 4500;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    Esp(Esp),
    /// IKE, after a non-ESP marker of zeros: for the IKE daemon on this host.
    Ike,
    /// A NAT keepalive, one byte 0xff: for the host, whose kernel drops it.
    Keepalive,
}

/// Where ESP is in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Esp {
    /// Which SA it belongs to.
    pub id: SaId,
    /// Offset of the ESP header.
    pub(crate) offset: usize,
    /// Bytes of the IP header with extensions, without UDP.
    pub(crate) ip_header: usize,
    /// Where the protocol of what follows the IP header is.
    pub(crate) next_header_at: usize,
    /// Bytes of the packet, without what follows it in the frame.
    pub(crate) length: usize,
    /// DSCP and ECN of the IP header.
    pub(crate) traffic_class: u8,
    /// Whether it is in UDP.
    pub(crate) udp: bool,
}

impl Esp {
    /// The address and the UDP port that sent the packet in which this was found; `None` if it is not in UDP.
    #[inline]
    pub fn sender(&self, packet: &[u8]) -> Option<(IpAddr, u16)> {
        if !self.udp {
            return None;
        }
        let source = match self.id.destination {
            IpAddr::V4(_) => IpAddr::from(*packet.get(12..)?.first_chunk::<4>()?),
            IpAddr::V6(_) => IpAddr::from(*packet.get(8..)?.first_chunk::<16>()?),
        };
        Some((source, u16::from_be_bytes(*packet.get(self.ip_header..)?.first_chunk()?)))
    }
}

/// Finds ESP in an IP packet.
///
/// # Errors
/// [`Failure::Malformed`], [`Failure::Fragment`], [`Failure::NotEsp`] or [`Failure::TooShort`].
#[inline]
pub fn locate(packet: &[u8]) -> Result<Located, Failure> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => ipv4(packet),
        Some(6) => ipv6(packet),
        _ => Err(Failure::Malformed),
    }
}

fn ipv4(packet: &[u8]) -> Result<Located, Failure> {
    let ip = Ipv4::parse(packet).map_err(|_| Failure::Malformed)?;
    if ip.is_fragment() {
        return Err(Failure::Fragment);
    }
    let outer = Outer {
        protocol: ip.protocol(),
        destination: Ipv4Addr::from(ip.destination()).into(),
        ip_header: ip.header_len(),
        next_header_at: 9,
        traffic_class: ip.tos(),
    };
    outer.find(ip.packet())
}

fn ipv6(packet: &[u8]) -> Result<Located, Failure> {
    let ip = Ipv6::parse(packet).map_err(|_| Failure::Malformed)?;
    let (mut next_header_at, mut upper) = (6, ipv6::HEADER_LEN);
    let mut protocol = ip.next_header();
    for extension in ip.extensions() {
        let extension = extension.map_err(|_| Failure::Malformed)?;
        if extension.kind == protocol::FRAGMENT {
            return Err(Failure::Fragment);
        }
        next_header_at = extension.offset;
        upper = extension.offset + extension.bytes.len();
        protocol = extension.next_header();
    }
    let outer = Outer {
        protocol,
        destination: Ipv6Addr::from(ip.destination()).into(),
        ip_header: upper,
        next_header_at,
        traffic_class: ip.traffic_class(),
    };
    outer.find(ip.packet())
}

/// What is known of the IP header.
struct Outer {
    protocol: u8,
    destination: IpAddr,
    ip_header: usize,
    next_header_at: usize,
    traffic_class: u8,
}

impl Outer {
    #[inline]
    fn find(self, packet: &[u8]) -> Result<Located, Failure> {
        let udp = match self.protocol {
            protocol::ESP => false,
            protocol::UDP => true,
            _ => return Err(Failure::NotEsp),
        };
        let (offset, length) = if udp {
            let datagram = udp::Udp::parse(&packet[self.ip_header..]).map_err(|_| Failure::Malformed)?;
            if datagram.destination_port() != NAT_TRAVERSAL && datagram.source_port() != NAT_TRAVERSAL {
                return Err(Failure::NotEsp);
            }
            match *datagram.payload() {
                [0xff] => return Ok(Located::Keepalive),
                [0, 0, 0, 0, ..] => return Ok(Located::Ike),
                _ => {}
            }
            let offset = self.ip_header + udp::HEADER_LEN;
            (offset, offset + datagram.payload().len())
        } else {
            (self.ip_header, packet.len())
        };
        let esp = packet.get(offset..length).ok_or(Failure::TooShort)?;
        let spi = u32::from_be_bytes(*esp.first_chunk().ok_or(Failure::TooShort)?);
        Ok(Located::Esp(Esp {
            id: SaId { spi, destination: self.destination },
            offset,
            ip_header: self.ip_header,
            next_header_at: self.next_header_at,
            length,
            traffic_class: self.traffic_class,
            udp,
        }))
    }
}
