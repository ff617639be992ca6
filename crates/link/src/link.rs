//! The ring between two apps of one worker. Slots and indices are as in Snabb's `struct link`, so Lua can use them
//! directly. Received frames are not counted: they are the frames sent, less those waiting.

use bm_frame::{BURST, Burst, Frame, swap_places};

/// Slots of the ring.
const PLACES: usize = 1024;
/// The most frames it can hold: one slot stays free, to distinguish full from empty.
pub const CAPACITY: usize = PLACES - 1;

/// Counters of a link since it was created. The names are Snabb's.
///
/// Not shared: named and ordered as in Snabb.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LinkStats {
    /// Bytes of the frames sent into the link.
    pub txbytes: u64,
    /// Bytes of the frames received from the link.
    pub rxbytes: u64,
    /// Frames sent into the link.
    pub txpackets: u64,
    /// Frames received from the link.
    pub rxpackets: u64,
    /// Frames lost because the link was full.
    pub txdrop: u64,
}

/// What is counted while frames move: frames sent. Frames received are those, less the frames waiting.
///
/// Shared with Lua as part of a [`Link`].
#[derive(Default)]
#[repr(C)]
struct Counts {
    txbytes: u64,
    txdrop: u64,
    // Not next to `txbytes`: side by side the two are added as one vector, and each frame then waits ten
    // cycles for the sums of the one before.
    txpackets: u64,
}

/// A ring of frames between two apps of one worker.
///
/// Shared with Lua if it belongs to a Lua state. Lua and Rust use it in turns: `bm-lua` makes a reference from its
/// raw pointer for a single call into Rust, and none exists while Lua runs.
#[repr(C)]
pub struct Link {
    packets: [Option<Frame>; PLACES],
    read: u32,
    write: u32,
    counts: Counts,
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// An empty link.
    pub const fn new() -> Self {
        let counts = Counts { txbytes: 0, txpackets: 0, txdrop: 0 };
        Self { packets: [const { None }; PLACES], read: 0, write: 0, counts }
    }

    /// The number of waiting frames.
    #[inline]
    pub fn readable(&self) -> usize {
        (self.write.wrapping_sub(self.read) as usize) % PLACES
    }

    /// The number of frames for which there is room.
    #[inline]
    pub fn writable(&self) -> usize {
        CAPACITY - self.readable()
    }

    /// Whether no frame is waiting.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.read == self.write
    }

    /// Removes the oldest frame.
    #[inline]
    pub fn receive(&mut self) -> Option<Frame> {
        if self.is_empty() {
            return None;
        }
        let frame = self.packets[self.read as usize % PLACES].take();
        self.read = (self.read + 1) % PLACES as u32;
        frame
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// Returns the frame if the link is full, and counts `txdrop`.
    #[inline]
    pub fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        let next = (self.write + 1) % PLACES as u32;
        if next == self.read {
            self.counts.txdrop += 1;
            return Err(frame);
        }
        self.counts.txpackets += 1;
        self.counts.txbytes += frame.len() as u64;
        self.packets[self.write as usize % PLACES] = Some(frame);
        self.write = next;
        Ok(())
    }

    /// Moves frames into `burst` until it is full or the link is empty; returns how many.
    #[inline]
    pub fn receive_burst(&mut self, burst: &mut Burst) -> usize {
        self.receive_some(burst, BURST)
    }

    /// Like [`Self::receive_burst`], but at most `most` frames.
    #[inline]
    pub fn receive_some(&mut self, burst: &mut Burst, most: usize) -> usize {
        let to = burst.vacant_mut();
        let (count, start) = (self.readable().min(to.len()).min(most), self.read as usize % PLACES);
        // The slots are swapped: the ring gets the empty slots of the burst.
        self.swap(start, &mut to[..count]);
        self.read = (self.read + count as u32) % PLACES as u32;
        burst.occupy(count);
        count
    }

    /// Moves frames from the front of `burst` until the link is full or the burst is empty; returns how many. Frames
    /// that are left count as `txdrop`, as if each had been transmitted separately.
    #[inline]
    pub fn transmit_burst(&mut self, burst: &mut Burst) -> usize {
        let from = burst.places_mut();
        let (count, start) = (from.len(), self.write as usize % PLACES);
        let (frames, bytes) = sums(from);
        if frames < count || count > self.writable() {
            return self.transmit_each(burst);
        }
        self.counts.txpackets += count as u64;
        self.counts.txbytes += bytes;
        self.swap(start, from);
        self.write = (self.write + count as u32) % PLACES as u32;
        burst.reset();
        count
    }

    /// Free slots that follow each other, as many as there are before the ring's end: a port receives straight into
    /// them, from the front, followed by a call of [`occupy`](Self::occupy).
    #[inline]
    pub fn vacant_mut(&mut self) -> &mut [Option<Frame>] {
        let start = self.write as usize % PLACES;
        let count = self.writable().min(PLACES - start);
        &mut self.packets[start..start + count]
    }

    /// Adds the frames that now are in the first `count` of [these slots](Self::vacant_mut), of `bytes` bytes in all.
    #[inline]
    pub fn occupy(&mut self, count: usize, bytes: u64) {
        let vacant = self.vacant_mut();
        let count = count.min(vacant.len());
        debug_assert_eq!(sums(&vacant[..count]), (count, bytes), "frames without gaps, and their bytes");
        self.counts.txpackets += count as u64;
        self.counts.txbytes += bytes;
        self.write = (self.write + count as u32) % PLACES as u32;
    }

    /// The oldest frames, as many as follow each other before the ring's end: a port sends straight from there,
    /// followed by a call of [`release`](Self::release).
    #[inline]
    pub fn waiting_mut(&mut self) -> &mut [Option<Frame>] {
        let start = self.read as usize % PLACES;
        let count = self.readable().min(PLACES - start);
        &mut self.packets[start..start + count]
    }

    /// Removes the first `count` of [these slots](Self::waiting_mut), which must be empty by now.
    #[inline]
    pub fn release(&mut self, count: usize) {
        let waiting = self.waiting_mut();
        let count = count.min(waiting.len());
        debug_assert!(waiting[..count].iter().all(Option::is_none), "a frame would be lost");
        self.read = (self.read + count as u32) % PLACES as u32;
    }

    /// Swaps `places` with slots of the ring from `start` on, wrapping around at its end.
    #[inline]
    fn swap(&mut self, start: usize, places: &mut [Option<Frame>]) {
        if let Some(ring) = self.packets.get_mut(start..start + places.len()) {
            return swap_places(places, ring);
        }
        let (front, back) = places.split_at_mut(PLACES - start);
        swap_places(front, &mut self.packets[start..]);
        swap_places(back, &mut self.packets[..back.len()]);
    }

    #[cold]
    fn transmit_each(&mut self, burst: &mut Burst) -> usize {
        let before = self.counts.txpackets;
        for place in burst.places_mut() {
            if let Some(frame) = place.take() {
                *place = self.transmit(frame).err();
            }
        }
        if burst.frames() == 0 {
            burst.reset();
        }
        (self.counts.txpackets - before) as usize
    }

    /// Empties the slots from `from` up to the next one to read, whose frames Lua received by reading the slots
    /// directly; returns that position. Apps in Rust swap slots, and must not find a frame there that belongs to
    /// another owner by now.
    pub fn settle(&mut self, from: usize) -> usize {
        let read = self.read as usize % PLACES;
        if from <= read {
            self.packets[from..read].fill_with(|| None);
        } else {
            self.packets[from..].fill_with(|| None);
            self.packets[..read].fill_with(|| None);
        }
        read
    }

    /// The link's counters.
    pub fn stats(&self) -> LinkStats {
        let Counts { txbytes, txpackets, txdrop } = self.counts;
        let (waiting, start) = (self.readable(), self.read as usize % PLACES);
        let front = &self.packets[start..(start + waiting).min(PLACES)];
        let bytes = sums(front).1 + sums(&self.packets[..waiting - front.len()]).1;
        let (rxbytes, rxpackets) = (txbytes - bytes, txpackets - waiting as u64);
        LinkStats { txbytes, rxbytes, txpackets, rxpackets, txdrop }
    }

    /// Bytes of the frames sent, as in [`stats`](Self::stats) but at the cost of a single load.
    #[inline]
    pub fn txbytes(&self) -> u64 {
        self.counts.txbytes
    }

    /// How often a frame was sent or received.
    #[inline]
    pub fn moves(&self) -> u64 {
        2 * self.counts.txpackets - self.readable() as u64
    }
}

/// The number of frames, and the sum of their bytes.
#[inline]
fn sums(places: &[Option<Frame>]) -> (usize, u64) {
    // In groups of eight, so that the compiler unrolls eight steps instead of two.
    let (eights, rest) = places.as_chunks::<8>();
    let (mut gaps, mut bytes) = (0, 0);
    for eight in eights {
        for place in eight {
            match place {
                Some(frame) => bytes += frame.len() as u64,
                None => gaps += 1,
            }
        }
    }
    let left = rest.iter().flatten();
    let (more, in_rest) = left.fold((0, 0), |(count, bytes), frame| (count + 1, bytes + frame.len() as u64));
    (eights.len() * 8 - gaps + more, bytes + in_rest)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use bm_frame::{FramePool, Freelist};

    fn frames(count: usize) -> (Freelist, Vec<Frame>) {
        let mut list = Freelist::new(FramePool::new(2048, 2048).unwrap(), 4096);
        let frames = (0..count).map(|n| list.allocate_with(&(n as u32).to_be_bytes()).unwrap()).collect();
        (list, frames)
    }

    #[test]
    fn keeps_order_and_counts() {
        let (mut list, frames) = frames(2000);
        let mut link = Link::new();
        let mut expected = 0u32;
        for frame in frames {
            link.transmit(frame).unwrap();
            if link.readable() == 3 {
                let frame = link.receive().unwrap();
                assert_eq!(frame.data(), expected.to_be_bytes());
                expected += 1;
                list.free(frame);
            }
        }
        let stats = link.stats();
        assert_eq!((stats.txpackets, stats.rxpackets, stats.txbytes, stats.txdrop), (2000, 1998, 8000, 0));
        assert_eq!(link.readable(), 2);
    }

    #[test]
    fn gives_back_what_does_not_fit() {
        let (_list, frames) = frames(CAPACITY + 1);
        let mut link = Link::new();
        let refused: Vec<_> = frames.into_iter().filter_map(|frame| link.transmit(frame).err()).collect();
        assert_eq!((refused.len(), link.readable(), link.writable()), (1, CAPACITY, 0));
        assert_eq!(refused[0].data(), (CAPACITY as u32).to_be_bytes());
        assert_eq!(link.stats().txdrop, 1);
        let mut burst = Burst::new();
        assert_eq!((link.receive_burst(&mut burst), link.readable()), (256, CAPACITY - 256));
        assert_eq!(burst.get(255).unwrap().data(), 255u32.to_be_bytes());
    }

    fn burst_of(frames: &mut impl Iterator<Item = Frame>, count: usize) -> Burst {
        let mut burst = Burst::new();
        frames.take(count).for_each(|frame| burst.push(frame).unwrap());
        burst
    }

    #[test]
    fn carries_bursts_in_order_round_the_end_of_the_ring() {
        let (mut list, frames) = frames(2000);
        let mut frames = frames.into_iter();
        let (mut link, mut expected) = (Link::new(), 0u32);
        for count in [200, 256, 1, 256, 256, 255, 256, 256, 256] {
            let mut burst = burst_of(&mut frames, count);
            // Empty slots are skipped.
            burst.take(0).into_iter().for_each(|frame| list.free(frame));
            expected += 1;
            let moved = link.transmit_burst(&mut burst);
            assert_eq!((moved, burst.len()), (count - 1, 0));
            assert_eq!(link.receive_burst(&mut burst), moved);
            for frame in burst.drain() {
                assert_eq!(frame.data(), expected.to_be_bytes());
                expected += 1;
                list.free(frame);
            }
        }
        let stats = link.stats();
        assert_eq!((stats.txpackets, stats.rxpackets, stats.txdrop), (1983, 1983, 0));
        assert_eq!((stats.txbytes, stats.rxbytes), (4 * 1983, 4 * 1983));
    }

    #[test]
    fn is_filled_and_emptied_in_place_round_the_end_of_the_ring() {
        let (mut list, frames) = frames(2000);
        let mut frames = frames.into_iter();
        let (mut link, mut expected, mut turns_cut) = (Link::new(), 0u32, 0);
        for count in [1000, 1, 22, 300, 1023, 255, 700].into_iter().cycle().take(21) {
            let mut left = count.min(frames.len());
            let before = link.readable();
            assert_eq!(before, 0);
            for turn in 0.. {
                let vacant = link.vacant_mut();
                assert!(vacant.iter().all(Option::is_none));
                let here = vacant.len().min(left);
                vacant[..here].iter_mut().for_each(|place| *place = frames.next());
                link.occupy(here, 4 * here as u64);
                left -= here;
                if left == 0 {
                    turns_cut += turn;
                    break;
                }
            }
            assert!(link.stats().rxpackets == u64::from(expected));
            while !link.is_empty() {
                let waiting = link.waiting_mut();
                let here = waiting.len().min(256);
                for place in &mut waiting[..here] {
                    let frame = place.take().unwrap();
                    assert_eq!(frame.data(), expected.to_be_bytes());
                    expected += 1;
                    list.free(frame);
                }
                link.release(here);
            }
        }
        assert!(turns_cut > 0, "the ring's end was met");
        assert!(link.waiting_mut().is_empty());
        let stats = link.stats();
        assert_eq!(
            (stats.txpackets, stats.rxpackets, stats.txbytes, stats.rxbytes),
            (2000, 2000, 8000, 8000)
        );
    }

    #[test]
    fn a_full_link_has_no_free_place_to_fill() {
        let (mut list, frames) = frames(CAPACITY);
        let mut link = Link::new();
        frames.into_iter().for_each(|frame| link.transmit(frame).unwrap());
        assert!(link.vacant_mut().is_empty());
        link.occupy(1, 0);
        assert_eq!((link.readable(), link.stats().txpackets), (CAPACITY, CAPACITY as u64));
        while let Some(frame) = link.receive() {
            list.free(frame);
        }
    }

    #[test]
    fn leaves_in_the_burst_what_does_not_fit() {
        let (mut list, frames) = frames(1100);
        let mut frames = frames.into_iter();
        let mut link = Link::new();
        for _ in 0..3 {
            assert_eq!(link.transmit_burst(&mut burst_of(&mut frames, 256)), 256);
        }
        let mut burst = burst_of(&mut frames, 256);
        assert_eq!((link.transmit_burst(&mut burst), burst.frames(), link.writable()), (255, 1, 0));
        assert_eq!(burst.get(255).unwrap().data(), 1023u32.to_be_bytes());
        assert_eq!(link.stats().txdrop, 1);
        let mut more = Burst::new();
        assert_eq!((link.receive_burst(&mut more), link.receive_burst(&mut burst)), (256, 0));
        more.free_all(&mut list);
        burst.free_all(&mut list);
    }
}
