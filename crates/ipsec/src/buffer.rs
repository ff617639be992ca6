//! A packet with free bytes in front of it and behind it, all in one slice.
//!
//! ```text
//! bytes:  | headroom | data: an IP packet | tailroom |
//! ```
//!
//! Headers are added in front and a trailer behind without moving the packet. The owner of a frame makes one over the
//! frame's slot, and takes over where data begins and ends afterwards.

use std::ops::Range;

/// A packet and the room around it.
#[derive(Debug, Default)]
pub struct Buffer<'a> {
    bytes: &'a mut [u8],
    start: usize,
    end: usize,
}

impl<'a> Buffer<'a> {
    /// The packet at `data` of `bytes`; `None` if that is not within them.
    pub fn new(bytes: &'a mut [u8], data: Range<usize>) -> Option<Self> {
        let fits = data.start <= data.end && data.end <= bytes.len();
        fits.then_some(Self { bytes, start: data.start, end: data.end })
    }

    /// Where the packet is in the slice.
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// The packet.
    #[inline]
    pub fn data(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The packet, mutable.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// Bytes of the packet.
    #[inline]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether there is no packet.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Bytes free in front.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.start
    }

    /// Bytes free behind.
    #[inline]
    pub fn tailroom(&self) -> usize {
        self.bytes.len() - self.end
    }

    /// Extends the packet by `front` and `back` bytes, which the caller has found to be free.
    #[inline]
    pub(crate) fn extend(&mut self, front: usize, back: usize) {
        debug_assert!(front <= self.headroom() && back <= self.tailroom());
        self.start -= front;
        self.end += back;
    }

    /// Removes bytes from the front, or all if there are fewer.
    #[inline]
    pub(crate) fn trim_front(&mut self, count: usize) {
        self.start += count.min(self.len());
    }

    /// Truncates the packet to `length` bytes.
    #[inline]
    pub(crate) fn truncate(&mut self, length: usize) {
        self.end = self.end.min(self.start + length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_moves_within_the_slice() {
        let mut bytes = [0, 1, 2, 3, 4, 5];
        assert!(Buffer::new(&mut bytes, 3..7).is_none());
        #[expect(clippy::reversed_empty_ranges, reason = "must be refused")]
        let reversed = Buffer::new(&mut bytes, 4..3).is_none();
        assert!(reversed);
        let mut buffer = Buffer::new(&mut bytes, 2..4).unwrap();
        assert_eq!((buffer.headroom(), buffer.tailroom(), buffer.len()), (2, 2, 2));
        buffer.extend(1, 2);
        assert_eq!(buffer.data(), [1, 2, 3, 4, 5]);
        buffer.trim_front(2);
        buffer.truncate(2);
        assert_eq!((buffer.data(), buffer.range()), (&[3, 4][..], 3..5));
        buffer.trim_front(9);
        assert!(buffer.is_empty());
    }
}
