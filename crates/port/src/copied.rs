//! A port whose frames are in other memory than its worker's: AF_XDP supports only slots of 2048 or 4096 bytes, so
//! for a worker with larger packets the port copies its frames.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bm_frame::{Burst, Frame, FramePool, Freelist};

use crate::{DeviceCounters, Port};

/// Free frames that the port keeps for itself.
const KEEP: usize = 1024;
/// Frames copied before they are passed to the port.
const CHUNK: usize = 64;

/// A port with its own frames, whose packets are copied to and from the worker's.
pub struct Copied {
    inner: Box<dyn Port>,
    own: Freelist,
    arrived: Burst,
    /// Copies that are being passed to the port; empty between calls.
    leaving: Burst,
}

impl Copied {
    /// Wraps `inner`, whose frames come from `frame_pool`.
    pub fn new(inner: Box<dyn Port>, frame_pool: Arc<FramePool>) -> Self {
        let own = Freelist::new(frame_pool, KEEP);
        Self { inner, own, arrived: Burst::new(), leaving: Burst::new() }
    }

    /// Copies packets from `places` until the port's own frames are used up, and frees those that are too large;
    /// returns how many those were.
    fn copy_out(&mut self, places: &mut [Option<Frame>], frames: &mut Freelist) -> usize {
        let (room, mut too_long) = (self.own.memory().room(), 0);
        for place in places {
            match place.take_if(|large| large.len() > room) {
                Some(large) => {
                    too_long += 1;
                    frames.free(large);
                }
                None => {
                    let Some(large) = place else { continue };
                    let Some(small) = self.own.allocate_with(large.data()) else { break };
                    let pushed = self.leaving.push(small);
                    debug_assert!(pushed.is_ok(), "one burst fits in another");
                }
            }
        }
        too_long
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
            // A packet that finds no room waits in the port's frame until the next call.
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

    /// A frame stays with the caller until the port has accepted its copy, so a refusal is known immediately. When
    /// the port is full, at most [`CHUNK`] copies were useless.
    fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize {
        let mut refused = 0;
        for places in burst.places_mut().chunks_mut(CHUNK) {
            refused += self.copy_out(places, frames);
            let copies = self.leaving.frames();
            refused += self.inner.transmit(&mut self.leaving, &mut self.own);
            let left = self.leaving.free_all(&mut self.own);
            let gone = places.iter_mut().filter_map(Option::take).take(copies - left);
            gone.for_each(|large| frames.free(large));
            if places.iter().any(Option::is_some) {
                break;
            }
        }
        refused
    }

    fn tend(&mut self, _frames: &mut Freelist) {
        self.inner.tend(&mut self.own);
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        // While frames wait here, no descriptor shows it.
        if self.arrived.frames() > 0 { None } else { self.inner.wait_on() }
    }

    fn wakeup(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wakeup()
    }

    fn device_counters(&self) -> DeviceCounters {
        self.inner.device_counters()
    }

    fn close(&mut self, _frames: &mut Freelist) {
        self.arrived.free_all(&mut self.own);
        self.inner.close(&mut self.own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryPort, Wire};
    use std::sync::Mutex;

    #[test]
    fn copies_both_ways_and_rejects_long_packets() {
        let (small, large) = (FramePool::new(512, 2048).unwrap(), FramePool::new(512, 10_816).unwrap());
        let wire = Wire::new();
        let mut port = Copied::new(Box::new(MemoryPort::new(wire.clone())), small.clone());
        let mut frames = Freelist::new(large.clone(), 128);
        (0..5u8).for_each(|n| wire.send(&[n; 60]));
        let mut burst = Burst::new();
        port.receive(&mut burst, &mut frames);
        assert_eq!(burst.len(), 5);
        burst.get_mut(1).unwrap().set_len(9000).unwrap();
        assert_eq!(port.transmit(&mut burst, &mut frames), 1);
        assert_eq!(burst.frames(), 0);
        assert_eq!(wire.take(), [vec![0; 60], vec![2; 60], vec![3; 60], vec![4; 60]]);
        port.close(&mut frames);
        drop((port, frames));
        assert_eq!((small.available(), large.available()), (512, 512));
    }

    /// A device that takes ten frames a call, keeps their first bytes, and refuses those that begin with 255.
    struct Choosy(Arc<Mutex<Vec<u8>>>);
    impl Port for Choosy {
        fn receive(&mut self, _burst: &mut Burst, _frames: &mut Freelist) {}
        fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize {
            let mut refused = 0;
            for frame in burst.places_mut().iter_mut().filter_map(Option::take).take(10) {
                match frame.data()[0] {
                    255 => refused += 1,
                    first => self.0.lock().unwrap().push(first),
                }
                frames.free(frame);
            }
            refused
        }
    }

    #[test]
    fn unsent_frames_stay_with_the_caller_and_refused_ones_are_reported() {
        let (small, large) = (FramePool::new(512, 2048).unwrap(), FramePool::new(512, 10_816).unwrap());
        let sent = Arc::<Mutex<Vec<u8>>>::default();
        let mut port = Copied::new(Box::new(Choosy(sent.clone())), small.clone());
        let mut frames = Freelist::new(large.clone(), 128);
        let mut burst = Burst::new();
        for n in 0..200 {
            let length = if n % 50 == 5 { 9000 } else { 60 };
            let first = if n % 7 == 3 { 255 } else { n };
            burst.push(frames.allocate_with(&vec![first; length]).unwrap()).unwrap();
        }
        frames.free(burst.take(1).unwrap());
        let expected: Vec<_> = (0..200).filter(|n| *n != 1 && n % 50 != 5 && n % 7 != 3).collect();
        let (mut refused, mut calls) = (0, 0);
        while burst.frames() > 0 {
            let before = (burst.frames(), refused, sent.lock().unwrap().len());
            refused += port.transmit(&mut burst, &mut frames);
            let taken = before.0 - burst.frames();
            assert_eq!(taken, refused - before.1 + sent.lock().unwrap().len() - before.2, "call {calls}");
            calls += 1;
        }
        assert_eq!((&*sent.lock().unwrap(), refused), (&expected, 199 - expected.len()));
        port.close(&mut frames);
        drop((port, frames));
        assert_eq!((small.available(), large.available()), (512, 512));
    }
}
