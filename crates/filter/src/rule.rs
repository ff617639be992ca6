//! Rules: as users write them, and flat, as packets are compared with them.

use crate::key::{
    DESTINATION, EXTENSIONS, INTERFACE, IPV6_SHIFT, KIND, Key, Kind, PORTS, PROTOCOL, SOURCE, TRUNCATED,
    words,
};
use bm_wire::prefix::{Address, Ipv4Prefix, Ipv6Prefix, Prefix};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// What happens to a packet that a rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// It is forwarded.
    #[default]
    Accept,
    /// It is dropped, and counted.
    Drop,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accept => "accept",
            Self::Drop => "drop",
        })
    }
}

/// A prefix of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnyPrefix {
    /// IPv4.
    V4(Ipv4Prefix),
    /// IPv6.
    V6(Ipv6Prefix),
}

impl AnyPrefix {
    /// Whether it is an IPv6 prefix.
    pub fn is_ipv6(&self) -> bool {
        matches!(self, Self::V6(_))
    }

    /// First address and mask as four words each; for IPv4 only the first word is used.
    fn flat(&self) -> ([u32; 4], [u32; 4]) {
        match self {
            Self::V4(prefix) => ([prefix.first(), 0, 0, 0], [u32::mask(prefix.length()), 0, 0, 0]),
            Self::V6(prefix) => (words(prefix.first()), words(u128::mask(prefix.length()))),
        }
    }
}

impl fmt::Display for AnyPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(prefix) => write!(f, "{prefix}"),
            Self::V6(prefix) => write!(f, "{prefix}"),
        }
    }
}

/// The text is not a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPrefix;

impl FromStr for AnyPrefix {
    type Err = NoPrefix;

    /// `192.0.2.0/24`, `2001:db8::/32`; a single address is a prefix of full length. Bits past the length must be
    /// zero, since otherwise something else was meant.
    fn from_str(text: &str) -> Result<Self, NoPrefix> {
        use std::net::IpAddr;
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse::<u8>().map_err(|_| NoPrefix)?)),
            None => (text, None),
        };
        match address.parse().map_err(|_| NoPrefix)? {
            IpAddr::V4(address) => exact(u32::from(address), length).map(Self::V4),
            IpAddr::V6(address) => exact(u128::from(address), length).map(Self::V6),
        }
    }
}

fn exact<A: Address>(address: A, length: Option<u8>) -> Result<Prefix<A>, NoPrefix> {
    let prefix = Prefix::containing(address, length.unwrap_or(A::WIDTH)).ok_or(NoPrefix)?;
    if prefix.first() == address { Ok(prefix) } else { Err(NoPrefix) }
}

/// A range of ports, both ends included.
pub type Ports = RangeInclusive<u16>;

/// A rule. `None` matches anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Its name, under which packets are counted; rules with the same name share a counter.
    pub name: String,
    /// What happens to matching packets.
    pub action: Action,
    /// The source prefix.
    pub source: Option<AnyPrefix>,
    /// The destination prefix; of the same family.
    pub destination: Option<AnyPrefix>,
    /// The protocol, or the last next header of IPv6.
    pub protocol: Option<u8>,
    pub source_ports: Option<Ports>,
    pub destination_ports: Option<Ports>,
    /// Name of the port on which packets arrive.
    pub port: Option<String>,
}

impl fmt::Display for Rule {
    /// What it matches: `tcp from 192.0.2.0/24 to any port 23 in on eth0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            Some(6) => f.write_str("tcp ")?,
            Some(17) => f.write_str("udp ")?,
            Some(1) => f.write_str("icmp ")?,
            Some(58) => f.write_str("icmpv6 ")?,
            Some(protocol) => write!(f, "protocol {protocol} ")?,
            None => {}
        }
        f.write_str("from ")?;
        write_side(f, self.source, self.source_ports.as_ref())?;
        f.write_str(" to ")?;
        write_side(f, self.destination, self.destination_ports.as_ref())?;
        self.port.as_ref().map_or(Ok(()), |port| write!(f, " in on {port}"))
    }
}

/// Writes the source or the destination of a rule: `192.0.2.0/24 port 80`.
fn write_side(f: &mut fmt::Formatter<'_>, prefix: Option<AnyPrefix>, ports: Option<&Ports>) -> fmt::Result {
    match prefix {
        Some(prefix) => write!(f, "{prefix}")?,
        None => f.write_str("any")?,
    }
    match ports {
        Some(ports) if ports.start() == ports.end() => write!(f, " port {}", ports.start()),
        Some(ports) => write!(f, " ports {}-{}", ports.start(), ports.end()),
        None => Ok(()),
    }
}

fn has_ports(rule: &Rule) -> bool {
    rule.source_ports.is_some() || rule.destination_ports.is_some()
}

/// The maximum number of flat rules.
pub const ROOM_RULES: usize = 1 << 14;
/// The counter of packets that match no rule.
pub const UNMATCHED: u16 = ROOM_RULES as u16;

/// The value for any interface.
const ANY_INTERFACE: u16 = u16::MAX;
/// The bits of all kinds for IPv4, for IPv6, and for both.
const IPV4_KINDS: u8 = Kind::Ports as u8 | Kind::Later as u8 | Kind::None as u8;
const IPV6_KINDS: u8 = IPV4_KINDS << IPV6_SHIFT;
const ALL_KINDS: u8 = IPV4_KINDS | IPV6_KINDS;
const KINDS_OF_PORTS: u8 = Kind::Ports as u8 | (Kind::Ports as u8) << IPV6_SHIFT;
const KINDS_OF_LATER: u8 = Kind::Later as u8 | (Kind::Later as u8) << IPV6_SHIFT;

/// The number of bits of [`Flat::specifics`].
pub(crate) const SIDES: usize = 3;

/// A rule in the form that packets are compared with: `struct filter_rule` of crates/fastpath/bpf/rules.h. The part
/// for IPv4 packets is within 32 bytes.
///
/// Shared with the program as a copy in the map's memory (`bm-fastpath`); here it never changes behind a reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C, align(32))]
pub struct Flat {
    /// First words of the source and its mask, then of the destination and its mask.
    pub first: [u32; 4],
    /// Least and greatest source port, then destination port.
    pub ports: [u16; 4],
    /// brickmoon's index of the interface; all ones for any.
    pub interface: u16,
    /// Number of its counter.
    pub counter: u16,
    /// Least and greatest protocol.
    pub protocol: [u8; 2],
    /// The packets it applies to, with a bit for each [`Kind`] and family.
    pub kinds: u8,
    /// Whether packets are dropped.
    pub drops: u8,
    /// The remaining words of source, its mask, destination, its mask.
    pub rest: [[u32; 3]; 4],
    /// Padding to a full cache line.
    pub unused: [u32; 4],
}

impl Flat {
    /// A rule that matches every packet.
    fn any(action: Action, counter: u16) -> Self {
        Self {
            ports: [0, u16::MAX, 0, u16::MAX],
            interface: ANY_INTERFACE,
            counter,
            protocol: [0, u8::MAX],
            kinds: ALL_KINDS,
            drops: u8::from(action == Action::Drop),
            ..Self::default()
        }
    }

    /// The one or two flat rules for a rule; `counter` is the number of its counter, `interface` that of its port.
    ///
    /// Only the first fragment of a packet contains ports. If a rule accepts some ports, later fragments are accepted
    /// as well, because they are useless without the first; if it drops some, later fragments do not match.
    pub fn from_rule(
        rule: &Rule,
        counter: u16,
        interface: Option<u16>,
    ) -> impl Iterator<Item = Self> + use<> {
        let mut flat = Self::any(rule.action, counter);
        flat.interface = interface.unwrap_or(ANY_INTERFACE);
        for (side, prefix) in [&rule.source, &rule.destination].into_iter().enumerate() {
            let Some(prefix) = prefix else { continue };
            flat.kinds &= if prefix.is_ipv6() { IPV6_KINDS } else { IPV4_KINDS };
            let (address, mask) = prefix.flat();
            (flat.first[2 * side], flat.first[2 * side + 1]) = (address[0], mask[0]);
            flat.rest[2 * side].copy_from_slice(&address[1..]);
            flat.rest[2 * side + 1].copy_from_slice(&mask[1..]);
        }
        if let Some(protocol) = rule.protocol {
            flat.protocol = [protocol; 2];
        }
        let mut later = [None; 2];
        if has_ports(rule) {
            if rule.action == Action::Accept {
                // One for each family: they are in different parts of the tree.
                later = [IPV4_KINDS, IPV6_KINDS]
                    .map(|family| flat.kinds & family & KINDS_OF_LATER)
                    .map(|kinds| (kinds != 0).then_some(Self { kinds, ..flat }));
            }
            flat.kinds &= KINDS_OF_PORTS;
        }
        flat.set_ports(rule);
        std::iter::once(flat).chain(later.into_iter().flatten())
    }

    /// A flat rule that matches every packet that *may* match the rule: including those whose ports are in another
    /// fragment or whose header is truncated, and IPv6 packets whose protocol follows extension headers.
    pub fn may_match(rule: &Rule, interface: Option<u16>) -> impl Iterator<Item = Self> + use<> {
        let addresses = Rule {
            action: Action::Accept,
            source: rule.source,
            destination: rule.destination,
            ..Rule::default()
        };
        let any = Self::from_rule(&addresses, 0, interface).next().unwrap_or_default();
        let behind = any.kinds & IPV6_KINDS != 0 && (rule.protocol.is_some() || has_ports(rule));
        let behind = behind.then_some(Self { kinds: EXTENSIONS, ..any });
        let of_protocol =
            Self { protocol: rule.protocol.map_or(any.protocol, |protocol| [protocol; 2]), ..any };
        let truncated = if any.kinds & IPV4_KINDS != 0 { TRUNCATED } else { 0 };
        let without_ports =
            has_ports(rule).then_some(Self { kinds: any.kinds & !KINDS_OF_PORTS | truncated, ..of_protocol });
        let mut exact = of_protocol;
        if has_ports(rule) {
            exact.kinds &= KINDS_OF_PORTS;
            exact.set_ports(rule);
        }
        std::iter::once(exact).chain(without_ports).chain(behind)
    }

    fn set_ports(&mut self, rule: &Rule) {
        for (side, ports) in [&rule.source_ports, &rule.destination_ports].into_iter().enumerate() {
            if let Some(ports) = ports {
                (self.ports[2 * side], self.ports[2 * side + 1]) = (*ports.start(), *ports.end());
            }
        }
    }

    /// Whether it matches a packet.
    pub fn matches(&self, key: &Key) -> bool {
        if key.is_ipv6() { self.matches_ipv6(key) } else { self.matches_ipv4(key) }
    }

    /// Whether it matches an IPv4 packet, without a branch: which comparison fails is different for each packet.
    #[inline(always)]
    pub(crate) fn matches_ipv4(&self, Key(key): &Key) -> bool {
        let [source, source_mask, destination, destination_mask] = self.first;
        let addresses =
            (key[SOURCE] ^ source) & source_mask | (key[DESTINATION] ^ destination) & destination_mask;
        // A number is within a range if it is no farther above its start than its end is.
        let outside = |number: u16, [least, greatest]: [u16; 2]| {
            number.wrapping_sub(least) > greatest.wrapping_sub(least)
        };
        let [from, to, least, greatest] = self.ports;
        let ports = key[PORTS];
        let [first, last] = self.protocol.map(u16::from);
        let others = outside((ports >> 16) as u16, [from, to])
            | outside(ports as u16, [least, greatest])
            | outside(key[PROTOCOL] as u16, [first, last])
            | (self.interface != ANY_INTERFACE) & (u32::from(self.interface) != key[INTERFACE])
            | (u32::from(self.kinds) & key[KIND] == 0);
        (addresses == 0) & !others
    }

    pub(crate) fn matches_ipv6(&self, Key(key): &Key) -> bool {
        let port = [key[PORTS] >> 16, key[PORTS] & 0xffff].map(|port| port as u16);
        let within = |at: usize| (self.ports[2 * at]..=self.ports[2 * at + 1]).contains(&port[at]);
        let address = |side: usize, at: usize| {
            let (address, mask) = self.word(side, at);
            (key[[SOURCE, DESTINATION][side] + at] ^ address) & mask == 0
        };
        (0..4).all(|at| address(0, at) && address(1, at))
            && within(0)
            && within(1)
            && (u32::from(self.protocol[0])..=u32::from(self.protocol[1])).contains(&key[PROTOCOL])
            && (self.interface == ANY_INTERFACE || u32::from(self.interface) == key[INTERFACE])
            && u32::from(self.kinds) & key[KIND] != 0
    }

    /// A word of the source (0) or destination (1) with its mask.
    pub(crate) fn word(&self, side: usize, at: usize) -> (u32, u32) {
        match at.checked_sub(1) {
            None => (self.first[2 * side], self.first[2 * side + 1]),
            Some(at) => (self.rest[2 * side][at], self.rest[2 * side + 1][at]),
        }
    }

    /// A bit for each of source, destination and ports, set if the rule matches few of their values.
    pub(crate) fn specifics(&self) -> usize {
        let [_, source, _, destination] = self.first;
        let [from, to, least, greatest] = self.ports;
        let is_few = |from: u16, to: u16| to.saturating_sub(from) < 1 << 12;
        let sides = [
            source.leading_ones() >= 8,
            destination.leading_ones() >= 8,
            is_few(from, to) || is_few(least, greatest),
        ];
        sides.iter().enumerate().fold(0, |bits, (side, is_specific)| bits | usize::from(*is_specific) << side)
    }

    /// Whether it applies to packets that arrive on an interface; `None` for one that no rule mentions.
    pub(crate) fn is_on(&self, interface: Option<u16>) -> bool {
        self.interface == ANY_INTERFACE || Some(self.interface) == interface
    }

    /// The interface, if it applies to one only.
    pub(crate) fn only_interface(&self) -> Option<u16> {
        (self.interface != ANY_INTERFACE).then_some(self.interface)
    }

    /// Whether it depends on more than the fields that the tree cuts.
    pub(crate) fn compares_more(&self) -> bool {
        self.interface != ANY_INTERFACE || ![IPV4_KINDS, IPV6_KINDS, ALL_KINDS].contains(&self.kinds)
    }

    /// Least and greatest value of the bit for later fragments, of IPv6 if `shift` is [`IPV6_SHIFT`].
    pub(crate) fn later(&self, shift: u32) -> (u32, u32) {
        let later = (Kind::Later as u8) << shift;
        // Packets of the other family do not have the bit either. Those with a flag may have it or not.
        (u32::from(self.kinds == later), u32::from(self.kinds & (later | EXTENSIONS | TRUNCATED) != 0))
    }

    /// Least and greatest value of [`Key`]'s word for the family.
    pub(crate) fn families(&self) -> (u32, u32) {
        (u32::from(self.kinds & IPV4_KINDS == 0), u32::from(self.kinds & (IPV6_KINDS | EXTENSIONS) != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_with_host_bits_are_rejected() {
        let read = |text: &str| text.parse::<AnyPrefix>().map(|prefix| prefix.to_string());
        assert_eq!(read("192.0.2.0/24").as_deref(), Ok("192.0.2.0/24"));
        assert_eq!(read("192.0.2.7").as_deref(), Ok("192.0.2.7/32"));
        assert_eq!(read("2001:db8::/32").as_deref(), Ok("2001:db8::/32"));
        for wrong in ["192.0.2.1/24", "192.0.2.0/33", "2001:db8::1/64", "eth0", "", "192.0.2.0/"] {
            assert_eq!(read(wrong), Err(NoPrefix), "{wrong}");
        }
    }

    #[test]
    fn later_fragments_match_rules_that_accept_by_port() {
        let web =
            |action| Rule { action, protocol: Some(6), destination_ports: Some(80..=80), ..Rule::default() };
        let flat = |action| Flat::from_rule(&web(action), 0, None).collect::<Vec<_>>();
        let key =
            |ports: Option<(u16, u16)>, kind| Key::new([[1; 4].into(), [2; 4].into()], 6, ports, kind, 3);
        let (first, other, later) =
            (key(Some((9, 80)), Kind::Ports), key(Some((80, 9)), Kind::Ports), key(None, Kind::Later));
        let any = |flat: &[Flat], key: &Key| flat.iter().any(|rule| rule.matches(key));
        let (accepts, drops) = (flat(Action::Accept), flat(Action::Drop));
        assert_eq!([&first, &other, &later].map(|key| any(&accepts, key)), [true, false, true]);
        assert_eq!([&first, &other, &later].map(|key| any(&drops, key)), [true, false, false]);
        assert!(!any(&accepts, &key(None, Kind::None)), "cut off before its ports");
    }

    #[test]
    fn rules_match_if_a_match_cannot_be_excluded() {
        let rule = Rule { protocol: Some(6), destination_ports: Some(80..=80), ..Rule::default() };
        let flat: Vec<_> = Flat::may_match(&rule, None).collect();
        let may = |key: Key| flat.iter().any(|rule| rule.matches(&key));
        let of = |addresses: [&str; 2], protocol, ports, kind| {
            Key::new(addresses.map(|address| address.parse().unwrap()), protocol, ports, kind, 3)
        };
        let four = |protocol, ports, kind| of(["192.0.2.1", "198.51.100.1"], protocol, ports, kind);
        let six = |protocol, ports, kind| of(["2001:db8::1", "2001:db8::2"], protocol, ports, kind);
        assert!(may(four(6, Some((9, 80)), Kind::Ports)) && may(six(6, Some((9, 80)), Kind::Ports)));
        assert!(may(four(6, None, Kind::Later)) && may(four(6, None, Kind::None)), "its ports are elsewhere");
        assert!(!may(four(6, Some((80, 9)), Kind::Ports)) && !may(four(17, None, Kind::Later)));
        // Linux may drop it before it compares ports.
        let truncated = |key: Key| may(key.with_truncated_header());
        assert!(
            truncated(four(6, Some((80, 9)), Kind::Ports)) && truncated(six(6, Some((80, 9)), Kind::Ports))
        );
        assert!(!truncated(four(17, Some((80, 9)), Kind::Ports)));
        assert!(!may(six(60, None, Kind::Later)) && may(six(60, None, Kind::Later).with_extensions()));
        let narrow = Rule { source: "192.0.2.0/24".parse().ok(), ..rule };
        let flat: Vec<_> = Flat::may_match(&narrow, Some(3)).collect();
        let may = |key: Key| flat.iter().any(|rule| rule.matches(&key));
        assert!(may(four(6, Some((9, 80)), Kind::Ports)));
        assert!(!may(six(6, None, Kind::Later).with_extensions()), "of the other family");
        let to = Rule { destination: "198.51.100.0/25".parse().ok(), ..narrow };
        let to: Vec<_> = Flat::may_match(&to, None).collect();
        let beyond = of(["192.0.2.1", "198.51.100.200"], 6, Some((9, 80)), Kind::Ports);
        assert!(!to.iter().any(|rule| rule.matches(&beyond)), "to another destination");
        assert!(to.iter().any(|rule| rule.matches(&four(6, Some((9, 80)), Kind::Ports))));
        let mut elsewhere = four(6, Some((9, 80)), Kind::Ports);
        elsewhere.set_interface(4);
        assert!(!may(elsewhere));
    }

    #[test]
    fn layout_matches_the_program() {
        assert_eq!((size_of::<Flat>(), align_of::<Flat>()), (96, 32));
        assert_eq!(std::mem::offset_of!(Flat, kinds), 30);
        assert_eq!(std::mem::offset_of!(Flat, rest), 32);
    }
}
