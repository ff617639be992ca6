//! A short hash for short keys: one multiplication per word, with a random seed.
//!
//! The standard hash costs more than the rest of applying a route. Routes come from peers, so the seed is secret:
//! nobody can choose prefixes that collide.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A map with this hash.
pub(crate) type Map<K, V> = HashMap<K, V, Seeded>;

/// Makes hashers that share one secret seed.
#[derive(Clone, Debug)]
pub(crate) struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Self {
        Self(RandomState::new().build_hasher().finish() | 1)
    }
}

impl BuildHasher for Seeded {
    type Hasher = Folding;
    fn build_hasher(&self) -> Folding {
        Folding { state: self.0, seed: self.0 }
    }
}

/// Multiplies in each word and folds the 128-bit product.
pub(crate) struct Folding {
    state: u64,
    seed: u64,
}

impl Folding {
    fn fold(&mut self, word: u64) {
        // An odd constant with bits all over; the seed keeps either factor from being known.
        let product = u128::from(self.state ^ word) * u128::from(0x9e37_79b9_7f4a_7c15 ^ self.seed << 1);
        self.state = (product as u64) ^ (product >> 64) as u64;
    }
}

impl Hasher for Folding {
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.fold(u64::from_le_bytes(word.try_into().expect("a chunk of eight")));
        }
        let rest = words.remainder();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.fold(u64::from_le_bytes(last) ^ (rest.len() as u64) << 56);
    }
    fn write_u8(&mut self, word: u8) {
        self.fold(u64::from(word));
    }
    fn write_u16(&mut self, word: u16) {
        self.fold(u64::from(word));
    }
    fn write_u32(&mut self, word: u32) {
        self.fold(u64::from(word));
    }
    fn write_u64(&mut self, word: u64) {
        self.fold(word);
    }
    fn write_usize(&mut self, word: usize) {
        self.fold(word as u64);
    }
    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_neighboring_keys() {
        let seed = Seeded::default();
        let mut buckets = [0u32; 1024];
        for address in 0..102_400u32 {
            let hash = seed.hash_one((address << 8, 24u8));
            buckets[(hash & 1023) as usize] += 1;
        }
        // A hundred expected in each; a poor hash leaves half of the buckets empty.
        assert!(buckets.iter().all(|&count| (30..=200).contains(&count)), "{buckets:?}");
    }
}
