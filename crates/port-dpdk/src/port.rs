//! One queue of a device, used by one worker.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;

use bm_frame::{AnyFrame, BURST, Burst, Frame, Freelist, MbufFrame};
use bm_port::{DeviceCounters, InPlace, Port, ReceivedFrames, TransmittedFrames};

use crate::ffi::{self, Counts, Header, Mbuf, Queue};
use crate::pause::QueuePause;
use crate::shared::SharedDevice;

/// The most frames that an in-memory ring may still contain at the end.
const DRAIN: usize = 1 << 16;

/// A queue of a device that DPDK drives.
pub struct DpdkPort {
    queue: Queue,
    shared: Arc<SharedDevice>,
    pause: QueuePause,
    /// The device's counters when they were read last; they are not read while it is paused or when it is gone.
    counts: Cell<Counts>,
}

// SAFETY: the pointers in `queue` are those of pools, which many threads may use; the queue itself is used by
// whoever holds the port alone.
unsafe impl Send for DpdkPort {}

impl DpdkPort {
    pub(crate) fn new(shared: Arc<SharedDevice>, queue: u16) -> Self {
        let queue = Queue {
            port: shared.port(),
            queue,
            pool: shared.pool.pointer(),
            own_pool: shared.own_pool(),
            too_long: 0,
            no_frame: 0,
            invalid: 0,
            no_packet: 0,
            bytes: 0,
        };
        let pause = shared.pause.register();
        Self { queue, shared, pause, counts: Cell::default() }
    }
}

impl DpdkPort {
    /// Has the shim fill empty places: `receive` gets the queue, the free frames, and how many places there are.
    #[inline(always)]
    fn receive_by<F: AnyFrame>(
        &mut self,
        places: &mut [Option<F>],
        frames: &mut Freelist,
        receive: impl FnOnce(&mut Queue, Free, u32) -> u32,
    ) -> ReceivedFrames {
        debug_assert!(std::ptr::eq(frames.memory(), self.shared.memory), "frames of the device's own memory");
        debug_assert!(places.iter().all(Option::is_none), "a frame would be lost");
        if self.shared.pause.is_paused(&self.pause) {
            return ReceivedFrames::default();
        }
        let count = receive(&mut self.queue, Free::new(frames), places.len().min(BURST) as u32);
        ReceivedFrames { count: count as usize, bytes: self.queue.bytes }
    }

    /// Has the shim send what is in the places, and empty them: `transmit` gets the queue, the free frames, and the places
    /// of one burst. It returns how many frames are left.
    #[inline(always)]
    fn transmit_by<F: AnyFrame>(
        &mut self,
        places: &mut [Option<F>],
        frames: &mut Freelist,
        transmit: impl FnOnce(&mut Queue, Free, &mut [Option<F>]) -> u32,
    ) -> TransmittedFrames {
        debug_assert!(std::ptr::eq(frames.memory(), self.shared.memory), "frames of the device's own memory");
        // The shim's arrays have this many slots.
        let (places, rest) = places.split_at_mut(places.len().min(BURST));
        let behind = || rest.iter().flatten().count();
        if self.shared.pause.is_paused(&self.pause) {
            return TransmittedFrames { refused: 0, left: places.iter().flatten().count() + behind() };
        }
        let before = self.queue.invalid;
        let left = transmit(&mut self.queue, Free::new(frames), places);
        TransmittedFrames { refused: (self.queue.invalid - before) as usize, left: left as usize + behind() }
    }
}

/// A worker's free frames, as the shim takes them.
struct Free {
    stack: *mut c_void,
    freelist: *mut c_void,
}

impl Free {
    fn new(frames: &mut Freelist) -> Self {
        Self { stack: frames.stack().as_ptr().cast(), freelist: std::ptr::from_mut(frames).cast() }
    }
}

impl InPlace for DpdkPort {
    fn receive_into(&mut self, places: &mut [Option<Frame>], frames: &mut Freelist) -> ReceivedFrames {
        let to = places.as_mut_ptr().cast::<*mut Header>();
        self.receive_by(places, frames, |queue, Free { stack, freelist }, room| {
            // SAFETY: an empty place is a null pointer and a frame the address of its header, so the shim can fill
            // places. It writes headers only of frames that the driver gives up, and takes free frames from the list
            // that we hold for as long as the call lasts.
            unsafe { ffi::bm_receive(queue, stack, freelist, to, room) }
        })
    }

    fn transmit_from(&mut self, places: &mut [Option<Frame>], frames: &mut Freelist) -> TransmittedFrames {
        self.transmit_by(places, frames, |queue, Free { stack, freelist }, places| {
            let (from, count) = (places.as_mut_ptr().cast::<*mut Header>(), places.len() as u32);
            // SAFETY: as in `receive_into`; the shim empties the places of frames that the driver has taken over.
            unsafe { ffi::bm_transmit(queue, stack, freelist, from, count) }
        })
    }
}

/// The driver's own pointers: what it receives is checked, what is sent was checked before.
impl InPlace<MbufFrame> for DpdkPort {
    fn receive_into(&mut self, places: &mut [Option<MbufFrame>], frames: &mut Freelist) -> ReceivedFrames {
        let to = places.as_mut_ptr().cast::<*mut Mbuf>();
        self.receive_by(places, frames, |queue, Free { stack, freelist }, room| {
            // SAFETY: as for frames with headers, but a place has the address of an mbuf, which the driver gives up. The
            // shim has checked that it has one part, in its own slot, of at least an Ethernet header.
            unsafe { ffi::bm_receive_mbufs(queue, stack, freelist, to, room) }
        })
    }

    fn transmit_from(
        &mut self,
        places: &mut [Option<MbufFrame>],
        frames: &mut Freelist,
    ) -> TransmittedFrames {
        // What is behind a gap waits for the next call.
        let count = places.iter().position(Option::is_none).unwrap_or(places.len());
        let (places, rest) = places.split_at_mut(count);
        let done = self.transmit_by(places, frames, |queue, Free { stack, freelist }, places| {
            let (from, count) = (places.as_mut_ptr().cast::<*mut Mbuf>(), places.len() as u32);
            // SAFETY: as above. No place is null, and the shim empties those that the driver has taken over.
            unsafe { ffi::bm_transmit_mbufs(queue, stack, freelist, from, count) }
        });
        TransmittedFrames { left: done.left + rest.iter().flatten().count(), ..done }
    }
}

impl Port for DpdkPort {
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        let received = InPlace::receive_into(self, burst.vacant_mut(), frames);
        burst.occupy(received.count);
    }

    fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize {
        let TransmittedFrames { refused, left } = InPlace::transmit_from(self, burst.places_mut(), frames);
        if left == 0 {
            burst.reset();
        }
        refused
    }

    fn in_place(&mut self) -> Option<&mut dyn InPlace> {
        Some(self)
    }

    /// Not if frames are copied.
    fn mbufs(&mut self) -> Option<&mut dyn InPlace<MbufFrame>> {
        self.queue.own_pool.is_null().then_some(self)
    }

    /// Leaves the queue alone while a full link keeps the worker from receiving.
    fn tend(&mut self, _frames: &mut Freelist) {
        let _paused = self.shared.pause.is_paused(&self.pause);
    }

    /// A device counts for all of its queues, so the first one reports.
    fn device_counters(&self) -> DeviceCounters {
        if self.queue.queue == 0 && !self.shared.pause.is_paused(&self.pause) {
            let mut counts = Counts::default();
            // What the shim does not know stays zero.
            let known = ffi::bm_device_counts(self.queue.port, &mut counts) == 0;
            // Those of a device that is gone stay as they were.
            if known {
                self.counts.set(counts);
            }
        }
        let counts = self.counts.get();
        DeviceCounters {
            receive_ring_full: counts.missed,
            receive_no_frame: counts.no_frame + self.queue.no_frame,
            receive_other: counts.receive_errors + self.queue.too_long + self.queue.no_packet,
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
