//! The writer's record of blocks: allocates words, fills them, frees them.
//!
//! A change allocates blocks, fills them, and either commits (they are linked) or frees them again, so that a full
//! table stays unchanged. There are few sizes, each with a list of free ones; up to 8 words a block is within one
//! cache line.

use super::{BLOCK, DEEP, Dir18Fib, INDEX, WIDE, WORDS, Words};
use crate::Shortage;
use crate::published::{Readers, Retired};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Sizes in words: parts of a cache line, then whole lines, up to 64 forks after their values.
const SIZES: [u32; 8] = [2, 4, 8, 16, 24, 32, 40, 56];
/// The longest block: a bitmap, 64 values of 16 bits, 64 forks.
const WORDS_MAX: usize = 1 + 16 + 32;
/// A cache line, in words: new blocks are cut from one.
const LINE: u32 = 8;

/// A block: where it starts and which of `SIZES` it has.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    at: u32,
    size: u8,
}

/// Values in order of their first bit, with a bitmap of where each but the first starts.
#[derive(Clone, Debug)]
pub struct Values {
    bitmap: u64,
    values: [u32; 64],
    len: usize,
}

impl Values {
    /// No values yet.
    pub fn new() -> Self {
        Self { bitmap: 0, values: [0; 64], len: 0 }
    }

    /// From `bit` on it is `value`. Bits come in rising order, the first is 0.
    pub fn push(&mut self, bit: u32, value: u32) {
        if self.len > 0 && self.values[self.len - 1] == value {
            return;
        }
        self.bitmap |= if self.len > 0 { 1 << bit } else { 0 };
        self.values[self.len] = value;
        self.len += 1;
    }

    fn values(&self) -> &[u32] {
        &self.values[..self.len]
    }

    /// The words of the block, and whether it is wide.
    fn packed(&self, words: &mut [u64; WORDS_MAX]) -> (usize, bool) {
        let wide = self.values().iter().any(|value| (DEEP..BLOCK).contains(value));
        words[0] = self.bitmap;
        if wide {
            return (1 + pack(&mut words[1..], 2, self.values().iter().copied()), true);
        }
        let narrow = self.values().iter().map(|value| DEEP.min(*value));
        let values = pack(&mut words[1..], 4, narrow);
        let forks = self.values().iter().copied().filter(|value| *value >= BLOCK);
        (1 + values + pack(&mut words[1 + values..], 2, forks), false)
    }
}

/// Packs values into words, `each` per word; returns how many words they took.
fn pack(words: &mut [u64], each: usize, values: impl Iterator<Item = u32>) -> usize {
    let mut len = 0;
    for value in values {
        let (word, place) = (&mut words[len / each], len % each);
        *word = if place == 0 { 0 } else { *word } | u64::from(value) << (place * (64 / each));
        len += 1;
    }
    len.div_ceil(each)
}

/// Which words are in use.
#[derive(Debug)]
pub struct Blocks {
    fib: Arc<Dir18Fib>,
    /// The first word that was never used.
    top: u32,
    free: [Vec<u32>; SIZES.len()],
    retired: Retired<Piece>,
    /// Allocated by the change in progress.
    taken: Vec<Piece>,
}

impl Blocks {
    pub fn new(fib: Arc<Dir18Fib>, readers: &Readers) -> Self {
        // The first line stays empty: lanes without a block read it.
        Self { fib, top: LINE, free: Default::default(), retired: Retired::new(readers), taken: Vec::new() }
    }

    /// How many words were ever in use.
    pub(crate) fn ever_used(&self) -> usize {
        self.top as usize
    }

    fn words(&self) -> &Words {
        self.fib.flat().1
    }

    /// The entry for these values: a next hop if there is only one, else a new block, or `old` if that has the same
    /// content.
    pub fn entry(&mut self, values: &Values, old: u32) -> Result<u32, Shortage> {
        if let [value] = values.values()
            && *value < BLOCK
        {
            return Ok(*value);
        }
        let mut packed = [0; WORDS_MAX];
        let (len, wide) = values.packed(&mut packed);
        let kind = if wide { WIDE } else { BLOCK };
        if old >= BLOCK && old & WIDE == kind && self.holds(old & INDEX, &packed[..len]) {
            return Ok(old);
        }
        Ok(kind | self.filled(&packed[..len])?)
    }

    /// A fork: the results for each quarter of a /24.
    pub fn fork(&mut self, quarters: [u32; 4]) -> Result<u32, Shortage> {
        let [a, b, c, d] = quarters.map(u64::from);
        Ok(WIDE | self.filled(&[a | b << 32, c | d << 32])?)
    }

    fn holds(&self, at: u32, packed: &[u64]) -> bool {
        packed.iter().zip(&self.words()[at as usize..]).all(|(word, held)| held.load(Relaxed) == *word)
    }

    fn filled(&mut self, packed: &[u64]) -> Result<u32, Shortage> {
        let piece = self.take(packed.len() as u32)?;
        self.taken.push(piece);
        for (word, held) in packed.iter().zip(&self.words()[piece.at as usize..]) {
            held.store(*word, Relaxed);
        }
        Ok(piece.at)
    }

    fn take(&mut self, words: u32) -> Result<Piece, Shortage> {
        let size = size_of_words(words);
        if self.free[usize::from(size)].is_empty() {
            self.reclaim();
        }
        if let Some(at) = self.free[usize::from(size)].pop() {
            return Ok(Piece { at, size });
        }
        let at = self.cut(size).or_else(|| self.split(size)).ok_or(Shortage::Blocks)?;
        Ok(Piece { at, size })
    }

    /// A block from unused words: the rest of its line is added to the list of its size.
    fn cut(&mut self, size: u8) -> Option<u32> {
        let words = SIZES[usize::from(size)];
        let lines = words.max(LINE);
        if self.top + lines > WORDS as u32 {
            return None;
        }
        let at = self.top;
        self.top += lines;
        self.free[usize::from(size)].extend((1..lines / words).rev().map(|i| at + i * words));
        Some(at)
    }

    /// The start of a larger free block, whose rest goes to the lists of smaller ones.
    fn split(&mut self, size: u8) -> Option<u32> {
        let larger = (usize::from(size) + 1..SIZES.len()).find(|larger| !self.free[*larger].is_empty())?;
        let at = self.free[larger].pop()?;
        let (mut from, end) = (at + SIZES[usize::from(size)], at + SIZES[larger]);
        while from < end {
            // The largest that fits and does not cross a line, unless it starts one.
            let room = if from % LINE == 0 { end - from } else { (LINE - from % LINE).min(end - from) };
            let part = (0..SIZES.len()).rev().find(|part| SIZES[*part] <= room)?;
            self.free[part].push(from);
            from += SIZES[part];
        }
        Some(at)
    }

    /// All pieces used by an entry of the root.
    pub fn behind(&self, entry: u32, found: &mut Vec<Piece>) {
        if entry < BLOCK {
            return;
        }
        let forks = self.block(entry, found);
        for word in forks {
            for fork in halves(self.words()[word as usize].load(Relaxed)).filter(|half| *half >= BLOCK) {
                let at = fork & INDEX;
                found.push(Piece { at, size: 0 });
                let words = [at, at + 1].map(|at| self.words()[at as usize].load(Relaxed));
                for quarter in words.into_iter().flat_map(halves).filter(|quarter| *quarter >= BLOCK) {
                    self.block(quarter, found);
                }
            }
        }
    }

    /// Adds the block at `entry` itself; returns the words that may contain forks.
    fn block(&self, entry: u32, found: &mut Vec<Piece>) -> std::ops::Range<u32> {
        let at = entry & INDEX;
        let word = |index: u32| self.words()[(at + index) as usize].load(Relaxed);
        let values = word(0).count_ones() + 1;
        let forks = if entry >= WIDE {
            1..1 + values.div_ceil(2)
        } else {
            let start = 1 + values.div_ceil(4);
            let narrow = (0..values).map(|value| (word(1 + value / 4) >> (value % 4 * 16)) as u16);
            let forks = narrow.filter(|value| *value == DEEP as u16).count() as u32;
            start..start + forks.div_ceil(2)
        };
        found.push(Piece { at, size: size_of_words(forks.end) });
        at + forks.start..at + forks.end
    }

    /// What was allocated since the last commit is linked now.
    pub fn commit(&mut self) {
        self.taken.clear();
    }

    /// Frees what was allocated since the last commit.
    pub fn give_back(&mut self) {
        while let Some(piece) = self.taken.pop() {
            self.free[usize::from(piece.size)].push(piece.at);
        }
    }

    /// To be called once new readers cannot find these: their grace period begins.
    pub fn retire(&mut self, pieces: impl IntoIterator<Item = Piece>) {
        self.retired.extend(pieces);
    }

    pub fn reclaim(&mut self) {
        for piece in self.retired.take_passed() {
            self.free[usize::from(piece.size)].push(piece.at);
        }
    }

    /// As if all words but `left` were in use.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn exhaust(&mut self, left: u32) {
        self.free = Default::default();
        self.top = WORDS as u32 - left;
    }
}

/// Both 32-bit values of a word.
fn halves(word: u64) -> impl Iterator<Item = u32> {
    [word as u32, (word >> 32) as u32].into_iter()
}

/// The index in `SIZES` for this many words.
fn size_of_words(words: u32) -> u8 {
    SIZES.iter().position(|size| *size >= words).unwrap_or(SIZES.len() - 1) as u8
}
