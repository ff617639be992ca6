//! One queue of a device, used by one worker.

use std::cell::Cell;
use std::sync::Arc;

use bm_frame::{BURST, Burst, Freelist};
use bm_port::{DeviceCounters, Port};

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
    /// The device's counters when they were read last; they are not read while it is paused.
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
        };
        let pause = shared.rest.pause();
        Self { queue, shared, pause, counts: Cell::default() }
    }
}

impl Port for DpdkPort {
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        debug_assert!(std::ptr::eq(frames.memory(), self.shared.memory), "frames of the device's own memory");
        if self.shared.rest.keeps(&self.pause) {
            return;
        }
        let (stack, freelist) = (frames.stack().as_ptr(), std::ptr::from_mut(frames));
        let vacant = burst.vacant_mut();
        let (to, room) = (vacant.as_mut_ptr().cast::<*mut Header>(), vacant.len() as u32);
        // SAFETY: an empty place is a null pointer and a frame the address of its header, so the shim can fill
        // places. It writes headers only of frames that the driver gives up, and takes free frames from the list
        // that we hold for as long as the call lasts.
        let count = unsafe { ffi::bm_receive(&mut self.queue, stack.cast(), freelist.cast(), to, room) };
        burst.occupy(count as usize);
    }

    fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize {
        debug_assert!(std::ptr::eq(frames.memory(), self.shared.memory), "frames of the device's own memory");
        if self.shared.rest.keeps(&self.pause) {
            return 0;
        }
        let before = self.queue.invalid;
        let (stack, freelist) = (frames.stack().as_ptr(), std::ptr::from_mut(frames));
        let places = burst.places_mut();
        let (from, count) = (places.as_mut_ptr().cast::<*mut Header>(), places.len() as u32);
        // SAFETY: as in `receive`; the shim empties the places of frames that the driver has taken over.
        unsafe { ffi::bm_transmit(&mut self.queue, stack.cast(), freelist.cast(), from, count) };
        if burst.places().last().is_none_or(Option::is_none) {
            burst.reset();
        }
        (self.queue.invalid - before) as usize
    }

    /// Leaves the queue alone while a full link keeps the worker from receiving.
    fn tend(&mut self, _frames: &mut Freelist) {
        let _at_rest = self.shared.rest.keeps(&self.pause);
    }

    /// A device counts for all of its queues, so the first one reports.
    fn device_counters(&self) -> DeviceCounters {
        let mut counts = Counts::default();
        if self.shared.rest.keeps(&self.pause) {
            counts = self.counts.get();
        } else if self.queue.queue == 0 {
            // SAFETY: the shim writes one `Counts`. What it does not know stays zero.
            unsafe { ffi::bm_device_counts(self.queue.port, &mut counts) };
            self.counts.set(counts);
        }
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
