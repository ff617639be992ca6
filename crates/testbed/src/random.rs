//! Pseudo-random numbers from a seed: the same seed gives the same numbers everywhere.
//!
//! Tables, addresses and traffic are generated with it, so that a bench can be repeated with the same input.
//! There is no source of real randomness here.

/// The start of a sequence of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

/// A generator (xoshiro256++, Blackman and Vigna 2019, seeded by splitmix64).
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The generator for a seed.
    pub fn new(seed: Seed) -> Self {
        let mut filler = seed.0;
        Self { state: std::array::from_fn(|_| splitmix(&mut filler)) }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// The next 128 bits.
    pub fn next_u128(&mut self) -> u128 {
        u128::from(self.next_u64()) << 64 | u128::from(self.next_u64())
    }

    /// A number below `bound`, which must not be 0.
    ///
    /// By multiplication instead of a remainder: faster, and biased by less than one in 2^64 / `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        debug_assert!(bound > 0);
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A number from 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}

/// Spreads the bits of a number over the whole result; different numbers stay different.
pub fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_result() {
        let draw = |seed| {
            let mut random = Random::new(Seed(seed));
            [random.next_u64(), random.next_u64(), random.next_u64()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    /// Published test vector of splitmix64 for the seed 1234567.
    #[test]
    fn fills_with_the_published_sequence() {
        let mut state = 1_234_567;
        assert_eq!(splitmix(&mut state), 6_457_827_717_110_365_317);
        assert_eq!(splitmix(&mut state), 3_203_168_211_198_807_973);
    }

    #[test]
    fn below_is_uniform() {
        let mut random = Random::new(Seed(1));
        let mut count = [0u32; 10];
        (0..100_000).for_each(|_| count[random.below(10)] += 1);
        assert!(count.iter().all(|n| (9_500..10_500).contains(n)), "{count:?}");
        assert!((0..1_000).all(|_| random.unit() < 1.0));
    }
}
