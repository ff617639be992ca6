//! Tuples: what the packets of one direction of a connection have in common.

use crate::layout::{ip, protocol, tuple};
use bm_netlink::Malformed;
use bm_netlink::attribute::{self, Attributes, NESTED, put, put_nested};
use std::net::IpAddr;

/// Addresses, ports and protocol of the packets of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    pub source: IpAddr,
    /// Of the same family as the source.
    pub destination: IpAddr,
    /// 0 for protocols without ports; a key for GRE.
    pub source_port: u16,
    pub destination_port: u16,
    /// IP protocol number.
    pub protocol: u8,
}

impl Tuple {
    /// Reads the value of a tuple attribute: the tuple, and the zone of its direction if it has one of its own.
    pub(crate) fn read(value: &[u8]) -> Result<(Self, Option<u16>), Malformed> {
        let (mut addresses, mut transport, mut zone) = (None, None, None);
        for attribute in Attributes::new(value) {
            let (kind, value) = attribute?;
            match kind {
                tuple::IP => addresses = Some(read_addresses(value)?),
                tuple::PROTOCOL => transport = Some(read_transport(value)?),
                tuple::ZONE => zone = Some(read_u16(kind, value)?),
                _ => {}
            }
        }
        let (source, destination) = addresses.ok_or(Malformed::Missing { kind: tuple::IP })?;
        let transport = transport.ok_or(Malformed::Missing { kind: tuple::PROTOCOL })?;
        let [source_port, destination_port] = transport.ports;
        Ok((Self { source, destination, source_port, destination_port, protocol: transport.protocol }, zone))
    }

    /// Appends the tuple as an attribute of type `kind`.
    pub(crate) fn write(&self, kind: u16, message: &mut Vec<u8>) {
        put_nested(message, kind | NESTED, |list| {
            put_nested(list, tuple::IP | NESTED, |list| {
                put_address(list, [ip::V4_SOURCE, ip::V6_SOURCE], &self.source);
                put_address(list, [ip::V4_DESTINATION, ip::V6_DESTINATION], &self.destination);
            });
            put_nested(list, tuple::PROTOCOL | NESTED, |list| {
                put(list, protocol::NUMBER, &[self.protocol]);
                put(list, protocol::SOURCE_PORT, &self.source_port.to_be_bytes());
                put(list, protocol::DESTINATION_PORT, &self.destination_port.to_be_bytes());
            });
        });
    }
}

/// A number in network order.
pub(crate) fn read_u16(kind: u16, value: &[u8]) -> Result<u16, Malformed> {
    attribute::number_u16(kind, value).map(u16::from_be)
}

/// Appends an address as the attribute for its family: IPv4, IPv6.
fn put_address(list: &mut Vec<u8>, kinds: [u16; 2], address: &IpAddr) {
    match address {
        IpAddr::V4(address) => put(list, kinds[0], &address.octets()),
        IpAddr::V6(address) => put(list, kinds[1], &address.octets()),
    }
}

/// Source and destination.
fn read_addresses(value: &[u8]) -> Result<(IpAddr, IpAddr), Malformed> {
    let (mut source, mut destination) = (None, None);
    for attribute in Attributes::new(value) {
        let (kind, value) = attribute?;
        let length = if kind <= ip::V4_DESTINATION { 4 } else { 16 };
        let place = match kind {
            ip::V4_SOURCE | ip::V6_SOURCE => &mut source,
            ip::V4_DESTINATION | ip::V6_DESTINATION => &mut destination,
            _ => continue,
        };
        if value.len() != length {
            return Err(Malformed::Value { kind, length: value.len() });
        }
        *place = Some(attribute::address(kind, value)?);
    }
    let source = source.ok_or(Malformed::Missing { kind: ip::V4_SOURCE })?;
    let destination = destination.ok_or(Malformed::Missing { kind: ip::V4_DESTINATION })?;
    if source.is_ipv4() != destination.is_ipv4() {
        return Err(Malformed::Missing { kind: ip::V6_SOURCE });
    }
    Ok((source, destination))
}

/// The part of a tuple behind the IP header.
struct Transport {
    protocol: u8,
    /// Source and destination.
    ports: [u16; 2],
}

fn read_transport(value: &[u8]) -> Result<Transport, Malformed> {
    let (mut number, mut ports) = (None, [0; 2]);
    for attribute in Attributes::new(value) {
        let (kind, value) = attribute?;
        match kind {
            protocol::NUMBER => number = Some(attribute::number_u8(kind, value)?),
            protocol::SOURCE_PORT => ports[0] = read_u16(kind, value)?,
            protocol::DESTINATION_PORT => ports[1] = read_u16(kind, value)?,
            _ => {}
        }
    }
    let protocol = number.ok_or(Malformed::Missing { kind: protocol::NUMBER })?;
    Ok(Transport { protocol, ports })
}
