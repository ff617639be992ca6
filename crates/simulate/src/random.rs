//! Pseudo-random numbers: SplitMix64, the same on all machines.

/// A generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// With a seed; `stream` selects one of several independent sequences.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        random.next();
        random
    }

    /// The next 64 bits.
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `bound`, all equally likely.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// True in one of `times` cases.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_repeat_and_are_uniform() {
        let numbers = |seed, stream| {
            let mut random = Random::new(seed, stream);
            (0..1000).map(|_| random.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(1, 0), numbers(1, 0));
        assert!(numbers(1, 0) != numbers(2, 0) && numbers(1, 0) != numbers(1, 1));
        for digit in 0..10 {
            let count = numbers(3, 3).into_iter().filter(|number| *number == digit).count();
            assert!((60..140).contains(&count), "{digit}: {count}");
        }
    }
}
