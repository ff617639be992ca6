//! What is known about the packets that a rule matches.
//!
//! Rules compare bytes of headers under masks, so that is what is stored: which bits of the network and the transport
//! header must have which value. [`Condition::traffic`] converts it to what a [`Match`] can express and drops the
//! rest, which only makes it wider.

use super::names::{Device, NamedInterface, Names};
use super::{Addresses, Match, Traffic};
use bm_wire::Family;
use bm_wire::prefix::{Address, Prefix};
use std::ops::RangeInclusive;

/// Bytes of the network header that are kept: an IPv6 header.
const NETWORK: usize = 40;
/// Bytes of the transport header that are kept: its ports.
const TRANSPORT: usize = 4;
/// Next headers of IPv6 that are followed by another one.
const EXTENSIONS: [u8; 8] = [0, 43, 44, 51, 60, 135, 139, 140];

/// Families that a chain or a policy sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Families {
    pub ipv4: bool,
    pub ipv6: bool,
}

impl Families {
    pub const BOTH: Self = Self { ipv4: true, ipv6: true };

    pub const fn only(family: Family) -> Self {
        Self { ipv4: matches!(family, Family::V4), ipv6: matches!(family, Family::V6) }
    }

    /// All packets of these.
    pub fn all(self) -> Traffic {
        Traffic::All { ipv4: self.ipv4, ipv6: self.ipv6 }
    }

    /// All fragments of these.
    pub fn fragments(self) -> Traffic {
        Traffic::Fragments { ipv4: self.ipv4, ipv6: self.ipv6 }
    }

    /// All ICMP errors about packets of these.
    pub fn errors(self) -> Traffic {
        Traffic::Errors { ipv4: self.ipv4, ipv6: self.ipv6 }
    }

    fn has(self, family: Family) -> bool {
        match family {
            Family::V4 => self.ipv4,
            Family::V6 => self.ipv6,
        }
    }

    fn single(self) -> Option<Family> {
        match self {
            Self { ipv4: true, ipv6: false } => Some(Family::V4),
            Self { ipv4: false, ipv6: true } => Some(Family::V6),
            _ => None,
        }
    }
}

/// Bytes of which some bits are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bits<const N: usize> {
    value: [u8; N],
    mask: [u8; N],
}

impl<const N: usize> Default for Bits<N> {
    fn default() -> Self {
        Self { value: [0; N], mask: [0; N] }
    }
}

impl<const N: usize> Bits<N> {
    /// Requires the bytes at `at` to be `value` where `mask` has ones. Bytes past the end are not stored.
    pub fn set(&mut self, at: usize, value: &[u8], mask: &[u8]) {
        for (index, (value, mask)) in value.iter().zip(mask).enumerate() {
            if let (Some(own), Some(known)) = (self.value.get_mut(at + index), self.mask.get_mut(at + index))
            {
                *own = *own & !mask | value & mask;
                *known |= mask;
            }
        }
    }

    /// A byte, if all of it is known.
    fn byte(&self, at: usize) -> Option<u8> {
        (self.mask[at] == 0xff).then_some(self.value[at])
    }

    /// The two bytes at `at` as a number, if all of it is known.
    fn port(&self, at: usize) -> Option<u16> {
        Some(u16::from_be_bytes([self.byte(at)?, self.byte(at + 1)?]))
    }

    /// How many bits at `at` are known before the first that is not, of `bytes` bytes.
    fn leading(&self, at: usize, bytes: usize) -> u8 {
        let mut count = 0;
        for mask in &self.mask[at..at + bytes] {
            count += mask.leading_ones() as u8;
            if *mask != 0xff {
                break;
            }
        }
        count
    }
}

/// The conditions for a packet to match; all must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Condition {
    pub input: Option<Device>,
    pub output: Option<Device>,
    pub family: Option<Family>,
    pub protocol: Option<u8>,
    pub network: Bits<NETWORK>,
    pub transport: Bits<TRANSPORT>,
    pub source_ports: Option<RangeInclusive<u16>>,
    pub destination_ports: Option<RangeInclusive<u16>>,
}

impl Condition {
    /// The packets that match both.
    pub fn and(&self, other: &Self) -> Self {
        let mut both = self.clone();
        // Where the two contradict each other nothing matches, and either is right.
        both.input = other.input.clone().or(both.input);
        both.output = other.output.clone().or(both.output);
        both.family = other.family.or(both.family);
        both.protocol = other.protocol.or(both.protocol);
        both.network.set(0, &other.network.value, &other.network.mask);
        both.transport.set(0, &other.transport.value, &other.transport.mask);
        both.source_ports = other.source_ports.clone().or(both.source_ports);
        both.destination_ports = other.destination_ports.clone().or(both.destination_ports);
        both
    }

    /// The packets of `families` that match, or a few more; none if there can be none as interfaces are now.
    pub fn traffic(&self, families: Families, names: &Names) -> Option<Traffic> {
        let family = self.family.or(families.single());
        if family.is_some_and(|family| !families.has(family)) {
            return None;
        }
        let [input, output] = [&self.input, &self.output].map(|device| Some(names.find(device.as_ref()?)));
        if [input, output].contains(&Some(NamedInterface::Nothing)) {
            return None;
        }
        let [input, output] = [input, output].map(|found| match found {
            Some(NamedInterface::Index(index)) => Some(index),
            _ => None,
        });
        let protocol = self.protocol(family);
        let [source_ports, destination_ports] = self.ports(protocol);
        let addresses = self.addresses(family);
        let matching = Match { input, protocol, addresses, source_ports, destination_ports };
        let open = Match { addresses: Addresses::Any, ..Match::default() };
        let unaddressed = !has_prefix(&matching.addresses);
        Some(match (&matching, output) {
            (matching, None) if unaddressed && anything_of_a_family(matching) => match family {
                Some(family) => Families::only(family).all(),
                None => families.all(),
            },
            // An interface is less specific than addresses or ports are.
            (matching, Some(output)) if unaddressed && anything_of_a_family(matching) => Traffic::Out(output),
            (matching, _) if Match { input: None, ..matching.clone() } == open => {
                matching.input.map_or(families.all(), Traffic::In)
            }
            _ => Traffic::Matching(matching),
        })
    }

    /// The protocol, if it is known; in IPv6 the last next header.
    pub(crate) fn protocol(&self, family: Option<Family>) -> Option<u8> {
        let by_header = match family {
            Some(Family::V4) => self.network.byte(9),
            Some(Family::V6) => self.network.byte(6).filter(|next| !EXTENSIONS.contains(next)),
            None => None,
        };
        self.protocol.or(by_header)
    }

    /// Source and destination ports, of protocols whose ports are always at the same place.
    fn ports(&self, protocol: Option<u8>) -> [Option<RangeInclusive<u16>>; 2] {
        if !protocol.is_some_and(|protocol| [libc::IPPROTO_TCP, libc::IPPROTO_UDP].contains(&protocol.into()))
        {
            return [None, None];
        }
        [(0, &self.source_ports), (2, &self.destination_ports)]
            .map(|(at, ports)| self.transport.port(at).map(|port| port..=port).or_else(|| ports.clone()))
    }

    fn addresses(&self, family: Option<Family>) -> Addresses {
        match family {
            None => Addresses::Any,
            Some(Family::V4) => Addresses::Ipv4(self.prefix(12), self.prefix(16)),
            Some(Family::V6) => Addresses::Ipv6(self.prefix(8), self.prefix(24)),
        }
    }

    /// The prefix that an address at `at` of the network header must have.
    fn prefix<A: Address>(&self, at: usize) -> Option<Prefix<A>> {
        let bytes = usize::from(A::WIDTH / 8);
        let length = self.network.leading(at, bytes);
        let address = A::from_bytes(&self.network.value[at..at + bytes])?;
        Prefix::containing(address, length).filter(|_| length > 0)
    }
}

/// Whether there is no condition beyond the family.
fn anything_of_a_family(matching: &Match) -> bool {
    let Match { input, protocol, source_ports, destination_ports, .. } = matching;
    input.is_none() && protocol.is_none() && source_ports.is_none() && destination_ports.is_none()
}

fn has_prefix(addresses: &Addresses) -> bool {
    match addresses {
        Addresses::Any => false,
        Addresses::Ipv4(source, destination) => source.is_some() || destination.is_some(),
        Addresses::Ipv6(source, destination) => source.is_some() || destination.is_some(),
    }
}
