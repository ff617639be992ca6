//! A port without a device: the frames that it sends come in again, each as a new packet.
//!
//! ```text
//! transmit -> [ waiting, first in first out ] -> header written anew -> receive
//! ```
//!
//! Frames circle through their slots as through the rings of a NIC, so the caches see what they would see
//! there. Writing the new header is the only work done on a frame: it stands for the device's. It writes what the
//! router may have changed or what differs from packet to packet, and leaves what stands there already.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bm_frame::{Burst, Frame, Freelist, swap_places};
use bm_port::Port;

use super::packet::{FRAME, Packet, Template};

/// What left a port while it was looked at, with the index of the port.
#[derive(Default)]
pub(super) struct Sample {
    wanted: AtomicBool,
    taken: Mutex<Vec<(usize, Vec<u8>)>>,
}

impl Sample {
    /// Begins to keep copies of what leaves.
    pub fn begin(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Ends it, and gives the copies.
    pub fn end(&self) -> Vec<(usize, Vec<u8>)> {
        self.wanted.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.taken.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Copies what leaves through a port, if it is looked at.
    pub fn look(&self, port: usize, burst: &Burst) {
        if self.wanted.load(Ordering::Relaxed) {
            self.take(port, burst);
        }
    }

    #[cold]
    fn take(&self, port: usize, burst: &Burst) {
        let copies = burst.places().iter().flatten().map(|frame| (port, frame.data().to_vec()));
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).extend(copies);
    }
}

/// Places of the ring that frames wait in: a power of two.
const PLACES: usize = 1024;

/// Frames whose headers are asked for together.
const AHEAD: usize = 32;

/// The port.
pub(super) struct Circle<A: Packet> {
    ring: Box<[Option<Frame>; PLACES]>,
    /// Frames that ever came out of the ring, and those that ever went in.
    read: usize,
    write: usize,
    template: Template,
    arrivals: Arc<[A::Arrival]>,
    next: usize,
    index: usize,
    sample: Arc<Sample>,
    /// Most frames that come at a time.
    burst: usize,
}

impl<A: Packet> Circle<A> {
    /// Most frames that may circle.
    pub const ROOM: usize = PLACES;

    /// A port of MAC `mac` with these frames, at most `burst` of them at a time, that sends `arrivals` from `next` on, over and over.
    pub fn new(
        (frames, burst): (Vec<Frame>, usize),
        (index, mac): (usize, [u8; 6]),
        (arrivals, next): (Arc<[A::Arrival]>, usize),
        sample: Arc<Sample>,
    ) -> Self {
        let mut ring = Box::new([const { None }; PLACES]);
        let (write, template) = (frames.len(), A::template(mac));
        for (place, mut frame) in ring.iter_mut().zip(frames) {
            frame.copy_from(template.bytes()).expect("every slot has room for it");
            *place = Some(frame);
        }
        Self { ring, read: 0, write, template, arrivals, next, index, sample, burst }
    }
}

impl<A: Packet> Circle<A> {
    /// Moves the frames from `at` on to `to`, as the packets from `next` on. Neither goes round the end here.
    #[inline(always)]
    fn arrive(&mut self, to: &mut [Option<Frame>], at: usize, next: usize) {
        swap_places(to, &mut self.ring[at..at + to.len()]);
        renew::<A>(&self.template, to, &self.arrivals[next..next + to.len()]);
    }
}

/// Makes frames that went out before the packets of `arrivals`, one each.
#[inline(always)]
pub(super) fn renew<A: Packet>(template: &Template, to: &mut [Option<Frame>], arrivals: &[A::Arrival]) {
    for (frames, arrivals) in to.chunks_mut(AHEAD).zip(arrivals.chunks(AHEAD)) {
        // A device writes without waiting for headers of frames.
        frames.iter().flatten().for_each(Frame::prefetch_header);
        for (place, arrival) in frames.iter_mut().zip(arrivals) {
            let Some(frame) = place else { continue };
            if frame.len() != FRAME {
                frame.set_len(FRAME).expect("every slot has room for it");
            }
            let bytes = frame.data_mut().first_chunk_mut().expect("it was just made this long");
            A::renew(template, bytes, arrival);
        }
    }
}

impl<A: Packet> Port for Circle<A> {
    fn receive(&mut self, burst: &mut Burst, _frames: &mut Freelist) {
        let to = burst.vacant_mut();
        let count = to.len().min(self.write - self.read).min(self.burst);
        let mut to = &mut to[..count];
        while !to.is_empty() {
            let (at, next) = (self.read % PLACES, self.next % self.arrivals.len());
            let part = to.len().min(PLACES - at).min(self.arrivals.len() - next);
            let (now, later) = to.split_at_mut(part);
            self.arrive(now, at, next);
            (self.read, self.next, to) = (self.read + part, next + part, later);
        }
        burst.occupy(count);
    }

    fn transmit(&mut self, burst: &mut Burst, _frames: &mut Freelist) -> usize {
        self.sample.look(self.index, burst);
        let mut from = burst.places_mut();
        while !from.is_empty() {
            let at = self.write % PLACES;
            let (now, later) = from.split_at_mut(from.len().min(PLACES - at));
            swap_places(now, &mut self.ring[at..at + now.len()]);
            (self.write, from) = (self.write + now.len(), later);
        }
        burst.reset();
        0
    }

    fn close(&mut self, frames: &mut Freelist) {
        self.ring.iter_mut().filter_map(Option::take).for_each(|frame| frames.free(frame));
    }
}
