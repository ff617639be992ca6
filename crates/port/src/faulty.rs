//! A port that loses, duplicates and reorders frames of another port, controlled by a seed: for tests.

use bm_frame::{Burst, Freelist};

use crate::{DeviceCounters, Port};

/// How often each fault happens, out of 65,536 received frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Lost.
    pub lose: u16,
    /// Received twice.
    pub double: u16,
    /// Swapped with the previous frame.
    pub reorder: u16,
}

/// A port with faults on receive.
pub struct Faulty<P> {
    port: P,
    faults: Faults,
    random: u64,
    /// Frames lost so far, for the test's accounting.
    pub lost: u64,
    /// Frames duplicated so far.
    pub doubled: u64,
}

impl<P: Port> Faulty<P> {
    /// `port` with `faults`; the same seed gives the same faults.
    pub fn new(port: P, faults: Faults, seed: u64) -> Self {
        Self { port, faults, random: seed, lost: 0, doubled: 0 }
    }

    /// The next number of a splitmix64 sequence: good enough for faults, and a seed reproduces it.
    fn chance(&mut self, of_65536: u16) -> bool {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed >> 40) as u16) < of_65536
    }
}

impl<P: Port> Port for Faulty<P> {
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        let mut whole = Burst::new();
        self.port.receive(&mut whole, frames);
        for frame in whole.drain() {
            if self.chance(self.faults.lose) {
                self.lost += 1;
                frames.free(frame);
                continue;
            }
            let double =
                self.chance(self.faults.double).then(|| frames.allocate_with(frame.data())).flatten();
            self.doubled += u64::from(double.is_some());
            let swap = self.chance(self.faults.reorder);
            for frame in [Some(frame), double].into_iter().flatten() {
                match burst.push(frame) {
                    Ok(()) => {}
                    Err(frame) => {
                        self.lost += 1;
                        frames.free(frame);
                    }
                }
            }
            if swap && burst.len() > 1 {
                let last = burst.len() - 1;
                burst.places_mut().swap(last, last - 1);
            }
        }
    }

    fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize {
        self.port.transmit(burst, frames)
    }

    fn device_counters(&self) -> DeviceCounters {
        self.port.device_counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryPort, Wire};
    use bm_frame::FramePool;

    fn received(seed: u64, faults: Faults) -> Vec<u8> {
        let mut frames = Freelist::new(FramePool::new(512, 2048).unwrap(), 512);
        let wire = Wire::new();
        (0..100).for_each(|n| wire.send(&[n; 60]));
        let mut port = Faulty::new(MemoryPort::new(wire), faults, seed);
        let mut burst = Burst::new();
        port.receive(&mut burst, &mut frames);
        let order = burst.places().iter().flatten().map(|frame| frame.data()[0]).collect();
        burst.free_all(&mut frames);
        order
    }

    #[test]
    fn the_same_seed_gives_the_same_faults() {
        let faults = Faults { lose: 6553, double: 6553, reorder: 6553 };
        assert_eq!(received(1, faults), received(1, faults));
        assert_ne!(received(1, faults), received(2, faults));
        assert_eq!(received(1, Faults::default()), (0..100).collect::<Vec<_>>());
        assert!(received(3, Faults { lose: 32768, ..Faults::default() }).len() < 80);
    }
}
