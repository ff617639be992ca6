//! One queue of a device, used by one worker.

use std::cell::Cell;
use std::sync::Arc;

use bm_frame::{BURST, Burst, Frame, Freelist};
use bm_port::{DeviceCounters, InPlace, Port, Received, Transmitted};

use crate::ffi::{self, Counts, Header, Queue};
use crate::rest::QueuePause;
use crate::shared::Shared;

/// The most frames that an in-memory ring may still contain at the end.
const DRAIN: usize = 1 << 16;

/// A queue of a device that DPDK drives.
pub struct DpdkPort {
    queue: Queue,
    shared: Arc<Shared>,
    pause: QueuePause,
    /// The device's counters when they were read last; they are not read while it is paused or when it is gone.
    counts: Cell<Counts>,
}

// SAFETY: the pointers in `queue` are those of pools, which many threads may use; the queue itself is used by
// whoever holds the port alone.
unsafe impl Send for DpdkPort {}

impl DpdkPort {
    pub(crate) fn new(shared: Arc<Shared>, queue: u16) -> Self {
        let queue = Queue {
            port: shared.port,
            queue,
            pool: shared.pool.pointer(),
            own_pool: shared.own_pool(),
            too_long: 0,
            no_frame: 0,
            invalid: 0,
            bytes: 0,
        };
        let pause = shared.rest.pause();
        Self { queue, shared, pause, counts: Cell::default() }
    }
}

impl InPlace for DpdkPort {
    fn receive_into(&mut self, places: &mut [Option<Frame>], frames: &mut Freelist) -> Received {
        debug_assert!(std::ptr::eq(frames.memory(), self.shared.memory), "frames of the device's own memory");
        debug_assert!(places.iter().all(Option::is_none), "a frame would be lost");
        if self.shared.rest.keeps(&self.pause) {
            return Received::default();
        }
        let (stack, freelist) = (frames.stack().as_ptr(), std::ptr::from_mut(frames));
        let (to, room) = (places.as_mut_ptr().cast::<*mut Header>(), places.len().min(BURST) as u32);
        // SAFETY: an empty place is a null pointer and a frame the address of its header, so the shim can fill
        // places. It writes headers only of frames that the driver gives up, and takes free frames from the list
        // that we hold for as long as the call lasts.
        let count = unsafe { ffi::bm_receive(&mut self.queue, stack.cast(), freelist.cast(), to, room) };
        Received { count: count as usize, bytes: self.queue.bytes }
    }

    fn transmit_from(&mut self, places: &mut [Option<Frame>], frames: &mut Freelist) -> Transmitted {
        debug_assert!(std::ptr::eq(frames.memory(), self.shared.memory), "frames of the device's own memory");
        // The shim's arrays have so many places.
        let (places, rest) = places.split_at_mut(places.len().min(BURST));
        let behind = || rest.iter().flatten().count();
        if self.shared.rest.keeps(&self.pause) {
            return Transmitted { refused: 0, left: places.iter().flatten().count() + behind() };
        }
        let before = self.queue.invalid;
        let (stack, freelist) = (frames.stack().as_ptr(), std::ptr::from_mut(frames));
        let (from, count) = (places.as_mut_ptr().cast::<*mut Header>(), places.len() as u32);
        // SAFETY: as in `receive_into`; the shim empties the places of frames that the driver has taken over.
        let left = unsafe { ffi::bm_transmit(&mut self.queue, stack.cast(), freelist.cast(), from, count) };
        Transmitted { refused: (self.queue.invalid - before) as usize, left: left as usize + behind() }
    }
}

impl Port for DpdkPort {
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        let received = self.receive_into(burst.vacant_mut(), frames);
        burst.occupy(received.count);
    }

    fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize {
        let Transmitted { refused, left } = self.transmit_from(burst.places_mut(), frames);
        if left == 0 {
            burst.reset();
        }
        refused
    }

    fn in_place(&mut self) -> Option<&mut dyn InPlace> {
        Some(self)
    }

    /// Leaves the queue alone while a full link keeps the worker from receiving.
    fn tend(&mut self, _frames: &mut Freelist) {
        let _at_rest = self.shared.rest.keeps(&self.pause);
    }

    /// A device counts for all of its queues, so the first one reports.
    fn device_counters(&self) -> DeviceCounters {
        if self.queue.queue == 0 && !self.shared.rest.keeps(&self.pause) {
            let mut counts = Counts::default();
            // SAFETY: the shim writes one `Counts`. What it does not know stays zero.
            let known = unsafe { ffi::bm_device_counts(self.queue.port, &mut counts) } == 0;
            // Those of a device that is gone stay as they were.
            if known {
                self.counts.set(counts);
            }
        }
        let counts = self.counts.get();
        DeviceCounters {
            receive_ring_full: counts.missed,
            receive_no_frame: counts.no_frame + self.queue.no_frame,
            receive_other: counts.receive_errors + self.queue.too_long,
            transmit_invalid: counts.transmit_errors,
        }
    }

    /// In-memory rings keep their frames when they are closed, so they are emptied.
    fn close(&mut self, frames: &mut Freelist) {
        if self.shared.driver != "net_ring" {
            return;
        }
        let mut burst = Burst::new();
        for _ in 0..DRAIN / BURST {
            self.receive(&mut burst, frames);
            if burst.free_all(frames) == 0 {
                return;
            }
        }
    }
}
