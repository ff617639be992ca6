//! Finds the ESP header of a packet that is for us: after the IP header, or in UDP (RFC 3948).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::extension::option;
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
///
/// One word, which stays in a register: a structure of small fields is written to memory field by field and copied as a
/// whole, and each such copy waits for the writes.
///
/// ```text
/// bits: 0 to 30 length │ 31 in UDP │ 32 to 47 IP header │ 48 to 63 where the next header is
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Esp(u64);

const IN_UDP: u64 = 1 << 31;

impl Esp {
    #[inline]
    fn new(length: usize, udp: bool, ip_header: usize, next_header_at: usize) -> Result<Self, Failure> {
        // Extension headers of 64 KiB are in a jumbogram, which is not supported.
        let [ip_header, next_header_at] =
            [ip_header, next_header_at].map(|number| u16::try_from(number).map(u64::from));
        let (Ok(ip_header), Ok(next_header_at)) = (ip_header, next_header_at) else {
            return Err(Failure::Malformed);
        };
        let length = length as u64 & (IN_UDP - 1);
        Ok(Self(length | if udp { IN_UDP } else { 0 } | ip_header << 32 | next_header_at << 48))
    }

    /// The SPI, in the packet in which this was found.
    #[inline]
    pub fn spi(&self, packet: &[u8]) -> u32 {
        array(packet, self.offset()).map_or(0, u32::from_be_bytes)
    }

    /// Which SA the packet in which this was found belongs to.
    #[inline]
    pub fn id(&self, packet: &[u8]) -> SaId {
        let destination = match packet.first().map(|first| first >> 4) {
            Some(6) => array(packet, 24).map(|octets: [u8; 16]| IpAddr::from(octets)),
            _ => array(packet, 16).map(|octets: [u8; 4]| IpAddr::from(octets)),
        };
        let none = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        SaId { spi: self.spi(packet), destination: destination.unwrap_or(none) }
    }

    /// The address and the UDP port that sent the packet in which this was found; `None` if it is not in UDP.
    #[inline]
    pub fn sender(&self, packet: &[u8]) -> Option<(IpAddr, u16)> {
        if !self.udp() {
            return None;
        }
        let source = match packet.first()? >> 4 {
            6 => IpAddr::from(array::<16>(packet, 8)?),
            _ => IpAddr::from(array::<4>(packet, 12)?),
        };
        Some((source, u16::from_be_bytes(array(packet, self.ip_header())?)))
    }

    /// Whether it is in UDP.
    #[inline]
    pub(crate) fn udp(&self) -> bool {
        self.0 & IN_UDP != 0
    }

    /// Offset of the ESP header.
    #[inline]
    pub(crate) fn offset(&self) -> usize {
        self.ip_header() + if self.udp() { udp::HEADER_LEN } else { 0 }
    }

    /// Bytes of the packet, without what follows it in the frame.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        (self.0 & (IN_UDP - 1)) as usize
    }

    /// Bytes of the IP header with extensions, without UDP.
    #[inline]
    pub(crate) fn ip_header(&self) -> usize {
        (self.0 >> 32 & 0xffff) as usize
    }

    /// Where the protocol of what follows the IP header is.
    #[inline]
    pub(crate) fn next_header_at(&self) -> usize {
        (self.0 >> 48) as usize
    }
}

impl fmt::Debug for Esp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Esp");
        shown.field("length", &self.length()).field("udp", &self.udp()).field("ip_header", &self.ip_header());
        shown.field("next_header_at", &self.next_header_at()).finish()
    }
}

#[inline]
fn array<const N: usize>(packet: &[u8], at: usize) -> Option<[u8; N]> {
    packet.get(at..)?.first_chunk().copied()
}

/// Finds ESP in an IP packet.
///
/// # Errors
/// [`Failure::Malformed`], [`Failure::Fragment`], [`Failure::NotEsp`] or [`Failure::TooShort`]. Packets whose headers must not
/// be passed over are no ESP here: the router, or Linux, drops and answers them.
#[inline]
pub fn locate(packet: &[u8]) -> Result<Located, Failure> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => ipv4(packet),
        Some(6) => ipv6(packet),
        _ => Err(Failure::Malformed),
    }
}

#[inline]
fn ipv4(packet: &[u8]) -> Result<Located, Failure> {
    let ip = Ipv4::parse(packet).map_err(|_| Failure::Malformed)?;
    // In transport mode a wrong address would get a right checksum.
    if !ip.checksum_ok() {
        return Err(Failure::Malformed);
    }
    if ip.is_fragment() {
        return Err(Failure::Fragment);
    }
    let outer = Outer { protocol: ip.protocol(), ip_header: ip.header_len(), next_header_at: 9 };
    outer.find(ip.packet())
}

fn ipv6(packet: &[u8]) -> Result<Located, Failure> {
    let ip = Ipv6::parse(packet).map_err(|_| Failure::Malformed)?;
    let (mut next_header_at, mut upper) = (6, ipv6::HEADER_LEN);
    let mut protocol = ip.next_header();
    for extension in ip.extensions() {
        let extension = extension.map_err(|_| Failure::Malformed)?;
        match extension.kind {
            protocol::FRAGMENT => return Err(Failure::Fragment),
            protocol::HOP_BY_HOP | protocol::DESTINATION_OPTIONS if !may_skip(&extension.bytes[2..]) => {
                return Err(Failure::NotEsp);
            }
            // This machine may have a key for it, or none.
            protocol::AUTHENTICATION => return Err(Failure::NotEsp),
            // It has not arrived yet (RFC 8200 4.4).
            protocol::ROUTING if extension.routing().is_some_and(|(_, left)| left > 0) => {
                return Err(Failure::NotEsp);
            }
            _ => {}
        }
        next_header_at = extension.offset;
        upper = extension.offset + extension.bytes.len();
        protocol = extension.next_header();
    }
    let outer = Outer { protocol, ip_header: upper, next_header_at };
    outer.find(ip.packet())
}

/// Whether a packet may be processed by somebody who knows none of these options (RFC 8200 4.2).
fn may_skip(mut options: &[u8]) -> bool {
    while let [kind, rest @ ..] = options {
        let length = match (*kind, rest.first()) {
            (option::PAD1, _) => 1,
            (kind, Some(length)) if kind >> 6 == 0 => 2 + usize::from(*length),
            _ => return false,
        };
        let Some(rest) = options.get(length..) else { return false };
        options = rest;
    }
    true
}

/// Whether a packet in which [`locate`] finds no whole ESP packet is ESP nevertheless: too short, or a fragment. In UDP only
/// the first fragment says so, or is too short to say it; IKE is fragmented as well, and later fragments may be of that.
pub fn names_esp(packet: &[u8]) -> bool {
    match packet.first().map(|first| first >> 4) {
        Some(4) => Ipv4::parse_quoted(packet).is_ok_and(|ip| {
            let packet = within(packet, ip.total_len().into());
            let upper = packet.get(ip.header_len()..).unwrap_or_default();
            is_esp(ip.protocol(), upper, ip.fragment_offset() == 0, ip.more_fragments())
        }),
        Some(6) => Ipv6::parse_quoted(packet).is_ok_and(|ip| {
            let (mut protocol, mut upper) = (ip.next_header(), ipv6::HEADER_LEN);
            let (mut is_first, mut more_follow) = (true, false);
            // What cannot be followed is no ESP of ours.
            for extension in ip.extensions().map_while(Result::ok) {
                if let Some(fragment) = extension.fragment() {
                    (is_first, more_follow) = (fragment.offset == 0, fragment.more);
                }
                (protocol, upper) = (extension.next_header(), extension.offset + extension.bytes.len());
            }
            let packet = within(packet, ip.total_len());
            is_esp(protocol, packet.get(upper..).unwrap_or_default(), is_first, more_follow)
        }),
        _ => false,
    }
}

/// A packet of this length without what follows it in its frame.
fn within(packet: &[u8], length: usize) -> &[u8] {
    &packet[..length.min(packet.len())]
}

fn is_esp(protocol: u8, upper: &[u8], is_first: bool, more_follow: bool) -> bool {
    let ports = [0, 2].map(|at| array(upper, at).map(u16::from_be_bytes));
    // Nobody cuts IKE in front of its marker.
    let is_marked = array(upper, udp::HEADER_LEN).map_or(more_follow, |marker: [u8; 4]| marker != [0; 4]);
    let in_udp = is_first && ports.contains(&Some(NAT_TRAVERSAL)) && is_marked;
    protocol == protocol::ESP || protocol == protocol::UDP && in_udp
}

/// What is known of the IP header.
struct Outer {
    protocol: u8,
    ip_header: usize,
    next_header_at: usize,
}

impl Outer {
    #[inline]
    fn find(self, packet: &[u8]) -> Result<Located, Failure> {
        let udp = match self.protocol {
            protocol::ESP => false,
            protocol::UDP => true,
            _ => return Err(Failure::NotEsp),
        };
        let (at, length) = if udp {
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
        if packet.get(at..length).is_none_or(|esp| esp.len() < size_of::<u32>()) {
            return Err(Failure::TooShort);
        }
        Esp::new(length, udp, self.ip_header, self.next_header_at).map(Located::Esp)
    }
}
