//! Address prefixes, for IPv4 and IPv6: an address in host order and a length in bits.
//!
//! A prefix is always canonical: no bit past its length is set, so equal prefixes compare equal.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::family::Family;

/// An address as an unsigned number in host order: `u32` for IPv4, `u128` for IPv6.
pub trait Address: Copy + Ord + Eq + std::hash::Hash + fmt::Debug + Default + Send + Sync + 'static {
    /// Width in bits, which is also the greatest prefix length.
    const WIDTH: u8;
    /// The family.
    const FAMILY: Family;
    /// A prefix without the gaps that alignment would leave: four bytes saved in each of a million routes.
    type Packed: Copy + Eq + std::hash::Hash + fmt::Debug;
    /// From network order; `None` if the number of bytes is not the family's.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
    /// Packs a prefix.
    fn pack(prefix: Prefix<Self>) -> Self::Packed;
    /// Unpacks what `pack` has packed.
    fn unpack(packed: Self::Packed) -> Prefix<Self>;
    /// The number with its first `length` bits set.
    fn mask(length: u8) -> Self;
    /// Bitwise and.
    fn and(self, other: Self) -> Self;
    /// Bitwise or.
    fn or(self, other: Self) -> Self;
    /// Bitwise not.
    fn not(self) -> Self;
    /// Whether the bit `index`, counted from the most significant, is set.
    fn bit(self, index: u8) -> bool;
    /// The number of leading bits that both have in common.
    fn common(self, other: Self) -> u8;
    /// The first 16 bits.
    fn head(self) -> u16;
    /// As the standard library shows it.
    fn show(self) -> std::net::IpAddr;
}

macro_rules! address {
    ($number:ty, $shown:ty, $variant:ident, $($packing:tt)*) => {
        impl Address for $number {
            const WIDTH: u8 = <$number>::BITS as u8;
            const FAMILY: Family = Family::$variant;
            fn from_bytes(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(<$number>::from_be_bytes)
            }
            $($packing)*
            fn mask(length: u8) -> Self {
                debug_assert!(length <= Self::WIDTH);
                if length == 0 { 0 } else { <$number>::MAX << (Self::WIDTH - length) }
            }
            fn and(self, other: Self) -> Self {
                self & other
            }
            fn or(self, other: Self) -> Self {
                self | other
            }
            fn not(self) -> Self {
                !self
            }
            fn bit(self, index: u8) -> bool {
                self >> (Self::WIDTH - 1 - index) & 1 == 1
            }
            fn common(self, other: Self) -> u8 {
                (self ^ other).leading_zeros() as u8
            }
            fn head(self) -> u16 {
                (self >> (Self::WIDTH - 16)) as u16
            }
            fn show(self) -> std::net::IpAddr {
                std::net::IpAddr::$variant(<$shown>::from(self))
            }
        }
    };
}
address! {
    u32, Ipv4Addr, V4,
    type Packed = (u32, u8);
    fn pack(prefix: Prefix<u32>) -> (u32, u8) {
        (prefix.address, prefix.length)
    }
    fn unpack(packed: (u32, u8)) -> Prefix<u32> {
        let (address, length) = packed;
        Prefix { address, length }
    }
}
address! {
    u128, Ipv6Addr, V6,
    // A number of 16 bytes would be aligned to 16.
    type Packed = ([u32; 4], u8);
    fn pack(prefix: Prefix<u128>) -> ([u32; 4], u8) {
        (std::array::from_fn(|i| (prefix.address >> (96 - 32 * i)) as u32), prefix.length)
    }
    fn unpack(packed: ([u32; 4], u8)) -> Prefix<u128> {
        let (words, length) = packed;
        let address = words.iter().fold(0, |address, word| address << 32 | u128::from(*word));
        Prefix { address, length }
    }
}

/// A prefix: all addresses that share the first `length` bits of `address`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Prefix<A> {
    address: A,
    length: u8,
}

/// An IPv4 prefix.
pub type Ipv4Prefix = Prefix<u32>;
/// An IPv6 prefix.
pub type Ipv6Prefix = Prefix<u128>;

impl<A: Address> Prefix<A> {
    /// The prefix of `length` bits that contains `address`: bits past the length are cleared.
    ///
    /// `None` if the length is greater than the width of the address.
    pub fn containing(address: A, length: u8) -> Option<Self> {
        (length <= A::WIDTH).then(|| Self { address: address.and(A::mask(length)), length })
    }

    /// The prefix of a single address.
    pub fn host(address: A) -> Self {
        Self { address, length: A::WIDTH }
    }

    /// First address.
    pub fn first(&self) -> A {
        self.address
    }

    /// Last address.
    pub fn last(&self) -> A {
        self.address.or(A::mask(self.length).not())
    }

    /// Length in bits.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether the prefix contains `address`.
    pub fn contains(&self, address: A) -> bool {
        address.and(A::mask(self.length)) == self.address
    }

    /// Whether the prefix contains every address of `other`.
    pub fn covers(&self, other: &Self) -> bool {
        self.length <= other.length && self.contains(other.address)
    }
}

impl<A: Address> fmt::Display for Prefix<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address.show(), self.length)
    }
}

impl<A: Address> fmt::Debug for Prefix<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text is not a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAPrefix {
    /// The part before the slash is not an address of this family.
    Address,
    /// The part after the slash is not a number, or greater than the width of the address.
    Length,
    /// Bits past the length are set.
    HostBitsSet,
}

impl fmt::Display for NotAPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address => "not an address",
            Self::Length => "not a prefix length",
            Self::HostBitsSet => "has bits past its length",
        })
    }
}

impl std::error::Error for NotAPrefix {}

fn parse<A: Address>(text: &str, address: impl Fn(&str) -> Option<A>) -> Result<Prefix<A>, NotAPrefix> {
    let (before, length) = match text.split_once('/') {
        Some((before, length)) => (before, length.parse().map_err(|_| NotAPrefix::Length)?),
        None => (text, A::WIDTH),
    };
    let address = address(before).ok_or(NotAPrefix::Address)?;
    let prefix = Prefix::containing(address, length).ok_or(NotAPrefix::Length)?;
    if prefix.address == address { Ok(prefix) } else { Err(NotAPrefix::HostBitsSet) }
}

impl FromStr for Ipv4Prefix {
    type Err = NotAPrefix;
    fn from_str(text: &str) -> Result<Self, NotAPrefix> {
        parse(text, |address| address.parse::<Ipv4Addr>().ok().map(u32::from))
    }
}

impl FromStr for Ipv6Prefix {
    type Err = NotAPrefix;
    fn from_str(text: &str) -> Result<Self, NotAPrefix> {
        parse(text, |address| address.parse::<Ipv6Addr>().ok().map(u128::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_canonical() {
        let prefix = Ipv4Prefix::containing(0xc000_0207, 24).unwrap();
        assert_eq!(prefix.to_string(), "192.0.2.0/24");
        assert_eq!((prefix.first(), prefix.last()), (0xc000_0200, 0xc000_02ff));
        assert_eq!(prefix.length(), 24);
        assert!(prefix.contains(0xc000_0280) && !prefix.contains(0xc000_0300));
        assert_eq!(Ipv4Prefix::containing(0, 33), None);
    }

    #[test]
    fn contains_only_addresses_inside() {
        let wide: Ipv6Prefix = "2001:db8::/32".parse().unwrap();
        assert!(wide.covers(&"2001:db8:1::/48".parse().unwrap()));
        assert!(!wide.covers(&"2001:db9::/48".parse().unwrap()));
        assert!(!wide.covers(&"::/0".parse().unwrap()));
        assert!("::/0".parse::<Ipv6Prefix>().unwrap().covers(&wide));
    }

    #[test]
    fn packs_and_unpacks() {
        let four: Ipv4Prefix = "192.0.2.0/24".parse().unwrap();
        assert_eq!(u32::unpack(u32::pack(four)), four);
        let six: Ipv6Prefix = "2001:db8:1234:5678:9abc:def0::/96".parse().unwrap();
        assert_eq!(u128::unpack(u128::pack(six)), six);
        assert_eq!(size_of::<(<u32 as Address>::Packed, u32)>(), 12);
        assert_eq!(size_of::<(<u128 as Address>::Packed, u32)>(), 24);
    }

    #[test]
    fn reads_network_order_of_exact_length() {
        let bytes: Vec<u8> = (1..=16).collect();
        assert_eq!(u32::from_bytes(&bytes[..4]), Some(0x0102_0304));
        assert_eq!(u128::from_bytes(&bytes), Some(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10));
        assert_eq!((u32::from_bytes(&bytes), u128::from_bytes(&bytes[..4])), (None, None));
        assert_eq!((u32::FAMILY, u128::FAMILY), (Family::V4, Family::V6));
    }

    #[test]
    fn errors_say_what_is_wrong() {
        assert_eq!("192.0.2.1/24".parse::<Ipv4Prefix>(), Err(NotAPrefix::HostBitsSet));
        assert_eq!("192.0.2.0/33".parse::<Ipv4Prefix>(), Err(NotAPrefix::Length));
        assert_eq!("fe80::/10".parse::<Ipv4Prefix>(), Err(NotAPrefix::Address));
        assert_eq!("0.0.0.0/0".parse::<Ipv4Prefix>().unwrap().last(), u32::MAX);
    }
}
