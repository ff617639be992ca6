//! The ring between two apps of one worker. Slots and indices are as in Snabb's `struct link`, so Lua can use them
//! directly. Received frames are not counted: they are the frames sent, less those waiting.
//!
//! Where both ends allow it, a link also carries frames that are described by their mbufs only ([`MbufFrame`]). All
//! frames that wait are of one kind. An app that receives a [`Frame`] gets one: its header is written then.

use bm_frame::{AnyFrame, BURST, Burst, Frame, MbufFrame, pick_into, swap_places};

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
    /// Whether the waiting frames are [`MbufFrame`]s.
    has_mbufs: bool,
    /// Whether they may be: the app that receives them can use such frames.
    takes_mbufs: bool,
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
        let packets = [const { None }; PLACES];
        Self { packets, read: 0, write: 0, counts, has_mbufs: false, takes_mbufs: false }
    }

    /// A link to an app that receives frames described by their mbufs, too.
    pub const fn with_mbufs() -> Self {
        Self { takes_mbufs: true, ..Self::new() }
    }

    /// Whether it may carry frames described by their mbufs.
    #[inline]
    pub fn takes_mbufs(&self) -> bool {
        self.takes_mbufs
    }

    /// Whether frames described by their mbufs are waiting.
    #[inline]
    pub fn has_mbufs(&self) -> bool {
        self.has_mbufs && !self.is_empty()
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
        self.use_kind::<Frame>();
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
        self.use_kind::<Frame>();
        self.counts.txpackets += 1;
        self.counts.txbytes += frame.len() as u64;
        self.packets[self.write as usize % PLACES] = Some(frame);
        self.write = next;
        Ok(())
    }

    /// Moves frames into `burst` until it is full or the link is empty; returns how many: none of [`MbufFrame`]s unless
    /// the link [has such](Self::has_mbufs).
    #[inline]
    pub fn receive_burst<F: AnyFrame>(&mut self, burst: &mut Burst<F>) -> usize {
        self.receive_some(burst, BURST)
    }

    /// Like [`Self::receive_burst`], but at most `most` frames.
    #[inline]
    pub fn receive_some<F: AnyFrame>(&mut self, burst: &mut Burst<F>, most: usize) -> usize {
        if F::IS_MBUF && !self.has_mbufs {
            return 0;
        }
        self.use_kind::<F>();
        let to = burst.vacant_mut();
        let (count, start) = (self.readable().min(to.len()).min(most), self.read as usize % PLACES);
        // The slots are swapped: the ring gets the empty slots of the burst.
        self.swap(start, &mut to[..count]);
        self.read = (self.read + count as u32) % PLACES as u32;
        burst.occupy(count);
        count
    }

    /// Moves frames from the front of `burst` until the link is full or the burst is empty; returns how many. Frames
    /// that are left count as `txdrop`, as if each had been transmitted separately. The headers of [`MbufFrame`]s are
    /// written if the link does not take such frames, or if others wait in it.
    #[inline]
    pub fn transmit_burst<F: AnyFrame>(&mut self, burst: &mut Burst<F>) -> usize {
        let count = burst.len();
        if !self.transmit_all(burst.places_mut()) {
            return self.transmit_each(burst);
        }
        burst.reset();
        count
    }

    /// Moves frames into the link, and leaves their slots empty; `false` if one is missing, if there is no room for all, or
    /// if the link does not take frames of their kind now: then nothing is moved.
    #[inline]
    pub fn transmit_all<F: AnyFrame>(&mut self, from: &mut [Option<F>]) -> bool {
        let is_kind = self.use_kind::<F>();
        let (count, start) = (from.len(), self.write as usize % PLACES);
        let (frames, bytes) = sums(from);
        if frames < count || count > self.writable() || !is_kind {
            return false;
        }
        self.counts.txpackets += count as u64;
        self.counts.txbytes += bytes;
        self.swap(start, from);
        self.write = (self.write + count as u32) % PLACES as u32;
        true
    }

    /// Moves those of `frames` into the link for whose slot `keys` contains `key`, in order; returns how many. `None` if it
    /// does not take frames of their kind now, or if there may not be room for all before the ring's end: then nothing
    /// is moved.
    #[inline]
    pub fn transmit_where<F: AnyFrame>(
        &mut self,
        frames: &mut [Option<F>],
        keys: &[u16],
        key: u16,
    ) -> Option<usize> {
        let vacant = self.vacant_as().filter(|vacant| vacant.len() >= frames.len())?;
        let count = pick_into(frames, keys, key, vacant);
        let bytes = sums(&vacant[..count]).1;
        self.occupy(count, bytes);
        Some(count)
    }

    /// Free slots that follow each other, as many as there are before the ring's end: a port receives straight into
    /// them, from the front, followed by a call of [`occupy`](Self::occupy).
    #[inline]
    pub fn vacant_mut(&mut self) -> &mut [Option<Frame>] {
        self.use_kind::<Frame>();
        self.vacant()
    }

    /// [`vacant_mut`](Self::vacant_mut) for frames described by their mbufs; `None` if the link does not take such frames
    /// now.
    #[inline]
    pub fn vacant_mbufs_mut(&mut self) -> Option<&mut [Option<MbufFrame>]> {
        self.use_kind::<MbufFrame>().then(|| self.vacant())
    }

    /// [`vacant_mut`](Self::vacant_mut) for frames of either kind; `None` if the link does not take such frames now.
    #[inline(always)]
    pub fn vacant_as<F: AnyFrame>(&mut self) -> Option<&mut [Option<F>]> {
        self.use_kind::<F>().then(|| self.vacant())
    }

    #[inline(always)]
    fn vacant<F: AnyFrame>(&mut self) -> &mut [Option<F>] {
        let start = self.write as usize % PLACES;
        let count = self.writable().min(PLACES - start);
        &mut self.slots()[start..start + count]
    }

    /// Adds the frames that now are in the first `count` of [these slots](Self::vacant_mut), of `bytes` bytes in all.
    #[inline]
    pub fn occupy(&mut self, count: usize, bytes: u64) {
        let vacant = self.vacant::<Frame>();
        let count = count.min(vacant.len());
        debug_assert!(vacant[..count].iter().all(Option::is_some), "frames without gaps");
        self.counts.txpackets += count as u64;
        self.counts.txbytes += bytes;
        self.write = (self.write + count as u32) % PLACES as u32;
    }

    /// The oldest frames, as many as follow each other before the ring's end: a port sends straight from there,
    /// followed by a call of [`release`](Self::release).
    #[inline]
    pub fn waiting_mut(&mut self) -> &mut [Option<Frame>] {
        self.use_kind::<Frame>();
        self.waiting()
    }

    /// [`waiting_mut`](Self::waiting_mut) for frames described by their mbufs; `None` if frames of the other kind wait.
    #[inline]
    pub fn waiting_mbufs_mut(&mut self) -> Option<&mut [Option<MbufFrame>]> {
        self.has_mbufs.then(|| self.waiting())
    }

    /// [`waiting_mut`](Self::waiting_mut) for frames of either kind: none if frames of the other kind wait.
    #[inline]
    pub fn waiting_as<F: AnyFrame>(&mut self) -> &mut [Option<F>] {
        if self.use_kind::<F>() { self.waiting() } else { &mut [] }
    }

    #[inline(always)]
    fn waiting<F: AnyFrame>(&mut self) -> &mut [Option<F>] {
        let start = self.read as usize % PLACES;
        let count = self.readable().min(PLACES - start);
        &mut self.slots()[start..start + count]
    }

    /// Removes the first `count` of [these slots](Self::waiting_mut), which must be empty by now.
    #[inline]
    pub fn release(&mut self, count: usize) {
        let waiting = self.waiting::<Frame>();
        let count = count.min(waiting.len());
        debug_assert!(waiting[..count].iter().all(Option::is_none), "a frame would be lost");
        self.read = (self.read + count as u32) % PLACES as u32;
    }

    /// Swaps `places` with slots of the ring from `start` on, wrapping around at its end.
    #[inline]
    fn swap<F: AnyFrame>(&mut self, start: usize, places: &mut [Option<F>]) {
        let packets = self.slots();
        if let Some(ring) = packets.get_mut(start..start + places.len()) {
            return swap_places(places, ring);
        }
        let (front, back) = places.split_at_mut(PLACES - start);
        swap_places(front, &mut packets[start..]);
        swap_places(back, &mut packets[..back.len()]);
    }

    /// All slots as those of one kind of frames: that of the waiting ones. Empty slots are of either.
    #[inline(always)]
    fn slots<F: AnyFrame>(&mut self) -> &mut [Option<F>; PLACES] {
        // SAFETY: frames of all kinds are a pointer, and null where there is none. Callers ask for the kind of the waiting
        // frames, or only for whether there are any.
        unsafe { &mut *(&raw mut self.packets).cast() }
    }

    /// The slots of a link whose frames are described by their mbufs.
    fn mbufs(&self) -> &[Option<MbufFrame>; PLACES] {
        // SAFETY: as in `slots`.
        unsafe { &*(&raw const self.packets).cast() }
    }

    /// Makes the link one of frames of a kind, if possible; returns whether it is. It is always possible for frames with
    /// headers, and for others if the link takes them and none with headers wait.
    #[inline(always)]
    fn use_kind<F: AnyFrame>(&mut self) -> bool {
        if F::IS_MBUF {
            self.has_mbufs |= self.takes_mbufs && self.is_empty();
            return self.has_mbufs;
        }
        if self.has_mbufs {
            self.write_headers();
        }
        true
    }

    #[cold]
    fn write_headers(&mut self) {
        self.has_mbufs = false;
        for at in 0..self.readable() {
            let at = (self.read as usize + at) % PLACES;
            let frame = self.slots::<MbufFrame>()[at].take();
            self.packets[at] = frame.map(MbufFrame::into_frame);
        }
    }

    #[cold]
    fn transmit_each<F: AnyFrame>(&mut self, burst: &mut Burst<F>) -> usize {
        let mut sent = 0;
        for place in burst.places_mut() {
            sent += usize::from(self.transmit_from(place));
        }
        if burst.frames() == 0 {
            burst.reset();
        }
        sent
    }

    /// Adds the frame of a slot; `false` if there is none, or if the link is full, which then counts `txdrop`.
    pub fn transmit_from<F: AnyFrame>(&mut self, place: &mut Option<F>) -> bool {
        if self.writable() == 0 {
            self.counts.txdrop += u64::from(place.is_some());
            return false;
        }
        place.take().is_some_and(|frame| self.transmit(frame.into_frame()).is_ok())
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
        let end = (start + waiting).min(PLACES);
        let back = waiting - (end - start);
        let bytes = if self.has_mbufs {
            let packets = self.mbufs();
            sums(&packets[start..end]).1 + sums(&packets[..back]).1
        } else {
            sums(&self.packets[start..end]).1 + sums(&self.packets[..back]).1
        };
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
fn sums<F: AnyFrame>(places: &[Option<F>]) -> (usize, u64) {
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
mod tests;
