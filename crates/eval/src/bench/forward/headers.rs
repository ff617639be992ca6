//! Reading and writing headers alone: what no router can do without, besides the lookup.
//!
//! Of each frame, the destination MAC, type, header and header checksum are read and compared with their expected
//! values, as for validation; then both MACs and the word with the TTL are written, as for rewriting. As many frames
//! as circulate in the router are used, in the same slots, a burst at a time.

use bm_frame::{BURST, Frame, Freelist};

use super::packet::{FRAME, Packet, Template};

/// The MAC that frames are sent to, which is also written to them.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Destination and source, as the two stores of a router: an array of bytes would be stored one byte at a time by the
/// compiler, but only in some builds.
const MACS: (u64, u32) = {
    let [a, b, c, d, e, f] = MAC;
    (u64::from_le_bytes([a, b, c, d, e, f, a, b]), u32::from_le_bytes([c, d, e, f]))
};

/// Frames whose headers are read and written again and again.
pub(super) struct Headers<A: Packet> {
    template: Template,
    frames: Vec<Frame>,
    arrivals: Vec<A::Arrival>,
    next: usize,
    freelist: Freelist,
}

impl<A: Packet> Headers<A> {
    /// `count` frames of `freelist`, to some of `destinations`; `None` if there are fewer free frames.
    pub fn new(count: usize, mut freelist: Freelist, destinations: &[A]) -> Option<Self> {
        let template = A::template(MAC, FRAME as u16);
        let frames =
            (0..count).map(|_| freelist.allocate_with(template.bytes())).collect::<Option<Vec<_>>>()?;
        let arrivals = destinations.iter().cycle().take(count).map(|&to| A::arrival(&template, to)).collect();
        let mut headers = Self { template, frames, arrivals, next: 0, freelist };
        headers.renew();
        Some(headers)
    }

    /// Makes every frame one that has just arrived.
    fn renew(&mut self) {
        for (frame, arrival) in self.frames.iter_mut().zip(&self.arrivals) {
            if let Some(bytes) = frame.data_mut().first_chunk_mut() {
                A::renew(&self.template, bytes, arrival);
            }
        }
    }

    /// Processes one burst; returns how many frames were correct.
    pub fn pass(&mut self) -> u64 {
        if self.next >= self.frames.len() {
            self.next = 0;
        }
        let end = self.frames.len().min(self.next + BURST);
        let right =
            self.frames[self.next..end].iter_mut().map(|frame| match frame.data_mut().first_chunk_mut() {
                Some(bytes) => u64::from(one::<A>(bytes)),
                None => 0,
            });
        let right = right.sum();
        self.next = end;
        right
    }
}

/// Reads the headers of a frame, and writes them if they are correct.
#[inline(always)]
fn one<A: Packet>(bytes: &mut [u8; FRAME]) -> bool {
    let is_right = bytes[..6] == MAC && A::is_right(bytes);
    if is_right {
        // The old and the new MAC are equal, so that the frame stays correct; the compiler must not know that.
        let (start, rest) = std::hint::black_box(MACS);
        bytes[..8].copy_from_slice(&start.to_le_bytes());
        bytes[8..12].copy_from_slice(&rest.to_le_bytes());
        A::decrement_or_restore_ttl(bytes);
    }
    is_right
}

impl<A: Packet> Drop for Headers<A> {
    fn drop(&mut self) {
        self.frames.drain(..).for_each(|frame| self.freelist.free(frame));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_frame::FramePool;

    #[test]
    fn frames_stay_valid_however_often_they_pass() {
        let frame_pool = FramePool::new(512, 2048).unwrap();
        let list = || Freelist::new(frame_pool.clone(), 128);
        let mut ipv4 = Headers::<u32>::new(300, list(), &[0x0808_0808, 0x0909_0909]).unwrap();
        assert_eq!((0..600).map(|_| ipv4.pass()).sum::<u64>(), 300 * 300);
        drop(ipv4);
        let mut ipv6 = Headers::<u128>::new(300, list(), &[0x2a00 << 112]).unwrap();
        assert_eq!((0..600).map(|_| ipv6.pass()).sum::<u64>(), 300 * 300);
        drop(ipv6);
        assert_eq!(frame_pool.available(), 512);
        assert!(Headers::<u32>::new(513, list(), &[1]).is_none());
    }
}
