//! The ring between two apps of one worker. Its layout is Snabb's `struct link`, so Lua reads it as is.

use bm_frame::{Burst, Frame};

/// Places in the ring.
const PLACES: usize = 1024;
/// Frames it holds: one place stays free, to tell full from empty.
pub const CAPACITY: usize = PLACES - 1;

/// What went through a link since it was made. Names are Snabb's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LinkStats {
    /// Bytes of the frames put in.
    pub txbytes: u64,
    /// Bytes of the frames taken out.
    pub rxbytes: u64,
    /// Frames put in.
    pub txpackets: u64,
    /// Frames taken out.
    pub rxpackets: u64,
    /// Frames that found the link full.
    pub txdrop: u64,
}

/// A ring of frames between two apps of one worker.
#[repr(C)]
pub struct Link {
    packets: [Option<Frame>; PLACES],
    read: u32,
    write: u32,
    stats: LinkStats,
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// An empty link.
    pub const fn new() -> Self {
        let stats = LinkStats { txbytes: 0, rxbytes: 0, txpackets: 0, rxpackets: 0, txdrop: 0 };
        Self { packets: [const { None }; PLACES], read: 0, write: 0, stats }
    }

    /// Frames waiting.
    #[inline]
    pub fn readable(&self) -> usize {
        (self.write.wrapping_sub(self.read) as usize) % PLACES
    }

    /// Frames that may be added.
    #[inline]
    pub fn writable(&self) -> usize {
        CAPACITY - self.readable()
    }

    /// Whether no frame waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.read == self.write
    }

    /// Takes the oldest frame out.
    #[inline]
    pub fn receive(&mut self) -> Option<Frame> {
        if self.is_empty() {
            return None;
        }
        let frame = self.packets[self.read as usize % PLACES].take()?;
        self.read = (self.read + 1) % PLACES as u32;
        self.stats.rxpackets += 1;
        self.stats.rxbytes += frame.len() as u64;
        Some(frame)
    }

    /// Puts a frame in.
    ///
    /// # Errors
    /// Gives the frame back if the link is full, and counts `txdrop`.
    #[inline]
    pub fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.writable() == 0 {
            self.stats.txdrop += 1;
            return Err(frame);
        }
        self.stats.txpackets += 1;
        self.stats.txbytes += frame.len() as u64;
        self.packets[self.write as usize % PLACES] = Some(frame);
        self.write = (self.write + 1) % PLACES as u32;
        Ok(())
    }

    /// Moves frames into `burst` until it is full or the link empty; says how many.
    #[inline]
    pub fn receive_burst(&mut self, burst: &mut Burst) -> usize {
        let mut moved = 0;
        while !burst.is_full() {
            let Some(frame) = self.receive() else { break };
            moved += 1;
            // Cannot fail: the burst has a free place.
            if let Err(frame) = burst.push(frame) {
                let _full = self.transmit(frame);
                break;
            }
        }
        moved
    }

    /// What went through.
    pub fn stats(&self) -> LinkStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_frame::{Depot, Freelist};

    fn frames(count: usize) -> (Freelist, Vec<Frame>) {
        let mut list = Freelist::new(Depot::new(2048, 2048).unwrap(), 4096);
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
}
