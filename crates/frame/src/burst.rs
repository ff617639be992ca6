//! Up to 256 frames handled together, and masks over them.

use crate::frame::Frame;
use crate::freelist::Freelist;

/// The most frames in a burst.
pub const BURST: usize = 256;

/// A set of slots of a burst: bit `i` stands for slot `i`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Mask([u64; BURST / 64]);

impl Mask {
    /// The empty set.
    pub const NONE: Self = Self([0; BURST / 64]);

    /// The first `count` slots.
    pub fn first(count: usize) -> Self {
        let mut mask = Self::NONE;
        for (word, bits) in mask.0.iter_mut().enumerate() {
            let here = count.saturating_sub(word * 64).min(64);
            *bits = if here == 64 { u64::MAX } else { (1 << here) - 1 };
        }
        mask
    }

    /// Adds a slot.
    #[inline]
    pub fn set(&mut self, place: usize) {
        self.0[place / 64] |= 1 << (place % 64);
    }

    /// Adds, of sixteen slots from `first` on (a multiple of sixteen), those whose bit is set in `bits`.
    #[inline]
    pub fn set_sixteen(&mut self, first: usize, bits: u16) {
        debug_assert!(first.is_multiple_of(16), "sixteen places lie in one word");
        self.0[first / 64] |= u64::from(bits) << (first % 64);
    }

    /// Removes, of sixteen slots from `first` on (a multiple of sixteen), those whose bit is set in `bits`.
    #[inline]
    pub fn clear_sixteen(&mut self, first: usize, bits: u16) {
        debug_assert!(first.is_multiple_of(16), "sixteen places lie in one word");
        self.0[first / 64] &= !(u64::from(bits) << (first % 64));
    }

    /// Removes a slot.
    #[inline]
    pub fn clear(&mut self, place: usize) {
        self.0[place / 64] &= !(1 << (place % 64));
    }

    /// Whether the set contains a slot.
    #[inline]
    pub fn has(&self, place: usize) -> bool {
        self.0[place / 64] >> (place % 64) & 1 == 1
    }

    /// Whether the set is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&bits| bits == 0)
    }

    /// The number of slots in the set.
    #[inline]
    pub fn count(&self) -> usize {
        self.0.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    /// The intersection of two sets.
    #[inline]
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// The union of two sets.
    #[inline]
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// The slots that are only in this set.
    #[inline]
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// The set as words of 64 slots each, the first slot in the lowest bit.
    #[inline]
    pub fn words(&self) -> [u64; BURST / 64] {
        self.0
    }

    /// A set from such words.
    #[inline]
    pub fn from_words(words: [u64; BURST / 64]) -> Self {
        Self(words)
    }

    /// The slots of the set, in order.
    #[inline]
    pub fn iter(&self) -> Places {
        Places { words: self.0, word: 0 }
    }
}

/// The slots of a [`Mask`], in order.
#[derive(Clone, Debug)]
pub struct Places {
    words: [u64; BURST / 64],
    word: usize,
}

impl Iterator for Places {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        loop {
            let bits = self.words.get_mut(self.word)?;
            if *bits != 0 {
                let place = self.word * 64 + bits.trailing_zeros() as usize;
                *bits &= *bits - 1;
                return Some(place);
            }
            self.word += 1;
        }
    }
}

/// Up to [`BURST`] frames. A slot is empty once its frame was taken.
///
/// Its frames are of one kind, `F`: [`Frame`], or [`MbufFrame`](crate::MbufFrame).
pub struct Burst<F = Frame> {
    frames: [Option<F>; BURST],
    count: usize,
}

impl<F> Default for Burst<F> {
    fn default() -> Self {
        Self { frames: [const { None }; BURST], count: 0 }
    }
}

impl Burst {
    /// A burst without frames.
    pub const fn new() -> Self {
        Self { frames: [const { None }; BURST], count: 0 }
    }

    /// Frees all frames; returns how many there were.
    pub fn free_all(&mut self, freelist: &mut Freelist) -> usize {
        self.drain().map(|frame| freelist.free(frame)).count()
    }
}

impl<F> Burst<F> {
    /// The number of slots in use, including empty ones.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no slot is in use.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether no frame can be added.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.count == BURST
    }

    /// The number of frames: slots in use, less empty ones.
    pub fn frames(&self) -> usize {
        self.places().iter().flatten().count()
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// Returns the frame if the burst is full.
    #[inline]
    pub fn push(&mut self, frame: F) -> Result<(), F> {
        match self.frames.get_mut(self.count) {
            Some(place) => {
                *place = Some(frame);
                self.count += 1;
                Ok(())
            }
            None => Err(frame),
        }
    }

    /// The slots not in use yet, which may be filled from the front, followed by a call of [`occupy`](Self::occupy).
    #[inline]
    pub fn vacant_mut(&mut self) -> &mut [Option<F>] {
        &mut self.frames[self.count..]
    }

    /// Marks the next `count` slots as used, as far as there are any.
    #[inline]
    pub fn occupy(&mut self, count: usize) {
        self.count = (self.count + count).min(BURST);
    }

    /// The frame in a slot, unless it was taken.
    #[inline]
    pub fn get(&self, place: usize) -> Option<&F> {
        self.frames[..self.count].get(place)?.as_ref()
    }

    /// The frame in a slot, mutable, unless it was taken.
    #[inline]
    pub fn get_mut(&mut self, place: usize) -> Option<&mut F> {
        self.frames[..self.count].get_mut(place)?.as_mut()
    }

    /// Takes the frame out of a slot.
    #[inline]
    pub fn take(&mut self, place: usize) -> Option<F> {
        self.frames[..self.count].get_mut(place)?.take()
    }

    /// All slots in use, in order; empty ones are `None`.
    #[inline]
    pub fn places(&self) -> &[Option<F>] {
        &self.frames[..self.count]
    }

    /// All slots in use, mutable.
    #[inline]
    pub fn places_mut(&mut self) -> &mut [Option<F>] {
        &mut self.frames[..self.count]
    }

    /// Takes all frames out, in order, and leaves the burst empty.
    #[inline]
    pub fn drain(&mut self) -> impl Iterator<Item = F> + '_ {
        let count = std::mem::take(&mut self.count);
        self.frames[..count].iter_mut().filter_map(Option::take)
    }

    /// Moves the remaining frames to the front, in order, and drops the empty slots.
    pub fn compact(&mut self) {
        let mut kept = 0;
        for place in 0..self.count {
            if self.frames[place].is_some() {
                self.frames.swap(kept, place);
                kept += 1;
            }
        }
        self.count = kept;
    }

    /// Drops all slots, which must be empty.
    pub fn reset(&mut self) {
        debug_assert!(self.places().iter().all(Option::is_none), "a frame would be lost");
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::freelist::FramePool;

    #[test]
    fn mask_lists_its_places_in_order() {
        let mut mask = Mask::first(130);
        mask.clear(64);
        mask.set(255);
        let expected: Vec<_> = (0..64).chain(65..130).chain([255]).collect();
        assert_eq!(mask.iter().collect::<Vec<_>>(), expected);
        assert_eq!((mask.count(), mask.has(64), mask.has(129)), (130, false, true));
        assert_eq!(Mask::first(256).count(), 256);
        assert_eq!(Mask::from_words(mask.words()), mask);
        let rest = mask.without(&Mask::first(128));
        assert_eq!((rest.iter().collect::<Vec<_>>(), rest.and(&mask)), (vec![128, 129, 255], rest));
        assert!(Mask::first(0).is_empty());
    }

    #[test]
    fn burst_keeps_every_frame() {
        let frame_pool = FramePool::new(300, 2048).unwrap();
        let mut list = Freelist::new(frame_pool.clone(), 512);
        let mut burst = Burst::new();
        while let Some(frame) = list.allocate() {
            if let Err(frame) = burst.push(frame) {
                list.free(frame);
                break;
            }
        }
        assert!(burst.is_full());
        let taken = burst.take(7).unwrap();
        assert!(burst.take(7).is_none() && burst.get(7).is_none());
        list.free(taken);
        burst.compact();
        assert_eq!((burst.len(), burst.frames()), (255, 255));
        assert_eq!(burst.free_all(&mut list), 255);
        drop(list);
        assert_eq!(frame_pool.available(), 300);
    }
}
