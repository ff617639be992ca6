//! Sequence numbers of an outbound SA: none is ever given out twice.
//!
//! ```text
//! Numbers (one for each SA): 1 .. 2^32-1, or 2^64-2 with ESN
//!    └─ reserve ─► Block ─► Outbound          a block belongs to one sender alone, and cannot be copied
//!    └─ reserve ─► Block ─► another sender
//! ```
//!
//! The IV of a packet follows from its number, so this is also what keeps IVs apart. Whoever shares an SA with another
//! sender, such as the kernel, or wants to continue after a restart, tells the other one or writes down where a block
//! ends *before* it uses the block, and begins with [`Numbers::after`] next time.

use std::fmt;

/// The numbers of an SA that no sender has yet.
#[derive(Debug, PartialEq, Eq)]
pub struct Numbers {
    next: u64,
    last: u64,
}

/// Numbers that one sender owns. It is neither `Clone` nor `Copy`: a copy would be used twice.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    next: u64,
    end: u64,
    last: u64,
}

/// All numbers of the SA are reserved: it must be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        Self { next: used.saturating_add(1), last }
    }

    /// The next `count` numbers, or fewer if there are no more.
    ///
    /// # Errors
    /// [`UsedUp`] if there are none.
    pub fn reserve(&mut self, count: u64) -> Result<Block, UsedUp> {
        if self.next > self.last || count == 0 {
            return Err(UsedUp);
        }
        let end = self.next.saturating_add(count).min(self.last + 1);
        let block = Block { next: self.next, end, last: self.last };
        self.next = end;
        Ok(block)
    }

    /// All that are left, for an SA with one sender.
    ///
    /// # Errors
    /// [`UsedUp`] if there are none.
    pub fn reserve_all(&mut self) -> Result<Block, UsedUp> {
        self.reserve(u64::MAX)
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

impl fmt::Display for UsedUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("all sequence numbers of the SA are used: it must be replaced")
    }
}

impl std::error::Error for UsedUp {}

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
        assert_eq!((one.peek(), one.left(), numbers.reserve(0)), (Err(Empty::Block), 0, Err(UsedUp)));
    }

    #[test]
    fn numbers_do_not_wrap() {
        let last = u64::from(u32::MAX);
        let mut numbers = Numbers::after(last - 2, false);
        let mut block = numbers.reserve(9).unwrap();
        assert_eq!((taken(&mut block), block.peek()), (vec![last - 1, last], Err(Empty::Sa)));
        assert_eq!((numbers.reserve(1), numbers.reserve_all()), (Err(UsedUp), Err(UsedUp)));
        let mut extended = Numbers::after(last, true).reserve(1).unwrap();
        assert_eq!(taken(&mut extended), [1 << 32]);
        let mut all = Numbers::after(u64::MAX - 3, true).reserve_all().unwrap();
        assert_eq!((taken(&mut all), all.peek()), (vec![u64::MAX - 2, u64::MAX - 1], Err(Empty::Sa)));
        assert_eq!(Numbers::after(u64::MAX, true).reserve(1), Err(UsedUp));
    }
}
