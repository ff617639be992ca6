//! A port without a device: the frames that it sends come in again, each as a new packet.
//!
//! ```text
//! transmit -> [ waiting, first in first out ] -> header written anew -> receive
//! ```
//!
//! Frames circle through their slots as through the rings of a NIC, so the caches see what they would see
//! there. Writing the new header is the only work done on a frame: it stands for the device's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bm_frame::{Burst, Frame, Freelist};
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

    #[cold]
    fn take(&self, port: usize, burst: &Burst) {
        let copies = burst.places().iter().flatten().map(|frame| (port, frame.data().to_vec()));
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).extend(copies);
    }
}

/// Places of the ring that frames wait in: a power of two.
const PLACES: usize = 1024;

/// Frames whose lines are asked for ahead of their turn: a device writes without waiting for them.
const AHEAD: usize = 8;

/// The port.
pub(super) struct Circle<A> {
    ring: Box<[Option<Frame>; PLACES]>,
    /// Frames that ever came out of the ring, and those that ever went in.
    read: usize,
    write: usize,
    template: Template,
    destinations: Arc<[A]>,
    next: usize,
    index: usize,
    sample: Arc<Sample>,
}

impl<A: Packet> Circle<A> {
    /// Most frames that may circle.
    pub const ROOM: usize = PLACES;

    /// A port of MAC `mac` that sends to `destinations` from `next` on, over and over.
    pub fn new(
        frames: Vec<Frame>,
        (index, mac): (usize, [u8; 6]),
        (destinations, next): (Arc<[A]>, usize),
        sample: Arc<Sample>,
    ) -> Self {
        let mut ring = Box::new([const { None }; PLACES]);
        let write = frames.len();
        ring.iter_mut().zip(frames).for_each(|(place, frame)| *place = Some(frame));
        Self { ring, read: 0, write, template: A::template(mac), destinations, next, index, sample }
    }
}

impl<A: Packet> Port for Circle<A> {
    fn receive(&mut self, burst: &mut Burst, _frames: &mut Freelist) {
        let to = burst.vacant_mut();
        let count = to.len().min(self.write - self.read);
        for (offset, to) in to[..count].iter_mut().enumerate() {
            if let Some(ahead) = &self.ring[(self.read + offset + AHEAD) % PLACES] {
                ahead.prefetch();
            }
            let Some(mut frame) = self.ring[(self.read + offset) % PLACES].take() else { continue };
            let destination = self.destinations[self.next];
            self.next = if self.next + 1 == self.destinations.len() { 0 } else { self.next + 1 };
            if frame.len() != FRAME {
                frame.set_len(FRAME).expect("every slot has room for it");
            }
            let bytes = frame.data_mut().first_chunk_mut().expect("it was just made this long");
            A::write(&self.template, bytes, destination);
            *to = Some(frame);
        }
        self.read += count;
        burst.occupy(count);
    }

    fn transmit(&mut self, burst: &mut Burst, _frames: &mut Freelist) {
        if self.sample.wanted.load(Ordering::Relaxed) {
            self.sample.take(self.index, burst);
        }
        for frame in burst.places_mut() {
            self.ring[self.write % PLACES] = frame.take();
            self.write += 1;
        }
        burst.reset();
    }

    fn close(&mut self, frames: &mut Freelist) {
        self.ring.iter_mut().filter_map(Option::take).for_each(|frame| frames.free(frame));
    }
}
