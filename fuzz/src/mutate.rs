//! Seeded mutations for toolchains without libFuzzer: the same changes to bytes, but not guided by coverage.

/// A pseudo-random generator, the same for the same seed (Steele, Lea, Flood 2014).
pub struct Numbers(pub u64);

impl Numbers {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`, which is above zero.
    pub fn below(&mut self, end: usize) -> usize {
        (self.draw() % end as u64) as usize
    }
}

/// Numbers for which code is often wrong.
const EDGES: [u64; 12] =
    [0, 1, 0x7f, 0x80, 0xff, 0x100, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
/// Maximum length of an input.
const LENGTH_MAX: usize = 16 << 10;

/// A mutation of one of `corpus`.
pub fn mutated(corpus: &[Vec<u8>], numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = corpus[numbers.below(corpus.len())].clone();
    for _ in 0..1 + numbers.below(4) {
        once(&mut bytes, corpus, numbers);
    }
    bytes.truncate(LENGTH_MAX);
    bytes
}

fn once(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], numbers: &mut Numbers) {
    let at = numbers.below(bytes.len() + 1);
    match numbers.below(9) {
        0 | 1 => flip(bytes, at, numbers),
        2 => set(bytes, at, &[numbers.draw() as u8]),
        3 => {
            let edge = EDGES[numbers.below(EDGES.len())].to_le_bytes();
            let mut edge = edge[..1 << numbers.below(4)].to_vec();
            if numbers.below(2) == 1 {
                edge.reverse();
            }
            set(bytes, at, &edge);
        }
        4 => bytes.truncate(at),
        5 => drop(bytes.splice(at..at, (0..1 + numbers.below(8)).map(|_| numbers.draw() as u8))),
        6 => {
            let end = (at + 1 + numbers.below(16)).min(bytes.len());
            bytes.drain(at..end);
        }
        7 => {
            let end = (at + 1 + numbers.below(64)).min(bytes.len());
            let copy = bytes[at..end].to_vec();
            let to = numbers.below(bytes.len() + 1);
            bytes.splice(to..to, copy);
        }
        _ => {
            let other = &corpus[numbers.below(corpus.len())];
            let from = numbers.below(other.len() + 1);
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
    }
}

fn flip(bytes: &mut [u8], at: usize, numbers: &mut Numbers) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << numbers.below(8);
    }
}

fn set(bytes: &mut [u8], at: usize, new: &[u8]) {
    let end = (at + new.len()).min(bytes.len());
    bytes[at..end].copy_from_slice(&new[..end - at]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_inputs_each_time() {
        let corpus = [b"one".to_vec(), Vec::new(), vec![7; 300]];
        let inputs = |seed| {
            let mut numbers = Numbers(seed);
            (0..1000).map(|_| mutated(&corpus, &mut numbers)).collect::<Vec<_>>()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
        let lengths: Vec<usize> = inputs(1).iter().map(Vec::len).collect();
        assert!(lengths.contains(&0) && lengths.iter().any(|length| *length > 300), "{lengths:?}");
    }
}
