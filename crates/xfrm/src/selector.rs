//! Addresses and selectors, between the kernel's structures and those of `bm-ipsec`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bm_filter::{AnyPrefix, Key, Ports};
use bm_ipsec::Selector;
use bm_wire::prefix::Prefix;

use crate::layout::{INET, INET6, errno, selector as at};
use crate::message::{big_u16, number};
use crate::request_error::RequestError;

/// The address of a family at `at`.
pub(crate) fn address(bytes: &[u8], at: usize, family: u16) -> Result<IpAddr, RequestError> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk::<16>());
    let whole = found.ok_or_else(|| RequestError::new(errno::INVALID, "address that is cut off"))?;
    match family {
        INET => Ok(Ipv4Addr::new(whole[0], whole[1], whole[2], whole[3]).into()),
        INET6 => Ok(Ipv6Addr::from(*whole).into()),
        other => {
            Err(RequestError::new(errno::INVALID, format!("address family {other}: IPv4 (2) or IPv6 (10)")))
        }
    }
}

/// Reads `struct xfrm_selector`; `None` for one that matches everything, as SAs of tunnels have it.
pub(crate) fn selector(from: &[u8]) -> Result<Option<Selector>, RequestError> {
    let family: u16 = number(from, at::FAMILY);
    let [destination, source, protocol] =
        [at::DESTINATION_LENGTH, at::SOURCE_LENGTH, at::PROTOCOL].map(|at| number::<u8>(from, at));
    if number::<u32>(from, at::INTERFACE) != 0 {
        return Err(RequestError::new(
            errno::NOT_SUPPORTED,
            "selectors with an interface (dev) are not supported",
        ));
    }
    if family == 0 {
        return Ok(None);
    }
    Ok(Some(Selector {
        source: Some(prefix(address(from, at::SOURCE, family)?, source)?),
        destination: Some(prefix(address(from, at::DESTINATION, family)?, destination)?),
        protocol: (protocol != 0).then_some(protocol),
        source_ports: ports(from, at::SOURCE_PORT)?,
        destination_ports: ports(from, at::DESTINATION_PORT)?,
        ..Selector::default()
    }))
}

fn prefix(address: IpAddr, length: u8) -> Result<AnyPrefix, RequestError> {
    let prefix = match address {
        IpAddr::V4(address) => Prefix::containing(u32::from(address), length).map(AnyPrefix::V4),
        IpAddr::V6(address) => Prefix::containing(u128::from(address), length).map(AnyPrefix::V6),
    };
    prefix.ok_or_else(|| RequestError::new(errno::INVALID, format!("prefix length {length} of {address}")))
}

/// Port and mask: those that equal the port in the bits of the mask, which are one range if the mask is.
fn ports(from: &[u8], at: usize) -> Result<Option<Ports>, RequestError> {
    let (port, mask) = (big_u16(from, at), big_u16(from, at + 2));
    if mask == 0 {
        return Ok(None);
    }
    if mask.leading_ones() + mask.trailing_zeros() != u16::BITS {
        return Err(RequestError::new(
            errno::INVALID,
            format!("port mask {mask:#06x}: its one bits must all come before its zero bits"),
        ));
    }
    Ok(Some(port & mask..=port & mask | !mask))
}

/// Writes the selector of a single packet, as an ACQUIRE has it.
pub(crate) fn of_packet(key: &Key) -> [u8; at::LENGTH] {
    let mut to = [0; at::LENGTH];
    let (is_ipv6, ports, protocol) = (key.0[12] != 0, key.0[8], key.0[9] as u8);
    let (words, family, length) = if is_ipv6 { (4, INET6, 128) } else { (1, INET, 32) };
    for (first, at) in [(0, at::SOURCE), (4, at::DESTINATION)] {
        for word in 0..words {
            to[at + word * 4..][..4].copy_from_slice(&key.0[first + word].to_be_bytes());
        }
    }
    to[at::FAMILY..][..2].copy_from_slice(&family.to_ne_bytes());
    (to[at::SOURCE_LENGTH], to[at::DESTINATION_LENGTH], to[at::PROTOCOL]) = (length, length, protocol);
    if ports != 0 {
        for (port, at) in [((ports >> 16) as u16, at::SOURCE_PORT), (ports as u16, at::DESTINATION_PORT)] {
            to[at..][..2].copy_from_slice(&port.to_be_bytes());
            to[at + 2..][..2].fill(0xff);
        }
    }
    to
}
