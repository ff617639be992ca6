//! The parts of a packet that rules match, as words: the search can use bits of any of them.

use std::net::IpAddr;

use bm_wire::{Family, protocol};

/// Words of a key; unused ones are zero.
pub const WORDS: usize = 16;

/// Packets that are searched for together.
pub const TOGETHER: usize = 8;

pub(crate) const SOURCE: usize = 0;
pub(crate) const DESTINATION: usize = 4;
pub(crate) const PORTS: usize = 8;
pub(crate) const PROTOCOL: usize = 9;
pub(crate) const INTERFACE: usize = 10;
pub(crate) const KIND: usize = 11;
pub(crate) const FAMILY: usize = 12;

/// What is known about a packet's ports. A rule has a bit for each kind that it applies to; for IPv6 the same bits
/// are [`IPV6_SHIFT`] higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The packet has ports.
    Ports = 1,
    /// The ports were in an earlier fragment.
    Later = 2,
    /// The protocol has no ports, or they are truncated.
    None = 4,
}

impl Kind {
    /// The kind of a complete packet of a protocol.
    #[inline(always)]
    pub fn of(protocol: u8) -> Self {
        if protocol::has_ports(protocol) { Self::Ports } else { Self::None }
    }
}

/// How much higher the bits of a [`Kind`] are for IPv6.
pub(crate) const IPV6_SHIFT: u32 = 3;
/// A flag besides the kind of an IPv6 packet: it has extension headers, so its protocol depends on how far they are
/// parsed; or its TCP or UDP header is truncated.
pub const EXTENSIONS: u8 = 1 << 6;
/// A flag besides the kind of an IPv4 packet: its TCP or UDP header is truncated, as in a tiny first fragment. Any match
/// of iptables on that protocol drops such a packet, whatever its ports.
pub(crate) const TRUNCATED: u8 = 1 << 7;

/// The parts of a packet that rules match, in host order: source (0 to 3) and destination (4 to 7), where an IPv4
/// address is in the first word; ports, source port in the high half (8); protocol (9); brickmoon's index of the
/// interface (10); [`Kind`] (11); 1 for IPv6 (12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key(pub [u32; WORDS]);

/// An address of either family, in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnyAddress {
    /// IPv4.
    V4(u32),
    /// IPv6.
    V6(u128),
}

impl Key {
    /// The key of an IPv4 packet, without its interface: addresses, source first; ports, source port in the high
    /// half.
    pub fn ipv4([source, destination]: [u32; 2], protocol: u8, ports: u32, kind: Kind) -> Self {
        let mut key = Self([0; WORDS]);
        key.set_ipv4([source, destination], protocol, ports, kind);
        key
    }

    /// A key of this family that no rule matches.
    pub fn empty(family: Family) -> Self {
        let mut key = [0; WORDS];
        key[FAMILY] = u32::from(family == Family::V6);
        Self(key)
    }

    /// Overwrites an IPv4 key without flags, so that it is as [`ipv4`](Self::ipv4) makes it.
    #[inline(always)]
    pub fn set_ipv4(&mut self, [source, destination]: [u32; 2], protocol: u8, ports: u32, kind: Kind) {
        let Self(key) = self;
        (key[SOURCE], key[DESTINATION], key[PORTS]) = (source, destination, ports);
        (key[PROTOCOL], key[KIND]) = (u32::from(protocol), kind as u32);
    }

    /// The key of an IPv6 packet: words of both addresses, source first.
    pub fn ipv6(addresses: [u32; 8], protocol: u8, ports: u32, kind: Kind) -> Self {
        let mut key = [0; WORDS];
        key[SOURCE..PORTS].copy_from_slice(&addresses);
        (key[PORTS], key[PROTOCOL]) = (ports, u32::from(protocol));
        (key[KIND], key[FAMILY]) = ((kind as u32) << IPV6_SHIFT, 1);
        Self(key)
    }

    /// The key of an IPv6 packet that has extension headers.
    #[must_use]
    pub fn with_extensions(mut self) -> Self {
        self.0[KIND] |= u32::from(EXTENSIONS);
        self
    }

    /// The key of a packet whose TCP or UDP header is truncated.
    #[must_use]
    pub fn with_truncated_header(mut self) -> Self {
        self.0[KIND] |= u32::from(if self.0[FAMILY] == 0 { TRUNCATED } else { EXTENSIONS });
        self
    }

    /// The key of a packet in the other direction: addresses and ports exchanged.
    #[must_use]
    pub fn reversed(mut self) -> Self {
        let Self(key) = &mut self;
        let (source, destination) = key[SOURCE..PORTS].split_at_mut(DESTINATION - SOURCE);
        source.swap_with_slice(destination);
        key[PORTS] = key[PORTS].rotate_left(16);
        self
    }

    /// Sets the interface on which the packet arrived.
    #[inline(always)]
    pub fn set_interface(&mut self, interface: u16) {
        self.0[INTERFACE] = u32::from(interface);
    }

    /// Whether the packet is IPv6.
    #[inline(always)]
    pub fn is_ipv6(&self) -> bool {
        self.0[FAMILY] != 0
    }

    /// The source address.
    pub fn source(&self) -> AnyAddress {
        self.address(SOURCE)
    }

    /// The destination address.
    pub fn destination(&self) -> AnyAddress {
        self.address(DESTINATION)
    }

    fn address(&self, at: usize) -> AnyAddress {
        match self.0[FAMILY] {
            0 => AnyAddress::V4(self.0[at]),
            _ => {
                let words = self.0[at..at + 4].iter();
                AnyAddress::V6(words.fold(0, |address, word| address << 32 | u128::from(*word)))
            }
        }
    }

    /// The key of a packet. Ports are 0 if `kind` says that there are none.
    pub fn new(
        addresses: [IpAddr; 2],
        protocol: u8,
        ports: Option<(u16, u16)>,
        kind: Kind,
        interface: u16,
    ) -> Self {
        let mut key = [0; WORDS];
        for (at, address) in [SOURCE, DESTINATION].into_iter().zip(addresses) {
            match address {
                IpAddr::V4(address) => key[at] = address.into(),
                IpAddr::V6(address) => key[at..at + 4].copy_from_slice(&words(address.into())),
            }
        }
        let six = u32::from(addresses[0].is_ipv6());
        let (source, destination) = ports.unwrap_or_default();
        key[PORTS] = u32::from(source) << 16 | u32::from(destination);
        key[PROTOCOL] = u32::from(protocol);
        key[INTERFACE] = u32::from(interface);
        key[KIND] = (kind as u32) << (IPV6_SHIFT * six);
        key[FAMILY] = six;
        Self(key)
    }
}

/// An IPv6 address as words, most significant first.
pub(crate) fn words(address: u128) -> [u32; 4] {
    [96, 64, 32, 0].map(|shift| (address >> shift) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip() {
        let [one, other]: [std::net::Ipv6Addr; 2] =
            ["2001:db8:1:2:3:4:5:6", "fe80::ffff:0:1"].map(|text| text.parse().unwrap());
        let key = Key::new([one.into(), other.into()], 6, None, Kind::None, 1);
        assert_eq!(key.source(), AnyAddress::V6(one.into()));
        assert_eq!(key.destination(), AnyAddress::V6(other.into()));
        let key = Key::ipv4([0xc000_0201, 0xc633_6407], 17, 0, Kind::None);
        assert_eq!(
            (key.source(), key.destination()),
            (AnyAddress::V4(0xc000_0201), AnyAddress::V4(0xc633_6407))
        );
    }

    #[test]
    fn the_other_direction_has_addresses_and_ports_exchanged() {
        for [one, other] in [["2001:db8:1:2:3:4:5:6", "fe80::ffff:0:1"], ["192.0.2.1", "198.51.100.7"]] {
            let [one, other]: [IpAddr; 2] = [one, other].map(|text| text.parse().unwrap());
            let key = |addresses, ports| Key::new(addresses, 6, Some(ports), Kind::Ports, 1);
            assert_eq!(key([one, other], (1, 2)).reversed(), key([other, one], (2, 1)));
        }
    }
}
