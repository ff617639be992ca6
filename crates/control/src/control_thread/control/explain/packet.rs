//! The packet that is explained: the frame as given, or one made of its fields.

use std::net::IpAddr;

use bm_api::Error;
use bm_api::request::ExplainQuery;
use bm_wire::checksum::Pseudo;
use bm_wire::ipv4::{self, Ipv4Header};
use bm_wire::ipv6::{self, Ipv6Header};
use bm_wire::tcp::{self, Tcp, flag};
use bm_wire::{Vlan, ethernet, icmp, protocol, udp};

/// What a packet gets that the query does not say: the ports are those of traceroute.
const SOURCE_PORT: u16 = 40_000;
const DESTINATION_PORT: u16 = 33_434;
const TTL: u8 = 64;
const LENGTH: u16 = 64;

/// A frame in hexadecimal; spaces, line breaks and colons do not matter.
pub(super) fn from_hex(text: &str) -> Result<Vec<u8>, Error> {
    let digits = text.char_indices().filter(|(_, symbol)| !symbol.is_whitespace() && *symbol != ':');
    let mut bytes = Vec::new();
    let mut high = None;
    for (at, symbol) in digits {
        let digit = symbol.to_digit(16).ok_or_else(|| {
            Error::new(format_args!("{symbol:?} at position {} of the frame is no hexadecimal digit", at + 1))
        })? as u8;
        match high.take() {
            None => high = Some(digit),
            Some(high) => bytes.push(high << 4 | digit),
        }
    }
    match high {
        Some(_) => Err(Error::new(format_args!(
            "the frame has {} hexadecimal digits: the last byte lacks one",
            2 * bytes.len() + 1
        ))),
        None if bytes.len() < ethernet::HEADER_LEN => Err(Error::new(format_args!(
            "the frame has {} bytes: an Ethernet header has {}",
            bytes.len(),
            ethernet::HEADER_LEN
        ))),
        None => Ok(bytes),
    }
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An IP address of the query.
pub(super) fn address(name: &str, text: &str) -> Result<IpAddr, Error> {
    text.parse().map_err(|_| Error::new(format_args!("{name}: {text:?} is not an IP address")))
}

/// The packet that a query describes, between these addresses.
pub(super) fn packet(query: &ExplainQuery, source: IpAddr, destination: IpAddr) -> Result<Vec<u8>, Error> {
    let length = query.length.unwrap_or(LENGTH);
    let (header, pseudo) = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            (ipv4::HEADER_LEN, Pseudo::V4 { source: source.into(), destination: destination.into() })
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            (ipv6::HEADER_LEN, Pseudo::V6 { source: source.into(), destination: destination.into() })
        }
        _ => return Err(Error::new(format_args!("{source} and {destination} are not of the same family"))),
    };
    let is_ipv4 = source.is_ipv4();
    let number = number(query.protocol.as_deref(), is_ipv4)?;
    let least = header + least(number, is_ipv4);
    let Some(room) = usize::from(length).checked_sub(least).map(|_| usize::from(length) - header) else {
        return Err(Error::new(format_args!("{length} bytes are too few: the headers have {least}")));
    };
    let ports =
        [query.source_port.unwrap_or(SOURCE_PORT), query.destination_port.unwrap_or(DESTINATION_PORT)];
    let mut bytes = vec![0; usize::from(length)];
    let ttl = query.ttl.unwrap_or(TTL);
    match pseudo {
        Pseudo::V4 { source, destination } => {
            let header = Ipv4Header {
                total_len: length,
                ttl,
                protocol: number,
                source,
                destination,
                ..Ipv4Header::default()
            };
            header.emit(&mut bytes).map_err(no_room)?;
        }
        Pseudo::V6 { source, destination } => {
            let header = Ipv6Header {
                payload_len: room as u16,
                next_header: number,
                hop_limit: ttl,
                source,
                destination,
                ..Ipv6Header::default()
            };
            header.emit(&mut bytes).map_err(no_room)?;
        }
    }
    payload(&pseudo, number, ports, &mut bytes[header..])?;
    Ok(bytes)
}

fn no_room(error: impl std::fmt::Debug) -> Error {
    Error::new(format_args!("the packet has no room for its headers: {error:?}"))
}

/// The number of a protocol.
fn number(name: Option<&str>, is_ipv4: bool) -> Result<u8, Error> {
    match name.unwrap_or("udp") {
        "udp" => Ok(protocol::UDP),
        "tcp" => Ok(protocol::TCP),
        "icmp" | "icmpv6" | "ipv6-icmp" => Ok(if is_ipv4 { protocol::ICMP } else { protocol::ICMPV6 }),
        other => other.parse().map_err(|_| {
            Error::new(format_args!("unknown protocol {other:?}"))
                .hint("use udp, tcp, icmp or a number from 0 to 255")
        }),
    }
}

/// Bytes of the header behind IP's.
fn least(number: u8, is_ipv4: bool) -> usize {
    match number {
        protocol::UDP => udp::HEADER_LEN,
        protocol::TCP => tcp::HEADER_LEN,
        protocol::ICMP if is_ipv4 => icmp::HEADER_LEN,
        protocol::ICMPV6 if !is_ipv4 => icmp::HEADER_LEN,
        _ => 0,
    }
}

/// Writes what is behind the IP header: a datagram, the first segment of a connection, an echo request.
fn payload(pseudo: &Pseudo, number: u8, [from, to]: [u16; 2], bytes: &mut [u8]) -> Result<(), Error> {
    let is_ipv4 = matches!(pseudo, Pseudo::V4 { .. });
    match number {
        protocol::UDP => {
            let data = vec![0; bytes.len() - udp::HEADER_LEN];
            udp::emit(pseudo, from, to, &data, bytes).map_err(no_room)?;
        }
        protocol::TCP => {
            // Five words of header, SYN, the largest window.
            bytes[12..16].copy_from_slice(&[0x50, flag::SYN, 0xff, 0xff]);
            let mut segment = Tcp::parse(bytes).map_err(no_room)?;
            segment.set_source_port(from);
            segment.set_destination_port(to);
            segment.fill_checksum(pseudo);
        }
        protocol::ICMP if is_ipv4 => {
            bytes[0] = icmp::kind::ECHO_REQUEST;
            let sum = bm_wire::checksum::checksum(bytes);
            bytes[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        protocol::ICMPV6 if !is_ipv4 => {
            bytes[0] = bm_wire::icmpv6::kind::ECHO_REQUEST;
            let sum = pseudo.checksum(protocol::ICMPV6, bytes);
            bytes[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {}
    }
    Ok(())
}

/// A frame with a packet, to an interface.
pub(super) fn frame(to: [u8; 6], from: [u8; 6], vlan: Option<Vlan>, packet: &[u8]) -> Vec<u8> {
    let ethertype = match packet.first().map(|first| first >> 4) {
        Some(6) => ethernet::ethertype::IPV6,
        _ => ethernet::ethertype::IPV4,
    };
    let tag = vlan.map(|vlan| [vlan.protocol.to_be_bytes(), vlan.id.to_be_bytes()].concat());
    [&to[..], &from, &tag.unwrap_or_default(), &ethertype.to_be_bytes(), packet].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_wire::icmp::Icmp;
    use bm_wire::ipv4::Ipv4;
    use bm_wire::ipv6::Ipv6;
    use bm_wire::udp::Udp;

    fn said<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn hexadecimal_is_read_or_said_to_be_wrong_where() {
        let frame = "02:00:00:00:00:01 020000000002\n0800";
        assert_eq!(to_hex(&from_hex(frame).unwrap()), "0200000000010200000000020800");
        assert_eq!(said(from_hex("02 0g")), "'g' at position 5 of the frame is no hexadecimal digit");
        assert_eq!(said(from_hex("020")), "the frame has 3 hexadecimal digits: the last byte lacks one");
        assert_eq!(said(from_hex("0200")), "the frame has 2 bytes: an Ethernet header has 14");
    }

    #[test]
    fn packets_are_as_described_and_whole() {
        let [from, to] = ["10.1.0.2", "10.2.0.2"].map(|text| text.parse().unwrap());
        let query =
            ExplainQuery { source_port: Some(7), ttl: Some(3), length: Some(100), ..ExplainQuery::default() };
        let bytes = packet(&query, from, to).unwrap();
        let ip = Ipv4::parse(&bytes[..]).unwrap();
        assert!(ip.checksum_ok() && bytes.len() == 100 && ip.ttl() == 3);
        let datagram = Udp::parse(ip.payload()).unwrap();
        assert_eq!((datagram.source_port(), datagram.destination_port()), (7, DESTINATION_PORT));
        assert!(datagram.checksum_ok(&ip.pseudo()));
        for (name, is_whole) in [
            (
                "tcp",
                (|ip| Tcp::parse(ip.payload()).unwrap().checksum_ok(&ip.pseudo()))
                    as fn(&Ipv4<&[u8]>) -> bool,
            ),
            ("icmp", |ip| Icmp::parse(ip.payload()).unwrap().checksum_ok()),
            ("89", |ip| ip.protocol() == 89),
        ] {
            let query = ExplainQuery { protocol: Some(name.into()), ..ExplainQuery::default() };
            let bytes = packet(&query, from, to).unwrap();
            assert!(is_whole(&Ipv4::parse(&bytes[..]).unwrap()), "{name}");
        }
        let [from, to] = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap());
        let bytes = packet(&ExplainQuery::default(), from, to).unwrap();
        let ip = Ipv6::parse(&bytes[..]).unwrap();
        assert_eq!((ip.total_len(), ip.hop_limit()), (64, 64));
        assert!(Udp::parse(ip.payload()).unwrap().checksum_ok(&ip.pseudo()));
    }

    #[test]
    fn impossible_packets_are_refused_with_the_reason() {
        let [four, six] = ["10.1.0.2", "2001:db8::1"].map(|text| text.parse().unwrap());
        let query = ExplainQuery::default();
        assert_eq!(said(packet(&query, four, six)), "10.1.0.2 and 2001:db8::1 are not of the same family");
        let short = ExplainQuery { length: Some(27), ..query.clone() };
        assert_eq!(said(packet(&short, four, four)), "27 bytes are too few: the headers have 28");
        let odd = ExplainQuery { protocol: Some("foo".into()), ..query };
        assert_eq!(
            said(packet(&odd, four, four)),
            "unknown protocol \"foo\": use udp, tcp, icmp or a number from 0 to 255"
        );
        assert_eq!(said(address("--to", "10.1")), "--to: \"10.1\" is not an IP address");
    }
}
