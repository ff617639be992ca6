//! Where a flow may be: two of the buckets, and a tag that tells most others in them apart.
//!
//! The hash is keyed, so that nobody can send packets whose flows all meet in a few buckets. BPF programs compute the
//! same (`crates/fastpath/bpf/flow_table.h`), with `mix` of `crates/fastpath/bpf/flow.h`.

use crate::key::PackedKey;
use crate::layout::TAG_AT;

/// The places of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The indices of its buckets, which may be the same.
    pub buckets: [usize; 2],
    /// Nine bits of the hash, where a slot has them.
    pub tag: u32,
}

impl Place {
    /// Where a flow may be in a table of so many buckets.
    pub fn new(key: &PackedKey, secret: [u64; 2], buckets: usize) -> Self {
        let hash = hash(key, secret);
        // The hash divides by 2^32 as it is multiplied: each half selects a bucket without a division.
        let bucket = |half: u32| ((u64::from(half) * buckets as u64) >> 32) as usize;
        let tag = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55;
        Self { buckets: [bucket(hash as u32), bucket((hash >> 32) as u32)], tag: (tag as u32) << TAG_AT }
    }
}

/// The product's high half folded onto its low one.
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Spreads differences in few bits, such as those between consecutive ports, over all of them.
fn spread(hash: u64) -> u64 {
    let hash = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}

fn hash(key: &PackedKey, secret: [u64; 2]) -> u64 {
    let words = &key.words;
    let rest = u64::from(words.ports) << 32
        | u64::from(key.interface) << 16
        | u64::from(key.family) << 8
        | u64::from(key.protocol);
    if key.family == 4 {
        let addresses = u64::from(words.source[0]) << 32 | u64::from(words.destination[0]);
        return spread(mix(mix(addresses, secret[0]) ^ rest, secret[1]));
    }
    let [source_low, source_high] = halves(words.source);
    let [destination_low, destination_high] = halves(words.destination);
    let hash = mix(source_low ^ secret[0], source_high ^ secret[1]);
    let hash = mix(hash ^ destination_low, destination_high ^ secret[0]);
    spread(mix(hash ^ rest, secret[1]))
}

/// The halves of an IPv6 address, as a little-endian machine loads them.
fn halves(words: [u32; 4]) -> [u64; 2] {
    [u64::from(words[0]) | u64::from(words[1]) << 32, u64::from(words[2]) | u64::from(words[3]) << 32]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;
    use crate::random::Random;

    const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3211];

    #[test]
    fn mixes_as_the_program_does() {
        // Of crates/fastpath/bpf/flow.h, compiled with clang.
        assert_eq!(mix(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3211), 0x227b_e7f7_c27a_8d9d);
        assert_eq!(mix(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn hashes_as_the_program_does() {
        let key = Key {
            source: [192, 0, 2, 1].into(),
            destination: [198, 51, 100, 2].into(),
            source_port: 0x1234,
            destination_port: 53,
            protocol: 17,
            interface: 7,
        };
        assert_eq!(hash(&PackedKey::new(&key), SECRET), 0xa506_7dbe_e2af_7cf6);
        let (source, destination) = ("2001:db8::1".parse().unwrap(), "2001:db8:1::2".parse().unwrap());
        assert_eq!(hash(&PackedKey::new(&Key { source, destination, ..key }), SECRET), 0x1540_0812_ddd2_73b1);
    }

    /// Flows that differ in little: neighbors in a network, a few consecutive ports of each.
    fn similar(family: u8, n: u32) -> Key {
        let [_, port, third, fourth] = n.to_be_bytes();
        let source = match family {
            4 => [198, 18, third, fourth].into(),
            _ => [0x2001, 0xdb8, 0, 0, 0, 0, 0, n as u16].into(),
        };
        Key { source, source_port: 1024 + u16::from(port), ..Random::new(9).key(family) }
    }

    #[test]
    fn similar_flows_spread_evenly() {
        const BUCKETS: usize = 1000;
        let mut random = Random::new(10);
        let secret = [random.next() | 1, random.next() | 1];
        for family in [4, 6] {
            let (mut first, mut second, mut tags) = ([0u32; BUCKETS], [0u32; BUCKETS], [0u32; 512]);
            for n in 0..1_000_000 {
                let place = Place::new(&PackedKey::new(&similar(family, n)), secret, BUCKETS);
                first[place.buckets[0]] += 1;
                second[place.buckets[1]] += 1;
                tags[(place.tag >> TAG_AT) as usize] += 1;
            }
            // 1,000 are expected, with a standard deviation of 32: eight of those are never seen.
            for count in first.into_iter().chain(second) {
                assert!((750..1250).contains(&count), "{count} of 1000 in a bucket, IPv{family}");
            }
            assert!(tags.into_iter().all(|count| (1600..2310).contains(&count)), "tags of IPv{family}");
        }
    }

    #[test]
    fn each_field_changes_the_place() {
        let key = Random::new(4).key(6);
        let place = |key: &Key| Place::new(&PackedKey::new(key), SECRET, 1 << 20);
        let others = [
            Key { source: key.destination, destination: key.source, ..key },
            Key { source_port: key.source_port ^ 1, ..key },
            Key { destination_port: key.destination_port ^ 1, ..key },
            Key { protocol: key.protocol ^ 23, ..key },
            Key { interface: key.interface ^ 1, ..key },
        ];
        for other in others {
            assert_ne!(place(&other), place(&key), "{other:?}");
        }
    }
}
