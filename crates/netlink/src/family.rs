//! The two address families, as a value and as a type.

use bm_wire::prefix::{Address, Prefix};
use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, in the order in which they are dumped.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The family of a kernel number, unless it is neither.
    pub fn from_number(number: u8) -> Option<Self> {
        match i32::from(number) {
            libc::AF_INET => Some(Self::V4),
            libc::AF_INET6 => Some(Self::V6),
            _ => None,
        }
    }

    /// The kernel's number.
    pub fn number(self) -> u8 {
        match self {
            Self::V4 => libc::AF_INET as u8,
            Self::V6 => libc::AF_INET6 as u8,
        }
    }

    /// The family of an address.
    pub fn of(address: &IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// An address as a number, with what the mirror needs to know of its family.
pub trait Ip: Address {
    /// The family.
    const FAMILY: Family;
    /// A prefix without the gaps that alignment would leave: four bytes saved a million times.
    type Packed: Copy + Eq + Hash + fmt::Debug;

    /// From network order; `None` if the length is not the family's.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
    /// Packs a prefix.
    fn pack(prefix: Prefix<Self>) -> Self::Packed;
    /// Unpacks what `pack` packed.
    fn unpack(packed: Self::Packed) -> Prefix<Self>;
}

impl Ip for u32 {
    const FAMILY: Family = Family::V4;
    type Packed = (u32, u8);

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(u32::from_be_bytes)
    }
    fn pack(prefix: Prefix<Self>) -> (u32, u8) {
        (prefix.first(), prefix.length())
    }
    fn unpack((address, length): (u32, u8)) -> Prefix<Self> {
        Prefix::containing(address, length).expect("packed from a prefix")
    }
}

impl Ip for u128 {
    const FAMILY: Family = Family::V6;
    type Packed = ([u32; 4], u8);

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(u128::from_be_bytes)
    }
    fn pack(prefix: Prefix<Self>) -> ([u32; 4], u8) {
        let address = prefix.first();
        let word = |shift: u32| (address >> shift) as u32;
        ([word(96), word(64), word(32), word(0)], prefix.length())
    }
    fn unpack((words, length): ([u32; 4], u8)) -> Prefix<Self> {
        let address = words.iter().fold(0u128, |address, word| address << 32 | u128::from(*word));
        Prefix::containing(address, length).expect("packed from a prefix")
    }
}

/// An address of either family in network order, distinguished by its length.
pub(crate) fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use bm_wire::prefix::{Ipv4Prefix, Ipv6Prefix};

    #[test]
    fn packs_and_unpacks() {
        let four: Ipv4Prefix = "192.0.2.0/24".parse().unwrap();
        assert_eq!(u32::unpack(u32::pack(four)), four);
        let six: Ipv6Prefix = "2001:db8:1234:5678:9abc:def0::/96".parse().unwrap();
        assert_eq!(u128::unpack(u128::pack(six)), six);
        assert_eq!(size_of::<(<u32 as Ip>::Packed, u32)>(), 12);
        assert_eq!(size_of::<(<u128 as Ip>::Packed, u32)>(), 24);
    }
}
