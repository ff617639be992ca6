//! The descent: many addresses together, one level at a time, so that their cache misses overlap.
//!
//! ```text
//! turn by turn     root -> LOW forks, in registers: what lies so high is in the near caches
//!                  -> a leaf, which is prefetched
//! then all         leaf -> next hop
//! then few         those that a leaf sends into the next window, one by one
//! ```
//!
//! Trees of root slots have at least LOW forks, so all lanes stay in step and no branch depends on data; a lane whose
//! root word is a next hop takes part on some line and is corrected at the end. If a tree is higher, which with fewer
//! than 20,480 ranges in a slot (`PACKED_LOW`) is the case only until it is rebuilt, its lanes go down to LOW first.
//! A [`Step`] is the part that differs between CPUs.

use super::line::{FIRST_CHILD, Line, Word};
use super::{LINES, LOW, ROOT, Range6Fib, key, slot};
use crate::NextHop;
use crate::memory::prefetch;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Acquire;

/// The most addresses whose leaves are prefetched before the first of them is read.
pub const LANES: usize = 64;

/// One step down. The key is bits 16 to 47 of the address, which for deeper windows comes shifted.
pub trait Step: Copy {
    /// A key as forks are compared with it.
    type Key: Copy;
    /// The key of an address.
    fn key(self, address: &u128) -> Self::Key;
    /// From a fork to the child that has the key.
    fn child(self, lines: &[Line; LINES], fork: At, key: Self::Key) -> At;
    /// From a leaf to the word of the address's key.
    fn word(self, lines: &[Line; LINES], leaf: At, address: &u128) -> Word;
}

/// By halving, on any CPU.
#[derive(Clone, Copy)]
pub(crate) struct Halving;

impl Step for Halving {
    type Key = u32;

    #[inline(always)]
    fn key(self, address: &u128) -> u32 {
        key(*address, 0)
    }

    #[inline(always)]
    fn child(self, lines: &[Line; LINES], fork: At, key: u32) -> At {
        let fork = fork.line(lines);
        At::new(fork.cell(FIRST_CHILD).wrapping_add(fork.past::<8>(key) as u32))
    }

    #[inline(always)]
    fn word(self, lines: &[Line; LINES], leaf: At, address: &u128) -> Word {
        leaf.line(lines).word(key(*address, 0))
    }
}

/// Where a lane is: the offset of a line in bytes, always within the array.
#[derive(Clone, Copy, Default)]
pub struct At(usize);

impl At {
    /// Bits that an offset may have.
    pub const MASK: usize = (LINES - 1) << 6;

    #[inline(always)]
    pub fn new(index: u32) -> Self {
        // Should a reader outside the registry find a line in the making, the mask keeps it within.
        Self((index << 6) as usize & Self::MASK)
    }

    /// Of an offset that was masked already.
    ///
    /// # Safety
    /// It has bits of `MASK` alone.
    #[inline(always)]
    pub unsafe fn masked(offset: usize) -> Self {
        Self(offset)
    }

    #[inline(always)]
    pub fn offset(self) -> usize {
        self.0
    }

    #[inline(always)]
    pub fn line(self, lines: &[Line; LINES]) -> &Line {
        // SAFETY: an offset is a whole number of lines, less than LINES of them.
        unsafe { &*lines.as_ptr().byte_add(self.offset()) }
    }
}

/// Any number of addresses; `hops` is as long.
///
/// `TURN` lanes descend to their leaves together. A step waits for the previous one: with more lanes there is more to
/// do meanwhile, but fewer of them fit into registers. After `TURNS` of them their leaves are read: at most [`LANES`].
#[inline(always)]
pub fn burst<S: Step, const TURN: usize, const TURNS: usize>(
    step: S,
    fib: &Range6Fib,
    addresses: &[u128],
    hops: &mut [NextHop],
) {
    const { assert!(TURN * TURNS <= LANES) };
    let (root, lines) = fib.flat();
    let (turns, rest) = addresses.as_chunks::<TURN>();
    let (hops, hops_rest) = hops.as_chunks_mut::<TURN>();
    for (turns, hops) in turns.chunks(TURNS).zip(hops.chunks_mut(TURNS)) {
        lanes::<S, TURN, TURNS>(step, root, lines, turns, hops);
    }
    for (address, hop) in rest.iter().zip(hops_rest) {
        *hop = from(step, lines, Word(root[slot(*address)].load(Acquire)), *address, 0);
    }
}

/// At most `TURNS` of addresses.
#[inline(always)]
fn lanes<S: Step, const TURN: usize, const TURNS: usize>(
    step: S,
    root: &[AtomicU32; ROOT],
    lines: &[Line; LINES],
    addresses: &[[u128; TURN]],
    hops: &mut [[NextHop; TURN]],
) {
    let (mut words, mut leaves) = ([[Word(0); TURN]; TURNS], [[At::default(); TURN]; TURNS]);
    for ((words, leaves), addresses) in words.iter_mut().zip(&mut leaves).zip(addresses) {
        let keys: [S::Key; TURN] = std::array::from_fn(|i| step.key(&addresses[i]));
        let mut at = [At::default(); TURN];
        for i in 0..TURN {
            let word = Word(root[slot(addresses[i])].load(Acquire));
            words[i] = word;
            at[i] = At::new(word.0);
        }
        for _ in 0..LOW {
            for i in 0..TURN {
                at[i] = step.child(lines, at[i], keys[i]);
            }
        }
        at.iter().for_each(|at| prefetch(at.line(lines)));
        *leaves = at;
    }
    let highest = words.as_flattened().iter().fold(0, |highest, word| word.0.max(highest));
    if Word(highest).is_tree_of(LOW + 1) {
        lift(step, lines, words.as_flattened(), leaves.as_flattened_mut(), addresses.as_flattened());
    }
    let mut found = [[Word(0); TURN]; TURNS];
    for ((found, leaves), addresses) in found.iter_mut().zip(&leaves).zip(addresses) {
        for i in 0..TURN {
            found[i] = step.word(lines, leaves[i], &addresses[i]);
        }
    }
    let mut any = 0;
    for ((hops, found), words) in hops.iter_mut().zip(&found).zip(&words) {
        for i in 0..TURN {
            hops[i] = NextHop(found[i].if_tree(words[i]));
            any |= hops[i].0;
        }
    }
    if Word(any).is_tree() {
        for (hop, address) in hops.as_flattened_mut().iter_mut().zip(addresses.as_flattened()) {
            *hop = from(step, lines, Word(hop.0), *address, 1);
        }
    }
}

/// The rest of the descent in higher trees, whose lanes have stopped above their leaves.
#[cold]
fn lift<S: Step>(step: S, lines: &[Line; LINES], words: &[Word], at: &mut [At], addresses: &[u128]) {
    for ((at, word), address) in at.iter_mut().zip(words).zip(addresses).filter(|((_, w), _)| w.is_tree()) {
        for _ in LOW..word.height() {
            *at = step.child(lines, *at, step.key(address));
        }
        prefetch(at.line(lines));
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
        let (mut at, key) = (At::new(word.line()), step.key(&shifted));
        for _ in 0..word.height() {
            at = step.child(lines, at, key);
        }
        word = step.word(lines, at, &shifted);
        depth += 1;
    }
    NextHop(word.0)
}
