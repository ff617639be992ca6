//! Addresses of either family in messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bm_wire::prefix::Address;

/// An address of either family in network order, distinguished by its length.
pub fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => u32::from_bytes(bytes).map(|address| IpAddr::V4(Ipv4Addr::from(address))),
        16 => u128::from_bytes(bytes).map(|address| IpAddr::V6(Ipv6Addr::from(address))),
        _ => None,
    }
}

/// Runs `body` on the bytes of an address in network order.
pub(crate) fn with_bytes<T>(address: &IpAddr, body: impl FnOnce(&[u8]) -> T) -> T {
    match address {
        IpAddr::V4(address) => body(&address.octets()),
        IpAddr::V6(address) => body(&address.octets()),
    }
}
