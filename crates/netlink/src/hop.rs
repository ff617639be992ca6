//! A next hop of a route: gateway, interface and weight; and the ways in which a route refers to next hops.

use crate::attribute::{self, Attributes};
use crate::error::Malformed;
use std::fmt;
use std::net::IpAddr;

/// Attribute types of a hop within a route (`RTA_*`).
mod rta {
    pub(crate) const GATEWAY: u16 = 5;
    pub(crate) const FLOW: u16 = 11;
    pub const VIA: u16 = 18;
    pub(crate) const ENCAP_TYPE: u16 = 21;
    pub(crate) const ENCAP: u16 = 22;
    pub(crate) const TTL_PROPAGATE: u16 = 26;
}

/// Fixed part of a hop within a list: length, flags, weight less one, interface.
const NEXTHOP: usize = 8;

/// The kernel's flags of a next hop (`RTNH_F_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HopFlags(pub u8);

impl HopFlags {
    /// Its interface was down when the route met it, or lost its last address: not used.
    pub const DEAD: u8 = 1;
    /// The gateway is assumed to be on the link, whatever its address.
    pub const ONLINK: u8 = 4;
    /// Its interface has no carrier: not used if the interface is set to ignore such routes.
    pub const LINKDOWN: u8 = 16;
    /// The bits that we keep; the others speak of hardware offload.
    const KEPT: u8 = Self::DEAD | Self::ONLINK | Self::LINKDOWN;
    /// The bits that change with the link rather than with the route.
    pub(crate) const LIVENESS: u8 = Self::DEAD | Self::LINKDOWN;

    /// The bits that we keep of the kernel's.
    pub(crate) fn kept(bits: u32) -> Self {
        Self(bits as u8 & Self::KEPT)
    }

    /// Whether all bits of `flag` are set.
    pub fn has(self, flag: u8) -> bool {
        self.0 & flag == flag
    }
}

/// A next hop of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hop {
    /// The router to send to; `None` if the destination itself is on the link. An IPv4 route may have an IPv6 gateway
    /// (RFC 8950).
    pub gateway: Option<IpAddr>,
    /// Interface; 0 where the route has none.
    pub ifindex: u32,
    /// Share among the hops of a route, at least 1.
    pub weight: u16,
    /// The kernel's flags.
    pub flags: HopFlags,
    /// Type of the encapsulation (`LWTUNNEL_ENCAP_*`); 0 for none. Linux has to forward such routes.
    pub encap: u16,
    /// Stands for what else distinguishes it in Linux: its realm, and the content of the encapsulation.
    pub others: u64,
}

impl Hop {
    /// A hop through a gateway on an interface.
    pub fn via(gateway: IpAddr, ifindex: u32) -> Self {
        Self { gateway: Some(gateway), ifindex, weight: 1, ..Self::default() }
    }

    /// A hop straight onto the link of an interface.
    pub fn link(ifindex: u32) -> Self {
        Self { ifindex, weight: 1, ..Self::default() }
    }

    /// Equal except for what changes with the link's state.
    pub(crate) fn same_place(&self, other: &Self) -> bool {
        (self.gateway, self.ifindex, self.weight, self.encap, self.others)
            == (other.gateway, other.ifindex, other.weight, other.encap, other.others)
            && (self.flags.0 ^ other.flags.0) & !HopFlags::LIVENESS == 0
    }

    /// Reads attribute `kind` if it belongs to a next hop; `false` if not.
    #[inline]
    pub(crate) fn take(&mut self, kind: u16, value: &[u8]) -> Result<bool, Malformed> {
        match kind {
            rta::GATEWAY => self.gateway = Some(attribute::address(kind, value)?),
            // The family in two bytes, followed by the address.
            rta::VIA => self.gateway = Some(attribute::address(kind, value.get(2..).unwrap_or_default())?),
            rta::ENCAP_TYPE => self.encap = attribute::number_u16(kind, value)?,
            rta::FLOW | rta::ENCAP | rta::TTL_PROPAGATE => self.add_other(kind, value),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Adds an attribute to [`Self::others`]. A digest, so that a hop needs no memory of its own; if two were the
    /// same, the routes would look the same, and a deletion of one would make the mirror read them again.
    fn add_other(&mut self, kind: u16, value: &[u8]) {
        const PRIME: u64 = 0x0100_0000_01b3;
        let bytes = kind.to_ne_bytes().into_iter().chain(value.iter().copied());
        self.others =
            bytes.fold(self.others, |sum, byte| (sum ^ u64::from(byte) ^ 0xcbf2).wrapping_mul(PRIME));
    }

    /// Appends this hop's own attributes to a message of a route whose gateways are `six` or not.
    pub(crate) fn put(&self, message: &mut Vec<u8>, six: bool) {
        match self.gateway {
            Some(gateway) if gateway.is_ipv6() != six => attribute::put_nested(message, rta::VIA, |value| {
                value.extend_from_slice(&u16::from(crate::Family::of(&gateway).number()).to_ne_bytes());
                crate::family::with_bytes(&gateway, |bytes| value.extend_from_slice(bytes));
            }),
            Some(gateway) => attribute::put_address(message, rta::GATEWAY, &gateway),
            None => {}
        }
        if self.encap != 0 {
            attribute::put(message, rta::ENCAP_TYPE, &self.encap.to_ne_bytes());
            attribute::put(message, rta::ENCAP, &[]);
        }
    }
}

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gateway {
            Some(gateway) => write!(f, "via {gateway} dev {}", self.ifindex)?,
            None => write!(f, "dev {}", self.ifindex)?,
        }
        if self.weight > 1 {
            write!(f, " weight {}", self.weight)?;
        }
        if self.encap != 0 {
            write!(f, " encap {}", self.encap)?;
        }
        for (flag, name) in
            [(HopFlags::ONLINK, "onlink"), (HopFlags::DEAD, "dead"), (HopFlags::LINKDOWN, "linkdown")]
        {
            if self.flags.has(flag) {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}

/// How a route refers to its next hops. A single next hop is stored in place, since most routes have one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Via {
    /// No next hop: the kind of the route says everything.
    #[default]
    Nowhere,
    /// One next hop.
    One(Hop),
    /// Several, shared by weight.
    Many(Box<[Hop]>),
    /// A next-hop object or group, by number.
    Object(u32),
}

impl Via {
    /// From a list of hops.
    pub fn from_hops(hops: Vec<Hop>) -> Self {
        match hops.as_slice() {
            [] => Self::Nowhere,
            [hop] => Self::One(*hop),
            _ => Self::Many(hops.into()),
        }
    }

    /// Whether it is a next-hop object.
    pub fn is_object(&self) -> bool {
        matches!(self, Self::Object(_))
    }

    /// The hops that are named in place; none for an object.
    pub fn hops(&self) -> &[Hop] {
        match self {
            Self::Nowhere | Self::Object(_) => &[],
            Self::One(hop) => std::slice::from_ref(hop),
            Self::Many(hops) => hops,
        }
    }

    /// The hops that are named in place, to change.
    pub(crate) fn hops_mut(&mut self) -> &mut [Hop] {
        match self {
            Self::Nowhere | Self::Object(_) => &mut [],
            Self::One(hop) => std::slice::from_mut(hop),
            Self::Many(hops) => hops,
        }
    }

    /// Whether both have the same next hops in the same order, except for what changes with the state of links.
    pub(crate) fn same_places(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Object(one), Self::Object(two)) => one == two,
            (Self::Object(_), _) | (_, Self::Object(_)) => false,
            _ => {
                let (one, two) = (self.hops(), other.hops());
                one.len() == two.len() && one.iter().zip(two).all(|(one, two)| one.same_place(two))
            }
        }
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => Ok(()),
            Self::One(hop) => write!(f, "{hop}"),
            Self::Many(hops) => {
                for (index, hop) in hops.iter().enumerate() {
                    write!(f, "{}nexthop {hop}", if index == 0 { "" } else { " " })?;
                }
                Ok(())
            }
            Self::Object(id) => write!(f, "nhid {id}"),
        }
    }
}

/// The hops of a list (`RTA_MULTIPATH`).
pub(crate) fn read_list(kind: u16, mut list: &[u8]) -> Result<Vec<Hop>, Malformed> {
    let mut hops = Vec::new();
    while list.len() >= NEXTHOP {
        let length = usize::from(u16::from_ne_bytes([list[0], list[1]]));
        if length < NEXTHOP || length > list.len() {
            return Err(Malformed::Value { kind, length: list.len() });
        }
        let mut hop = Hop {
            flags: HopFlags::kept(u32::from(list[2])),
            weight: u16::from(list[3]) + 1,
            ifindex: attribute::number_u32(kind, &list[4..8])?,
            ..Hop::default()
        };
        for attribute in Attributes::new(&list[NEXTHOP..length]) {
            let (kind, value) = attribute?;
            hop.take(kind, value)?;
        }
        hops.push(hop);
        list = &list[attribute::aligned(length).min(list.len())..];
    }
    Ok(hops)
}

/// Appends a list of hops as the value of an attribute.
pub(crate) fn put_list(message: &mut Vec<u8>, hops: &[Hop], six: bool) {
    for hop in hops {
        let start = message.len();
        let weight = hop.weight.clamp(1, 256) - 1;
        message.extend_from_slice(&[0, 0, hop.flags.0 & HopFlags::ONLINK, weight as u8]);
        message.extend_from_slice(&hop.ifindex.to_ne_bytes());
        hop.put(message, six);
        let length = (message.len() - start) as u16;
        message[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two hops: via 192.0.2.1 dev 3 weight 2, and via fe80::1 (RTA_VIA) dev 4, dead and without carrier.
    const LIST: [u8; 48] = [
        16, 0, 0, 1, 3, 0, 0, 0, 8, 0, 5, 0, 192, 0, 2, 1, //
        32, 0, 17, 0, 4, 0, 0, 0, 22, 0, 18, 0, 10, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
        0, 0,
    ];

    #[test]
    fn reads_and_writes_a_list_of_hops() {
        let hops = read_list(9, &LIST).unwrap();
        let first = Hop { weight: 2, ..Hop::via("192.0.2.1".parse().unwrap(), 3) };
        let second = Hop { flags: HopFlags(17), ..Hop::via("fe80::1".parse().unwrap(), 4) };
        assert_eq!(hops, [first, second]);
        let mut written = Vec::new();
        put_list(&mut written, &hops, false);
        let mut expected = LIST;
        expected[18] = 0; // the kernel says what is dead, we do not
        assert_eq!(written, expected);
    }

    #[test]
    fn rejects_hops_longer_than_the_list() {
        let mut list = LIST;
        list[16] = 33;
        assert_eq!(read_list(9, &list), Err(Malformed::Value { kind: 9, length: 32 }));
        list[16] = 7;
        assert_eq!(read_list(9, &list), Err(Malformed::Value { kind: 9, length: 32 }));
    }
}
