//! The prefixes of a growing table that lie in no other, and the question it asks most: is this taken?
//!
//! Asked length by length that takes a lookup each, most of them misses in memory. So the few short roots
//! live in a set of their own that stays in cache, and a map of regions says which longer lengths a region
//! has at all.

use bm_wire::prefix::{Address, Prefix};

use super::PrefixSet;
use crate::random::mix;

/// Roots at least half as long as the top of a network: 16 bits in IPv4, 32 in IPv6.
const fn region_length(width: u8) -> u8 {
    if width == 32 { 16 } else { 32 }
}
/// Regions share buckets by hash: a clash costs a lookup, never a wrong answer.
const BUCKETS: usize = 1 << 16;

/// A set of prefixes of which none covers another.
pub struct Roots<A: Address> {
    short: PrefixSet<A>,
    short_lengths: Vec<u8>,
    long: PrefixSet<A>,
    /// By region: bit L is set where a root of length L lies.
    long_lengths: Vec<u128>,
}

impl<A: Address> Roots<A> {
    pub fn new() -> Self {
        Self {
            short: PrefixSet::default(),
            short_lengths: Vec::new(),
            long: PrefixSet::default(),
            long_lengths: vec![0; BUCKETS],
        }
    }

    pub fn insert(&mut self, prefix: Prefix<A>) {
        let length = prefix.length();
        if length >= region_length(A::WIDTH) {
            // A length of 128 shares the bit of 127, which again costs a lookup at most.
            self.long_lengths[bucket(prefix.first())] |= 1 << length.min(127);
            self.long.insert(prefix);
            return;
        }
        if !self.short_lengths.contains(&length) {
            self.short_lengths.push(length);
        }
        self.short.insert(prefix);
    }

    /// Whether a root covers the address.
    pub fn cover(&self, address: A) -> bool {
        let at = |length| Prefix::containing(address, length);
        for prefix in self.short_lengths.iter().filter_map(|&length| at(length)) {
            if self.short.contains(&prefix) {
                return true;
            }
        }
        let mut lengths = self.long_lengths[bucket(address)];
        while lengths != 0 {
            let length = lengths.trailing_zeros() as u8;
            let mut hit = at(length).is_some_and(|prefix| self.long.contains(&prefix));
            if length == 127 {
                hit |= self.long.contains(&Prefix::host(address));
            }
            if hit {
                return true;
            }
            lengths &= lengths - 1;
        }
        false
    }
}

fn bucket<A: Address>(address: A) -> usize {
    let region = address.and(A::mask(region_length(A::WIDTH)));
    let top = match region.show() {
        std::net::IpAddr::V4(address) => u64::from(u32::from(address)),
        std::net::IpAddr::V6(address) => (u128::from(address) >> 96) as u64,
    };
    mix(top) as usize % BUCKETS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracks_used_prefixes() {
        let mut roots = Roots::new();
        let (short, long): (Prefix<u32>, Prefix<u32>) =
            ("8.0.0.0/9".parse().unwrap(), "9.1.2.0/24".parse().unwrap());
        roots.insert(short);
        roots.insert(long);
        for prefix in [short, long] {
            assert!(roots.cover(prefix.first()) && roots.cover(prefix.last()));
            assert!(!roots.cover(prefix.first() - 1) && !roots.cover(prefix.last() + 1));
        }
    }

    #[test]
    fn tracks_single_addresses() {
        let mut roots = Roots::new();
        roots.insert(Prefix::host(0x2a00_u128 << 112 | 7));
        assert!(roots.cover(0x2a00 << 112 | 7) && !roots.cover(0x2a00 << 112 | 6));
    }
}
