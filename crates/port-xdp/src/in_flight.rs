//! Records which slots the kernel has. A slot that it returns is accepted only if it was lent, so no slot can ever
//! have two owners, and at the end all slots that are still lent are known.

use bm_frame::{Frame, Memory};

/// The slots that one socket has lent to the kernel.
pub(crate) struct InFlight {
    memory: &'static Memory,
    /// log2 of the slot size: slots are found by shifts on the packet path.
    shift: u32,
    bits: Box<[u64]>,
}

impl InFlight {
    pub(crate) fn new(memory: &'static Memory) -> Self {
        let shift = memory.slot_size().trailing_zeros();
        Self { memory, shift, bits: vec![0; memory.slots().div_ceil(64)].into() }
    }

    /// Lends the frame's slot; returns the address of its data in the UMEM.
    #[inline]
    pub(crate) fn lend(&mut self, frame: Frame) -> u64 {
        let address = self.memory.data_offset(&frame);
        let slot = (address >> self.shift) as usize;
        debug_assert!(self.bits[slot / 64] >> (slot % 64) & 1 == 0, "slot {slot} is lent twice");
        self.bits[slot / 64] |= 1 << (slot % 64);
        // A frame has no destructor: from here on the bit represents it.
        address
    }

    /// Takes back the slot that contains `address`, and returns the offset in it; `None` if it was not lent.
    #[inline]
    pub(crate) fn take_back(&mut self, address: u64) -> Option<(Frame, usize)> {
        let slot = (address >> self.shift) as usize;
        let word = self.bits.get_mut(slot / 64)?;
        if *word >> (slot % 64) & 1 == 0 {
            return None;
        }
        *word &= !(1 << (slot % 64));
        let offset = address as usize & ((1 << self.shift) - 1);
        // SAFETY: the bit was set, so the slot was lent by its owner and nobody but the kernel had it since;
        // the kernel has given it back, and with the bit cleared nobody else can take it.
        Some((unsafe { self.memory.claim(slot as u32) }, offset))
    }

    /// Takes back everything.
    ///
    /// # Safety
    /// The kernel no longer uses the memory: the socket is closed and its queue is free again.
    pub(crate) unsafe fn take_all(&mut self) -> impl Iterator<Item = Frame> + '_ {
        let memory = self.memory;
        self.bits.iter_mut().enumerate().flat_map(move |(index, word)| {
            let mut bits = std::mem::take(word);
            std::iter::from_fn(move || {
                let slot = index * 64 + bits.trailing_zeros() as usize;
                (bits != 0).then(|| {
                    bits &= bits - 1;
                    // SAFETY: the bit was set, so the slot was lent by its owner; the kernel no longer has
                    // it, says the caller, and with the bit cleared nobody else can take it.
                    unsafe { memory.claim(slot as u32) }
                })
            })
        })
    }

    /// The number of lent slots.
    pub(crate) fn count(&self) -> usize {
        self.bits.iter().map(|bits| bits.count_ones() as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_frame::{FramePool, Freelist};

    #[test]
    fn returns_each_slot_once_and_only_if_lent() {
        let frame_pool = FramePool::new(100, 4096).unwrap();
        let mut frames = Freelist::new(frame_pool.clone(), 128);
        let mut in_flight = InFlight::new(frame_pool.memory());
        let frame = frames.allocate().unwrap();
        let slot = u64::from(frame_pool.memory().index(&frame));
        let begin = frame.headroom();
        let address = in_flight.lend(frame);
        assert_eq!(address, slot * 4096 + begin as u64);
        assert!(in_flight.take_back(100 * 4096).is_none(), "past the region");
        assert!(in_flight.take_back(u64::MAX).is_none());
        let (frame, offset) = in_flight.take_back(address + 2).unwrap();
        assert_eq!((u64::from(frame_pool.memory().index(&frame)), offset), (slot, begin + 2));
        assert!(in_flight.take_back(address).is_none(), "taken back already");
        frames.free(frame);
        for _ in 0..70 {
            let frame = frames.allocate().unwrap();
            in_flight.lend(frame);
        }
        assert_eq!(in_flight.count(), 70);
        // SAFETY: no kernel ever had them.
        let all: Vec<_> = unsafe { in_flight.take_all() }.collect();
        assert_eq!((all.len(), in_flight.count()), (70, 0));
        all.into_iter().for_each(|frame| frames.free(frame));
        drop(frames);
        assert_eq!(frame_pool.available(), 100);
    }
}
