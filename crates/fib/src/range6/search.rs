//! Going down: many addresses together, a level at a time, so that their cache misses overlap.
//!
//! ```text
//! root     all lanes -> a next hop, or the top of a tree
//! lift     trees higher than LOW go down to LOW; on a full table there is none
//! forks    LOW passes over all lanes, each of which prefetches the line of the next
//! leaf     one pass
//! deeper   the few that a leaf sends into the next window, one by one
//! ```
//!
//! Trees behind root slots have at least LOW forks, so all lanes keep step and no branch depends on
//! data; a lane whose root word is a next hop goes along on line 0 and is put right at the end. A
//! [`Step`] is what differs from CPU to CPU.

use super::line::{FIRST_CHILD, Line, WORDS, Word};
use super::{LINES, LOW, ROOT, Range6Fib, key, slot};
use crate::NextHop;
use crate::memory::prefetch;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Acquire;

/// Addresses that go down together.
const LANES: usize = 64;

/// One step down. The key is bits 16 to 47 of the address, which for deeper windows comes shifted.
pub trait Step: Copy {
    /// From a fork to the child that has the key.
    fn child(self, lines: &[Line; LINES], fork: At, address: &u128) -> At;
    /// From a leaf to the word of the key.
    fn word(self, lines: &[Line; LINES], leaf: At, address: &u128) -> Word;
}

/// By halving, on any CPU.
#[derive(Clone, Copy)]
pub struct Halving;

impl Step for Halving {
    #[inline(always)]
    fn child(self, lines: &[Line; LINES], fork: At, address: &u128) -> At {
        let fork = fork.line(lines);
        At::new(fork.cell(FIRST_CHILD).wrapping_add(fork.past::<8>(key(*address, 0)) as u32))
    }

    #[inline(always)]
    fn word(self, lines: &[Line; LINES], leaf: At, address: &u128) -> Word {
        let leaf = leaf.line(lines);
        Word(leaf.cell((WORDS + leaf.past::<4>(key(*address, 0))) & 15))
    }
}

/// Where a lane is: the offset of a line in bytes, always within the array.
#[derive(Clone, Copy, Default)]
pub struct At(u32);

impl At {
    /// Bits that an offset may have.
    pub const MASK: u32 = (LINES as u32 - 1) << 6;

    #[inline(always)]
    pub fn new(index: u32) -> Self {
        // Should a reader outside the registry find a line in the making, the mask keeps it within.
        Self(index << 6 & Self::MASK)
    }

    /// Of an offset that was masked already.
    ///
    /// # Safety
    /// It has bits of `MASK` alone.
    #[inline(always)]
    pub unsafe fn masked(offset: u32) -> Self {
        Self(offset)
    }

    #[inline(always)]
    pub fn offset(self) -> usize {
        self.0 as usize
    }

    #[inline(always)]
    pub fn line(self, lines: &[Line; LINES]) -> &Line {
        // SAFETY: an offset is a whole number of lines, less than LINES of them.
        unsafe { &*lines.as_ptr().byte_add(self.offset()) }
    }
}

/// Lanes that one turn of a loop takes.
const TURN: usize = 4;
const TURNS: usize = LANES / TURN;

/// Any number of addresses; `hops` is as long.
#[inline(always)]
pub fn burst<S: Step>(step: S, fib: &Range6Fib, addresses: &[u128], hops: &mut [NextHop]) {
    let (root, lines) = fib.flat();
    let (turns, rest) = addresses.as_chunks::<TURN>();
    let (hops, hops_rest) = hops.as_chunks_mut::<TURN>();
    for (turns, hops) in turns.chunks(TURNS).zip(hops.chunks_mut(TURNS)) {
        lanes(step, root, lines, turns, hops);
    }
    for (address, hop) in rest.iter().zip(hops_rest) {
        *hop = from(step, lines, Word(root[slot(*address)].load(Acquire)), *address, 0);
    }
}

/// At most [`TURNS`] of addresses.
#[inline(always)]
fn lanes<S: Step>(
    step: S,
    root: &[AtomicU32; ROOT],
    lines: &[Line; LINES],
    addresses: &[[u128; TURN]],
    hops: &mut [[NextHop; TURN]],
) {
    let (mut words, mut at) = ([[Word(0); TURN]; TURNS], [[At::default(); TURN]; TURNS]);
    for (words, addresses) in words.iter_mut().zip(addresses) {
        *words = addresses.map(|address| Word(root[slot(address)].load(Acquire)));
    }
    let mut highest = 0;
    for (at, word) in at.as_flattened_mut().iter_mut().zip(words.as_flattened()) {
        *at = At::new(if word.is_tree() { word.line() } else { 0 });
        highest = highest.max(word.0);
    }
    if Word(highest).is_tree_of(LOW + 1) {
        lift(step, lines, words.as_flattened(), at.as_flattened_mut(), addresses.as_flattened());
    }
    for _ in 0..LOW {
        for (at, addresses) in at.iter_mut().zip(addresses) {
            for i in 0..TURN {
                at[i] = step.child(lines, at[i], &addresses[i]);
                prefetch(at[i].line(lines));
            }
        }
    }
    let mut found = [[Word(0); TURN]; TURNS];
    for ((found, at), addresses) in found.iter_mut().zip(&at).zip(addresses) {
        for i in 0..TURN {
            found[i] = step.word(lines, at[i], &addresses[i]);
        }
    }
    let mut any = 0;
    for ((hops, found), words) in hops.iter_mut().zip(&found).zip(&words) {
        for i in 0..TURN {
            hops[i] = NextHop(if words[i].is_tree() { found[i].0 } else { words[i].0 });
            any |= hops[i].0;
        }
    }
    if Word(any).is_tree() {
        for (hop, address) in hops.as_flattened_mut().iter_mut().zip(addresses.as_flattened()) {
            *hop = from(step, lines, Word(hop.0), *address, 1);
        }
    }
}

/// Brings higher trees down to LOW.
#[cold]
fn lift<S: Step>(step: S, lines: &[Line; LINES], words: &[Word], at: &mut [At], addresses: &[u128]) {
    for ((at, word), address) in at.iter_mut().zip(words).zip(addresses).filter(|((_, w), _)| w.is_tree()) {
        for _ in LOW..word.height() {
            *at = step.child(lines, *at, address);
        }
    }
}

/// One address, from `word` of the window at `depth` on.
#[inline(always)]
pub fn from<S: Step>(
    step: S,
    lines: &[Line; LINES],
    mut word: Word,
    address: u128,
    mut depth: u32,
) -> NextHop {
    while word.is_tree() {
        let shifted = address << (32 * (depth & 3));
        let mut at = At::new(word.line());
        for _ in 0..word.height() {
            at = step.child(lines, at, &shifted);
        }
        word = step.word(lines, at, &shifted);
        depth += 1;
    }
    NextHop(word.0)
}
