//! Headers in front of ESP: the outer IP header of a tunnel, UDP, and the moved IP header of transport mode.

use std::net::IpAddr;

use bm_wire::checksum;
use bm_wire::ipv4::{self, Ipv4};
use bm_wire::ipv6::{self, Ipv6};
use bm_wire::protocol;
use bm_wire::udp;

use crate::ecn;
use crate::sa::{Df, Dscp, Ecn, Sa, UdpPorts};

/// The longest headers in front of ESP that a tunnel adds.
const OUTER_MAX: usize = ipv6::HEADER_LEN + udp::HEADER_LEN;
const DONT_FRAGMENT: u16 = 0x4000;

/// The outer header of a tunnel, complete but for what depends on the packet.
pub(crate) struct Outer {
    template: [u8; OUTER_MAX],
    /// The sum over the template's IPv4 header, to which the rest is added.
    sum: u16,
    ip_header: usize,
    udp: bool,
    df: Df,
    dscp: Dscp,
    ecn: Ecn,
}

/// What the outer header takes from the inner one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inner {
    pub traffic_class: u8,
    pub dont_fragment: bool,
}

impl Outer {
    pub fn new(sa: &Sa) -> Self {
        let mut template = [0; OUTER_MAX];
        let next = if sa.udp.is_some() { protocol::UDP } else { protocol::ESP };
        let ip_header = match (sa.source, sa.destination) {
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                template[0] = 0x60;
                (template[6], template[7]) = (next, sa.ttl);
                template[8..24].copy_from_slice(&source.octets());
                template[24..40].copy_from_slice(&destination.octets());
                ipv6::HEADER_LEN
            }
            (source, destination) => {
                template[0] = 0x45;
                (template[8], template[9]) = (sa.ttl, next);
                for (at, address) in [(12, source), (16, destination)] {
                    // Both are of one family, which `problems` checks.
                    if let IpAddr::V4(address) = address {
                        template[at..at + 4].copy_from_slice(&address.octets());
                    }
                }
                ipv4::HEADER_LEN
            }
        };
        let sum = checksum::sum(&template[..ip_header]);
        write_ports(&mut template[ip_header..], sa.udp);
        Self { template, sum, ip_header, udp: sa.udp.is_some(), df: sa.df, dscp: sa.dscp, ecn: sa.ecn }
    }

    /// Bytes in front of the ESP header.
    pub fn len(&self) -> usize {
        self.ip_header + if self.udp { udp::HEADER_LEN } else { 0 }
    }

    /// Whether routers must not fragment the outer packet.
    pub fn dont_fragment(&self, inner: Inner) -> bool {
        match self.df {
            Df::Copy => inner.dont_fragment,
            Df::Set => true,
            Df::Clear => false,
        }
    }

    /// Writes the headers of a packet whose ESP part is complete, as the checksum of UDP over IPv6 needs.
    #[inline]
    pub fn write(&self, packet: &mut [u8], inner: Inner, number: u64, path_mtu: usize) {
        let length = packet.len();
        if self.len() == ipv4::HEADER_LEN {
            packet[..ipv4::HEADER_LEN].copy_from_slice(&self.template[..ipv4::HEADER_LEN]);
        } else {
            packet[..self.len()].copy_from_slice(&self.template[..self.len()]);
        }
        let traffic_class = self.traffic_class(inner.traffic_class);
        if self.ip_header == ipv4::HEADER_LEN {
            // Where even the least IPv6 packet does not fit, this router fragments it.
            let whole = self.dont_fragment(inner) && length <= path_mtu;
            let df = if whole { DONT_FRAGMENT } else { 0 };
            // Unique among packets of a while, as RFC 6864 wants it where routers may fragment.
            let changing = [traffic_class.into(), length as u16, number as u16, df];
            let sum = changing.into_iter().fold(self.sum, checksum::add);
            packet[1] = traffic_class;
            put16(packet, 2, length as u16);
            put16(packet, 4, number as u16);
            put16(packet, 6, df);
            put16(packet, 10, !sum);
        } else {
            packet[0] |= traffic_class >> 4;
            packet[1] |= traffic_class << 4;
            put16(packet, 4, (length - ipv6::HEADER_LEN) as u16);
        }
        if self.udp {
            finish_udp(packet, self.ip_header);
        }
    }

    fn traffic_class(&self, inner: u8) -> u8 {
        let dscp = match self.dscp {
            Dscp::Copy => inner & !ecn::MASK,
            Dscp::Set(dscp) => dscp << 2,
        };
        match self.ecn {
            Ecn::Normal => dscp | inner & ecn::MASK,
            Ecn::Compatibility => dscp,
        }
    }
}

/// Completes the IP header of transport mode, which has been moved in front of ESP or UDP; `next_header_at` is where the
/// protocol of what follows it is.
#[inline]
pub(crate) fn finish_transport(
    packet: &mut [u8],
    ip_header: usize,
    next_header_at: usize,
    udp: Option<UdpPorts>,
) {
    packet[next_header_at] = if udp.is_some() { protocol::UDP } else { protocol::ESP };
    set_length(packet, ip_header);
    if udp.is_some() {
        write_ports(&mut packet[ip_header..], udp);
        finish_udp(packet, ip_header);
    }
}

/// Sets the length in the IP header to that of `packet`, and the checksum.
#[inline]
pub(crate) fn set_length(packet: &mut [u8], ip_header: usize) {
    let length = packet.len();
    if packet[0] >> 4 == 4 {
        put16(packet, 2, length as u16);
        let checksum = checksum::ipv4_header(&packet[..ip_header]);
        put16(packet, 10, checksum);
    } else {
        put16(packet, 4, (length - ipv6::HEADER_LEN) as u16);
    }
}

fn write_ports(header: &mut [u8], ports: Option<UdpPorts>) {
    if let Some(ports) = ports {
        put16(header, 0, ports.source);
        put16(header, 2, ports.destination);
    }
}

/// Length and checksum of UDP: none over IPv4 (RFC 3948 2.1), and over IPv6 there must be one (RFC 8200 8.1).
fn finish_udp(packet: &mut [u8], ip_header: usize) {
    let length = (packet.len() - ip_header) as u16;
    let is_ipv6 = packet[0] >> 4 == 6;
    let pseudo = if is_ipv6 { Ipv6::parse(&packet[..]).ok().map(|ip| ip.pseudo()) } else { None };
    let header = &mut packet[ip_header..];
    put16(header, 4, length);
    put16(header, 6, 0);
    if let Some(pseudo) = pseudo {
        let checksum = checksum::udp_field(pseudo.checksum(protocol::UDP, header));
        put16(header, 6, checksum);
    }
}

/// The inner packet of a tunnel as its sender has it: what the outer header takes from it, and its length.
#[inline]
pub(crate) fn inner(packet: &[u8]) -> Option<(Inner, usize)> {
    match packet.first()? >> 4 {
        4 => {
            let ip = Ipv4::parse(packet).ok()?;
            let inner = Inner { traffic_class: ip.tos(), dont_fragment: ip.dont_fragment() };
            Some((inner, ip.total_len().into()))
        }
        6 => {
            let ip = Ipv6::parse(packet).ok()?;
            Some((Inner { traffic_class: ip.traffic_class(), dont_fragment: true }, ip.total_len()))
        }
        _ => None,
    }
}

/// DSCP and ECN of a packet that has a header.
#[inline]
pub(crate) fn traffic_class(packet: &[u8]) -> u8 {
    let [first, second] = *packet.first_chunk().expect("a header is longer");
    if first >> 4 == 4 { second } else { first << 4 | second >> 4 }
}

#[inline]
pub(crate) fn put16(bytes: &mut [u8], at: usize, number: u16) {
    bytes[at..at + 2].copy_from_slice(&number.to_be_bytes());
}
