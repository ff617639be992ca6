//! The replay window (RFC 4303 3.4.3, RFC 6479), and the high half of extended sequence numbers (RFC 4303, appendix A).
//!
//! ```text
//!             left of it: refused │ window: each number once │ right of it: moves the window
//!                                 top - size + 1           top
//! ```
//!
//! One bit for each number, in a ring of words. There is one word more than the window needs, so moving it clears
//! whole words. The window is checked before the ICV is, and moves only afterwards.

use crate::failure::Failure;

/// The largest window, in packets.
pub const WINDOW_MAX: u32 = 4096;

/// The numbers that have been received lately.
pub(crate) struct Window {
    /// The highest number whose packet had a correct ICV; 0 before the first.
    top: u64,
    /// Numbers that are remembered; 0 if any number is accepted.
    size: u64,
    esn: bool,
    words: Box<[u64]>,
}

const BITS: u64 = u64::BITS as u64;

impl Window {
    /// A window of `size` packets, at most [`WINDOW_MAX`]; 0 accepts any number, which ESN does not allow.
    pub fn new(size: u32, esn: bool) -> Self {
        let words = (u64::from(size).div_ceil(BITS) + 1).next_power_of_two();
        Self { top: 0, size: size.into(), esn, words: vec![0; words as usize].into_boxed_slice() }
    }

    /// The whole sequence number of a packet with these low 32 bits, if it may be a new one.
    ///
    /// # Errors
    /// [`Failure::Replay`].
    #[inline(always)]
    pub fn check(&self, low: u32) -> Result<u64, Failure> {
        let number = self.extended(low).ok_or(Failure::Replay)?;
        if self.size == 0 {
            return Ok(number);
        }
        // The first number is 1 (RFC 4303 3.3.3).
        let left = number == 0 || self.top.saturating_sub(number) >= self.size;
        if left || (number <= self.top && self.has(number)) { Err(Failure::Replay) } else { Ok(number) }
    }

    /// Notes a number that `check` has returned, after the packet's ICV was found to be correct.
    #[inline]
    pub fn advance(&mut self, number: u64) {
        if number > self.top {
            let words = self.words.len() as u64;
            let new = (number / BITS - self.top / BITS).min(words);
            for word in 0..new {
                let at = self.word(number - word * BITS);
                self.words[at] = 0;
            }
            self.top = number;
        }
        let at = self.word(number);
        self.words[at] |= 1 << (number % BITS);
    }

    /// The highest number.
    pub fn top(&self) -> u64 {
        self.top
    }

    /// Continues after `top`, which was the highest number before; what is below counts as received.
    pub fn resume(&mut self, top: u64) {
        self.top = top;
        self.words.fill(u64::MAX);
        let at = self.word(top);
        self.words[at] >>= BITS - 1 - top % BITS;
    }

    fn has(&self, number: u64) -> bool {
        self.words[self.word(number)] >> (number % BITS) & 1 != 0
    }

    #[inline]
    fn word(&self, number: u64) -> usize {
        (number / BITS) as usize & (self.words.len() - 1)
    }

    /// The number that is nearest to the window among those with these low 32 bits (RFC 4303, A2.1).
    #[inline]
    fn extended(&self, low: u32) -> Option<u64> {
        if !self.esn {
            return Some(low.into());
        }
        let (high, top) = ((self.top >> 32) as u32, self.top as u32);
        let bottom = top.wrapping_sub((self.size as u32).saturating_sub(1));
        let high = if bottom <= top {
            // The window is within one subspace: what is left of it is from the next.
            if low >= bottom { Some(high) } else { high.checked_add(1) }
        } else {
            // It spans two: high values of the low half are from the one before.
            if low >= bottom { high.checked_sub(1) } else { Some(high) }
        };
        high.map(|high| u64::from(high) << 32 | u64::from(low))
    }
}

#[cfg(test)]
mod tests;
