//! A port in other memory than its worker's: AF_XDP takes slots of 2048 or 4096 bytes alone, and a worker whose
//! packets are larger has its frames copied at the port.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bm_frame::{Burst, Depot, Freelist};

use crate::{DeviceCounters, Port};

/// Frames that the port keeps free for itself.
const KEEP: usize = 1024;

/// A port over frames of its own, whose packets are copied to and from the worker's.
pub struct Copied {
    inner: Box<dyn Port>,
    own: Freelist,
    arrived: Burst,
    leaving: Burst,
    /// Sent packets that fit in no frame of the port.
    too_long: u64,
}

impl Copied {
    /// `inner`, whose frames come from `depot`.
    pub fn new(inner: Box<dyn Port>, depot: Arc<Depot>) -> Self {
        let own = Freelist::new(depot, KEEP);
        Self { inner, own, arrived: Burst::new(), leaving: Burst::new(), too_long: 0 }
    }

    /// Sends what is left from before; whether all of it went.
    fn flush(&mut self) -> bool {
        if self.leaving.frames() > 0 {
            self.inner.transmit(&mut self.leaving, &mut self.own);
        }
        let empty = self.leaving.frames() == 0;
        if empty {
            self.leaving.reset();
        }
        empty
    }
}

impl Port for Copied {
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        if self.arrived.frames() == 0 {
            self.arrived.reset();
            self.inner.receive(&mut self.arrived, &mut self.own);
        }
        for place in self.arrived.places_mut() {
            let Some(small) = place.take() else { continue };
            // What finds no room waits in the port's frame until the next time.
            let Some(large) = (if burst.is_full() { None } else { frames.allocate_with(small.data()) })
            else {
                *place = Some(small);
                return;
            };
            self.own.free(small);
            let pushed = burst.push(large);
            debug_assert!(pushed.is_ok(), "the burst was not full");
        }
    }

    fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        if !self.flush() {
            return;
        }
        for place in burst.places_mut() {
            let Some(large) = place.take() else { continue };
            if large.len() > self.own.memory().room() {
                self.too_long += 1;
                frames.free(large);
                continue;
            }
            let Some(small) = self.own.allocate_with(large.data()) else {
                *place = Some(large);
                break;
            };
            frames.free(large);
            let pushed = self.leaving.push(small);
            debug_assert!(pushed.is_ok(), "one burst fits in another");
        }
        self.flush();
    }

    fn tend(&mut self, _frames: &mut Freelist) {
        self.inner.tend(&mut self.own);
        self.flush();
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        // While frames wait here, nothing outside says so.
        if self.leaving.frames() + self.arrived.frames() > 0 { None } else { self.inner.wait_on() }
    }

    fn device_counters(&self) -> DeviceCounters {
        let mut counters = self.inner.device_counters();
        counters.transmit_invalid += self.too_long;
        counters
    }

    fn close(&mut self, _frames: &mut Freelist) {
        self.arrived.free_all(&mut self.own);
        self.leaving.free_all(&mut self.own);
        self.inner.close(&mut self.own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryPort, Wire};

    #[test]
    fn copies_both_ways_and_counts_what_is_too_long() {
        let (small, large) = (Depot::new(512, 2048).unwrap(), Depot::new(512, 10_816).unwrap());
        let wire = Wire::new();
        let mut port = Copied::new(Box::new(MemoryPort::new(wire.clone())), small.clone());
        let mut frames = Freelist::new(large.clone(), 128);
        (0..5u8).for_each(|n| wire.send(&[n; 60]));
        let mut burst = Burst::new();
        port.receive(&mut burst, &mut frames);
        assert_eq!(burst.len(), 5);
        burst.get_mut(1).unwrap().set_len(9000).unwrap();
        port.transmit(&mut burst, &mut frames);
        assert_eq!(burst.frames(), 0);
        assert_eq!(wire.take(), [vec![0; 60], vec![2; 60], vec![3; 60], vec![4; 60]]);
        assert_eq!(port.device_counters().transmit_invalid, 1);
        port.close(&mut frames);
        drop((port, frames));
        assert_eq!((small.available(), large.available()), (512, 512));
    }
}
