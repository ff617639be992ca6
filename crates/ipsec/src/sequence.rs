//! Sequence numbers of an outbound SA: none is ever given out twice.
//!
//! ```text
//! Numbers (one for each SA): 1 .. 2^32-1, or 2^64-2 with ESN
//!    └─ reserve ─► Block ─► Outbound          a block belongs to one sender alone, and cannot be copied
//!    └─ reserve ─► Block ─► another sender
//!    ▲                               │ ends: the rest of its block
//!    └── ReturnedNumbers ◄───────────┘
//! ```
//!
//! The IV of a packet follows from its number, so this is also what keeps IVs apart. Whoever shares an SA with another
//! sender, such as the kernel, or wants to continue after a restart, tells the other one or writes down where a block
//! ends *before* it uses the block, and begins with [`Numbers::after`] next time. The numbers of a block that is dropped
//! are free again if none above them is reserved, so a sender that ends costs none. One that panics, hangs or is killed
//! keeps its block.

use std::sync::Arc;

use bm_sys::Mutex;

/// The sequence numbers of an SA that no sender has yet.
#[derive(Debug)]
pub struct Numbers {
    next: u64,
    last: u64,
    returned: ReturnedNumbers,
}

/// Numbers of blocks that were dropped: those from the first on, up to the second.
#[derive(Clone, Debug, Default)]
pub struct ReturnedNumbers(Arc<Mutex<Vec<(u64, u64)>>>);

/// Numbers that one sender owns. It is neither `Clone` nor `Copy`: a copy would be used twice.
#[derive(Debug)]
pub struct Block {
    next: u64,
    end: u64,
    last: u64,
    returned: ReturnedNumbers,
}

/// All numbers of the SA are reserved: it must be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all sequence numbers of the SA are used: it must be replaced")]
pub struct UsedUp;

impl Numbers {
    /// All numbers: of 64 bits with `esn`, else of 32 (RFC 4303 2.2). The first is 1.
    pub fn new(esn: bool) -> Self {
        Self::after(0, esn)
    }

    /// The numbers after `used`, which is the last one that was ever reserved.
    pub fn after(used: u64, esn: bool) -> Self {
        // Not 2^64-1, so that the end of a block can be written as the number after it.
        let last = if esn { u64::MAX - 1 } else { u64::from(u32::MAX) };
        Self { next: used.saturating_add(1), last, returned: ReturnedNumbers::default() }
    }

    /// Continues with numbers of blocks that were reserved earlier in this process, and returned.
    #[must_use]
    pub fn with_returned(self, returned: &ReturnedNumbers) -> Self {
        Self { next: returned.take_below(self.next), returned: returned.clone(), ..self }
    }

    /// The number after the next `count` ones, or fewer if there are no more: to be written down before they are reserved.
    ///
    /// # Errors
    /// [`UsedUp`] if there are none.
    pub fn end_of(&mut self, count: u64) -> Result<u64, UsedUp> {
        self.next = self.returned.take_below(self.next);
        if self.next > self.last || count == 0 {
            return Err(UsedUp);
        }
        Ok(self.next.saturating_add(count).min(self.last + 1))
    }

    /// The next `count` numbers, or fewer if there are no more.
    ///
    /// # Errors
    /// [`UsedUp`] if there are none.
    pub fn reserve(&mut self, count: u64) -> Result<Block, UsedUp> {
        let end = self.end_of(count)?;
        let block = Block { next: self.next, end, last: self.last, returned: self.returned.clone() };
        self.next = end;
        Ok(block)
    }

    /// Whether a number is above the last one of an SA.
    pub fn is_past_last(number: u64, esn: bool) -> bool {
        number > Self::after(0, esn).last
    }

    /// No numbers, for an SA that has used up all of its own: what it should send fails for that reason.
    pub fn none(esn: bool) -> Block {
        let Self { last, returned, .. } = Self::after(0, esn);
        Block { next: last + 1, end: last + 1, last, returned }
    }

    /// All that are left, for an SA with one sender.
    ///
    /// # Errors
    /// [`UsedUp`] if there are none.
    pub fn reserve_all(&mut self) -> Result<Block, UsedUp> {
        self.reserve(u64::MAX)
    }
}

impl ReturnedNumbers {
    /// Takes out the returned numbers that lead up to `end` without a gap; returns the lowest of them, or `end` if there are
    /// none.
    #[must_use]
    pub fn take_below(&self, end: u64) -> u64 {
        let mut all = self.0.lock();
        let mut lowest = end;
        while let Some(at) = all.iter().position(|(_, end)| *end == lowest) {
            lowest = all.swap_remove(at).0;
        }
        lowest
    }

    /// The first and the end of the lowest block that begins at `least` or above; the ones below are forgotten.
    #[must_use]
    pub fn take_lowest(&self, least: u64) -> Option<(u64, u64)> {
        let mut all = self.0.lock();
        all.retain(|(first, _)| *first >= least);
        let lowest = all.iter().enumerate().min_by_key(|(_, block)| **block)?.0;
        Some(all.swap_remove(lowest))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // A sender that panics may have used a number that it has not counted.
        if self.next < self.end && !std::thread::panicking() {
            let mut all = self.returned.0.lock();
            all.push((self.next, self.end));
        }
    }
}

/// Why a block has no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Empty {
    /// The block is used up; there may be another.
    Block,
    /// That was the last number of the SA.
    Sa,
}

impl Block {
    /// The next number that will be used.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The number after the last one.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// How many are left.
    pub fn left(&self) -> u64 {
        self.end - self.next
    }

    /// The next number, without taking it.
    #[inline]
    pub(crate) fn peek(&self) -> Result<u64, Empty> {
        if self.next < self.end {
            return Ok(self.next);
        }
        Err(if self.next > self.last { Empty::Sa } else { Empty::Block })
    }

    /// Takes the number that `peek` has returned.
    #[inline]
    pub(crate) fn take(&mut self) {
        debug_assert!(self.next < self.end);
        self.next += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(block: &mut Block) -> Vec<u64> {
        std::iter::from_fn(|| block.peek().ok().inspect(|_| block.take())).collect()
    }

    #[test]
    fn first_number_is_1() {
        let mut numbers = Numbers::new(false);
        let (mut one, mut other) = (numbers.reserve(2).unwrap(), numbers.reserve(3).unwrap());
        assert_eq!((taken(&mut other), taken(&mut one)), (vec![3, 4, 5], vec![1, 2]));
        assert_eq!((one.peek(), one.left(), numbers.reserve(0).is_err()), (Err(Empty::Block), 0, true));
    }

    #[test]
    fn numbers_of_a_block_that_ends_are_free_again() {
        let mut numbers = Numbers::new(false);
        let [mut first, second, third] = [4, 4, 4].map(|count| numbers.reserve(count).unwrap());
        first.take();
        drop((first, third));
        // 9 to 12 are at the end; 2 to 4 are below numbers that a sender still has.
        let mut fourth = numbers.reserve(2).unwrap();
        assert_eq!((taken(&mut fourth), second.left()), (vec![9, 10], 4));
        drop((fourth, second));
        assert_eq!(numbers.reserve(1).unwrap().next(), 11, "9 and 10 were used");
        let mut last = numbers.reserve(9).unwrap();
        assert_eq!(last.next(), 11, "the block before was not used");
        // In another `Numbers` of the same SA, whose blocks return to the same place.
        let returned = numbers.returned.clone();
        assert_eq!(taken(&mut last).len(), 9);
        drop((numbers.reserve(5).unwrap(), numbers));
        let mut others = Numbers::after(24, false).with_returned(&returned);
        assert_eq!(taken(&mut others.reserve(2).unwrap()), [20, 21]);
    }

    #[test]
    fn a_sender_that_panics_keeps_its_numbers() {
        let mut numbers = Numbers::new(false);
        let block = numbers.reserve(5).unwrap();
        let panicked = std::thread::spawn(move || {
            let _block = block;
            panic!("as a worker may");
        });
        assert!(panicked.join().is_err());
        assert_eq!(numbers.reserve(1).unwrap().next(), 6);
    }

    #[test]
    fn an_sa_without_numbers_says_so() {
        for esn in [false, true] {
            assert_eq!(Numbers::none(esn).peek(), Err(Empty::Sa));
        }
    }

    #[test]
    fn numbers_do_not_wrap() {
        let last = u64::from(u32::MAX);
        let mut numbers = Numbers::after(last - 2, false);
        let mut block = numbers.reserve(9).unwrap();
        assert_eq!((taken(&mut block), block.peek()), (vec![last - 1, last], Err(Empty::Sa)));
        assert!(numbers.reserve(1).is_err() && numbers.reserve_all().is_err());
        let mut extended = Numbers::after(last, true).reserve(1).unwrap();
        assert_eq!(taken(&mut extended), [1 << 32]);
        let mut all = Numbers::after(u64::MAX - 3, true).reserve_all().unwrap();
        assert_eq!((taken(&mut all), all.peek()), (vec![u64::MAX - 2, u64::MAX - 1], Err(Empty::Sa)));
        assert!(Numbers::after(u64::MAX, true).reserve(1).is_err());
    }
}
