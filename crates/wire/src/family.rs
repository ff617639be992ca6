//! The two address families.

use std::fmt;
use std::net::IpAddr;

/// `AF_INET` of Linux.
const AF_INET: u8 = 2;
/// `AF_INET6` of Linux.
const AF_INET6: u8 = 10;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, IPv4 first.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The family with this `AF_` number; `None` for any other number.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            AF_INET => Some(Self::V4),
            AF_INET6 => Some(Self::V6),
            _ => None,
        }
    }

    /// Its `AF_` number in Linux.
    pub fn number(self) -> u8 {
        match self {
            Self::V4 => AF_INET,
            Self::V6 => AF_INET6,
        }
    }

    /// IPv6 for IPv4, and IPv4 for IPv6.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_linux() {
        assert_eq!(Family::BOTH.map(Family::number), [2, 10]);
        for number in 0..=u8::MAX {
            let family = Family::from_number(number);
            assert_eq!(family.is_some(), [2, 10].contains(&number), "{number}");
            assert_eq!(family.map_or(number, Family::number), number);
        }
    }

    #[test]
    fn addresses_know_their_family() {
        assert_eq!(Family::of(&"192.0.2.1".parse().unwrap()), Family::V4);
        assert_eq!(Family::of(&"2001:db8::1".parse().unwrap()), Family::V6);
        assert_eq!(Family::BOTH.map(|family| family.to_string()), ["IPv4", "IPv6"]);
        assert_eq!(Family::BOTH.map(Family::other), [Family::V6, Family::V4]);
    }
}
