//! A port without a device: the frames that it sends come in again, each as a new packet.
//!
//! ```text
//! transmit -> [ waiting, first in first out ] -> header written anew -> receive
//! ```
//!
//! Frames circle through their slots as through the rings of a NIC, so the caches see what they would see
//! there. Writing the new header is the only work done on a frame: it stands for the device's.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bm_frame::{BURST, Burst, Frame, Freelist};
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

/// The port.
pub(super) struct Circle<A> {
    waiting: VecDeque<Frame>,
    template: Template,
    destinations: Arc<[A]>,
    next: usize,
    index: usize,
    sample: Arc<Sample>,
}

impl<A: Packet> Circle<A> {
    /// A port of MAC `mac` that sends to `destinations` from `next` on, over and over. `room` is how many
    /// frames it may have to hold.
    pub fn new(
        frames: Vec<Frame>,
        room: usize,
        (index, mac): (usize, [u8; 6]),
        (destinations, next): (Arc<[A]>, usize),
        sample: Arc<Sample>,
    ) -> Self {
        let mut waiting = VecDeque::with_capacity(room);
        waiting.extend(frames);
        Self { waiting, template: A::template(mac), destinations, next, index, sample }
    }
}

impl<A: Packet> Port for Circle<A> {
    fn receive(&mut self, burst: &mut Burst, _frames: &mut Freelist) {
        let count = self.waiting.len().min(BURST - burst.len());
        for mut frame in self.waiting.drain(..count) {
            let destination = self.destinations[self.next];
            self.next += 1;
            if self.next == self.destinations.len() {
                self.next = 0;
            }
            frame.set_len(FRAME).expect("every slot has room for it");
            let bytes = frame.data_mut().first_chunk_mut().expect("it was just made this long");
            A::write(&self.template, bytes, destination);
            let pushed = burst.push(frame);
            debug_assert!(pushed.is_ok(), "no more were taken than fit");
        }
    }

    fn transmit(&mut self, burst: &mut Burst, _frames: &mut Freelist) {
        if self.sample.wanted.load(Ordering::Relaxed) {
            self.sample.take(self.index, burst);
        }
        self.waiting.extend(burst.drain());
    }

    fn close(&mut self, frames: &mut Freelist) {
        self.waiting.drain(..).for_each(|frame| frames.free(frame));
    }
}
