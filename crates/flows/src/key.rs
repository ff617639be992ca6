//! What a flow is found by, and what becomes of its packets: as programs say it, and as words of a packet in memory.

use crate::layout::{Flow, TRACKED};
use std::array;
use std::net::IpAddr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// A flow, as its packets arrive. Both addresses are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub source_port: u16,
    pub destination_port: u16,
    /// IANA's number: TCP or UDP.
    pub protocol: u8,
    /// Brickmoon's index of the interface on which they arrive.
    pub interface: u16,
}

/// How packets of a flow leave: with these addresses and ports. Both addresses are of the flow's family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// Brickmoon's index of the interface that Linux sends them through.
    pub out: u16,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub source_port: u16,
    pub destination_port: u16,
    /// `None` if Linux does not track it.
    pub connection: Option<Connection>,
}

/// What programs know a flow's connection by: they look it up from time to time, and end the flow if Linux does not have it
/// any more, or has it with other tuples, another mark or another state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    pub mark: u32,
    /// Zone of the flow's direction.
    pub zone: u16,
}

/// Addresses and ports as words of a packet in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Words {
    /// IPv4 in the first, the others 0.
    pub source: [u32; 4],
    pub destination: [u32; 4],
    /// Source, then destination.
    pub ports: u32,
}

/// A [`Key`] as an entry has it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedKey {
    pub words: Words,
    pub interface: u16,
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
}

/// 4 or 6, or none if the two differ.
fn family(source: IpAddr, destination: IpAddr) -> Option<u8> {
    match (source, destination) {
        (IpAddr::V4(_), IpAddr::V4(_)) => Some(4),
        (IpAddr::V6(_), IpAddr::V6(_)) => Some(6),
        _ => None,
    }
}

fn words_of(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(address) => [u32::from_ne_bytes(address.octets()), 0, 0, 0],
        IpAddr::V6(address) => {
            let bytes = address.octets();
            array::from_fn(|n| array::from_fn(|byte| bytes[4 * n + byte])).map(u32::from_ne_bytes)
        }
    }
}

fn address_of(words: [u32; 4], family: u8) -> IpAddr {
    if family == 4 {
        return IpAddr::from(words[0].to_ne_bytes());
    }
    IpAddr::from(array::from_fn::<u8, 16, _>(|byte| words[byte / 4].to_ne_bytes()[byte % 4]))
}

fn words_in(flow: &[AtomicU32; 4]) -> [u32; 4] {
    array::from_fn(|n| flow[n].load(Relaxed))
}

impl Words {
    fn new(source: IpAddr, destination: IpAddr, source_port: u16, destination_port: u16) -> Self {
        let ([a, b], [c, d]) = (source_port.to_be_bytes(), destination_port.to_be_bytes());
        let ports = u32::from_ne_bytes([a, b, c, d]);
        Self { source: words_of(source), destination: words_of(destination), ports }
    }

    /// With which packets of a flow leave.
    pub(crate) fn of_action(flow: &Flow) -> Self {
        Self {
            source: words_in(&flow.new_source),
            destination: words_in(&flow.new_destination),
            ports: flow.new_ports.load(Relaxed),
        }
    }

    /// With which packets of a flow arrive.
    fn of_key(flow: &Flow) -> Self {
        Self {
            source: words_in(&flow.source),
            destination: words_in(&flow.destination),
            ports: flow.ports.load(Relaxed),
        }
    }

    fn source_port(&self) -> u16 {
        let [a, b, ..] = self.ports.to_ne_bytes();
        u16::from_be_bytes([a, b])
    }

    fn destination_port(&self) -> u16 {
        let [.., a, b] = self.ports.to_ne_bytes();
        u16::from_be_bytes([a, b])
    }

    /// By how much the ones' complement sum of the addresses grows if these take the place of `old`.
    pub(crate) fn addresses_grow(&self, old: &Self) -> u16 {
        fold(growth(old.source, self.source) + growth(old.destination, self.destination))
    }

    /// By how much that of the ports grows.
    pub(crate) fn ports_grow(&self, old: &Self) -> u16 {
        fold(growth([old.ports], [self.ports]))
    }
}

/// The sum of `new` minus that of `old`, not folded yet: in ones' complement the complement is the negative (RFC 1624).
fn growth<const N: usize>(old: [u32; N], new: [u32; N]) -> u32 {
    old.iter().map(|word| halves(!word)).sum::<u32>() + new.into_iter().map(halves).sum::<u32>()
}

/// The sum of the two halves of a word.
fn halves(word: u32) -> u32 {
    (word & 0xffff) + (word >> 16)
}

/// Folds a sum to 16 bits. Of the two zeros of ones' complement it is 0, which changes no checksum, not even 0xffff.
fn fold(sum: u32) -> u16 {
    (halves(halves(sum)) % 0xffff) as u16
}

impl PackedKey {
    /// The key as an entry has it.
    ///
    /// # Panics
    /// If the addresses are of different families: no packet is like that.
    pub fn new(key: &Key) -> Self {
        let family = family(key.source, key.destination).expect("addresses of one family");
        let words = Words::new(key.source, key.destination, key.source_port, key.destination_port);
        Self { words, interface: key.interface, protocol: key.protocol, family }
    }

    /// The key of an entry.
    pub fn load(flow: &Flow) -> Self {
        Self {
            words: Words::of_key(flow),
            interface: flow.interface.load(Relaxed),
            protocol: flow.protocol.load(Relaxed),
            family: flow.family.load(Relaxed),
        }
    }

    pub fn unpack(&self) -> Key {
        Key {
            source: address_of(self.words.source, self.family),
            destination: address_of(self.words.destination, self.family),
            source_port: self.words.source_port(),
            destination_port: self.words.destination_port(),
            protocol: self.protocol,
            interface: self.interface,
        }
    }
}

impl Connection {
    /// The connection of an entry's packets.
    pub(crate) fn of(flow: &Flow) -> Option<Self> {
        let is_tracked = flow.flags.load(Relaxed) & TRACKED != 0;
        is_tracked.then(|| Self { mark: flow.mark.load(Relaxed), zone: flow.zone.load(Relaxed) })
    }
}

impl Action {
    /// Its addresses and ports, for a flow of `family`.
    ///
    /// # Panics
    /// If the addresses are not of this family: Linux translates addresses to none of another.
    pub(crate) fn words(&self, family_of_flow: u8) -> Words {
        let family = family(self.source, self.destination);
        assert_eq!(family, Some(family_of_flow), "addresses before and after translation are of one family");
        Words::new(self.source, self.destination, self.source_port, self.destination_port)
    }

    /// The action of an entry of `family`.
    pub(crate) fn load(flow: &Flow, family: u8) -> Self {
        let words = Words::of_action(flow);
        Self {
            out: flow.out.load(Relaxed),
            source: address_of(words.source, family),
            destination: address_of(words.destination, family),
            source_port: words.source_port(),
            destination_port: words.destination_port(),
            connection: Connection::of(flow),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn words_are_as_in_the_packet() {
        let key = Key {
            source: [192, 0, 2, 1].into(),
            destination: [198, 51, 100, 2].into(),
            source_port: 0x1234,
            destination_port: 53,
            protocol: 17,
            interface: 7,
        };
        let packed = PackedKey::new(&key);
        assert_eq!(packed.words.source.map(u32::to_ne_bytes), [[192, 0, 2, 1], [0; 4], [0; 4], [0; 4]]);
        assert_eq!(packed.words.ports.to_ne_bytes(), [0x12, 0x34, 0, 53]);
        assert_eq!((packed.family, packed.unpack()), (4, key));
        let key = Key { source: "2001:db8::1".parse().unwrap(), destination: "::2".parse().unwrap(), ..key };
        let packed = PackedKey::new(&key);
        let words = [[0x20, 1, 0x0d, 0xb8], [0; 4], [0; 4], [0, 0, 0, 1]];
        assert_eq!(packed.words.source.map(u32::to_ne_bytes), words);
        assert_eq!((packed.family, packed.unpack()), (6, key));
    }

    #[test]
    #[should_panic(expected = "addresses of one family")]
    fn a_key_of_two_families_panics() {
        let key = Random::new(1).key(4);
        PackedKey::new(&Key { source: "::1".parse().unwrap(), ..key });
    }

    /// The Internet checksum (RFC 1071) over all words, as in memory.
    fn checksum(words: &Words, addresses: bool, ports: bool) -> u32 {
        let all = words.source.into_iter().chain(words.destination).filter(|_| addresses);
        let mut sum: u64 = all
            .chain(Some(words.ports).filter(|_| ports))
            .map(u64::from)
            .map(|w| (w & 0xffff) + (w >> 16))
            .sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u32 ^ 0xffff
    }

    #[test]
    fn checksums_with_what_grows_are_those_of_the_new_packet() {
        let mut random = Random::new(2);
        for n in 0..100_000 {
            let family = if n % 2 == 0 { 4 } else { 6 };
            let (old, new) =
                (PackedKey::new(&random.key(family)).words, PackedKey::new(&random.key(family)).words);
            let (addresses, ports) = (u32::from(new.addresses_grow(&old)), u32::from(new.ports_grow(&old)));
            assert!(addresses < 0xffff && ports < 0xffff);
            for (growth, addresses, ports) in
                [(addresses, true, false), (ports, false, true), (addresses + ports, true, true)]
            {
                let mut sum = (checksum(&old, addresses, ports) ^ 0xffff) + growth;
                while sum > 0xffff {
                    sum = (sum & 0xffff) + (sum >> 16);
                }
                assert_eq!(sum ^ 0xffff, checksum(&new, addresses, ports));
            }
        }
    }

    #[test]
    fn nothing_grows_if_nothing_changes() {
        let words = PackedKey::new(&Random::new(3).key(6)).words;
        assert_eq!((words.addresses_grow(&words), words.ports_grow(&words)), (0, 0));
        let swapped = Words { source: words.destination, destination: words.source, ..words };
        assert_eq!(swapped.addresses_grow(&words), 0, "the sum does not know the order");
    }
}
