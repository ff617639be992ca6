//! A port whose device may disappear, return or be replaced while its worker runs.
//!
//! ```text
//! control: Replacer::replace(Some(port)) ─► worker, between two bursts: takes it ─► the one before, to be closed
//! ```
//!
//! An interface can be deleted and created again; its sockets are dead then, and new ones must get to the worker
//! without stopping it, because it has other ports too. Without a device the port receives nothing and refuses
//! frames. In a burst without a change this costs one check of a flag.
//!
//! Closing a device may take time, so the thread that replaces it does that, not the worker.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bm_frame::{Burst, Freelist};
use bm_port::{DeviceCounters, Port};
use bm_sys::{Mutex, Waker};

use crate::worker::WorkerError;

/// A device used by a worker, or none.
type Device = Option<Box<dyn Port>>;

/// What the control thread and the worker share.
struct Handover {
    /// Whether `next` waits for the worker.
    waits: AtomicBool,
    exchange: Mutex<Exchange>,
    waker: Waker,
}

#[derive(Default)]
struct Exchange {
    next: Option<Device>,
    before: Option<Device>,
}

/// Replaces the device of a [`ReplaceablePort`].
pub struct Replacer(Arc<Handover>);

impl Replacer {
    /// Makes the worker use `next`, and returns its previous device, which the caller has to close. On failure `next`
    /// is returned instead: the worker has not taken it within `patience`.
    ///
    /// # Errors
    /// The device that was not taken.
    pub fn replace(&self, next: Device, patience: Duration) -> Result<Device, Device> {
        {
            let mut exchange = self.0.exchange.lock();
            (exchange.next, exchange.before) = (Some(next), None);
            self.0.waits.store(true, Ordering::Release);
        }
        self.0.waker.wake();
        let begun = Instant::now();
        loop {
            let mut exchange = self.0.exchange.lock();
            if let Some(before) = exchange.before.take() {
                return Ok(before);
            }
            if begun.elapsed() > patience {
                self.0.waits.store(false, Ordering::Release);
                return Err(exchange.next.take().flatten());
            }
            drop(exchange);
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// A port whose device may be replaced.
pub struct ReplaceablePort {
    handover: Arc<Handover>,
    device: Device,
    /// The counters of earlier devices.
    earlier: DeviceCounters,
}

impl ReplaceablePort {
    /// A port that starts with `device`, and the handle to replace it.
    ///
    /// # Errors
    /// [`WorkerError::Waker`] if the descriptor that wakes the worker cannot be created.
    pub fn new(device: Device) -> Result<(Self, Replacer), WorkerError> {
        let handover =
            Handover { waits: AtomicBool::new(false), exchange: Mutex::default(), waker: Waker::new()? };
        let handover = Arc::new(handover);
        let port = Self { handover: handover.clone(), device, earlier: DeviceCounters::default() };
        Ok((port, Replacer(handover)))
    }

    #[cold]
    fn take(&mut self) {
        let handover = Arc::clone(&self.handover);
        let mut exchange = handover.exchange.lock();
        handover.waits.store(false, Ordering::Relaxed);
        handover.waker.clear();
        let Some(next) = exchange.next.take() else { return };
        if let Some(device) = &self.device {
            self.earlier = sum(self.earlier, device.device_counters());
        }
        exchange.before = Some(std::mem::replace(&mut self.device, next));
    }
}

fn sum(one: DeviceCounters, other: DeviceCounters) -> DeviceCounters {
    DeviceCounters {
        receive_ring_full: one.receive_ring_full + other.receive_ring_full,
        receive_no_frame: one.receive_no_frame + other.receive_no_frame,
        receive_other: one.receive_other + other.receive_other,
        transmit_invalid: one.transmit_invalid + other.transmit_invalid,
    }
}

impl Port for ReplaceablePort {
    #[inline]
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        if self.handover.waits.load(Ordering::Acquire) {
            self.take();
        }
        if let Some(device) = &mut self.device {
            device.receive(burst, frames);
        }
    }

    #[inline]
    fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize {
        match &mut self.device {
            Some(device) => device.transmit(burst, frames),
            None => burst.free_all(frames),
        }
    }

    #[inline]
    fn tend(&mut self, frames: &mut Freelist) {
        if let Some(device) = &mut self.device {
            device.tend(frames);
        }
    }

    /// Without a device the port keeps nobody awake.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        self.device.as_ref().map_or_else(|| self.wakeup(), |device| device.wait_on())
    }

    fn wakeup(&self) -> Option<BorrowedFd<'_>> {
        Some(self.handover.waker.fd())
    }

    fn device_counters(&self) -> DeviceCounters {
        let now = self.device.as_ref().map(|device| device.device_counters());
        sum(self.earlier, now.unwrap_or_default())
    }

    fn close(&mut self, frames: &mut Freelist) {
        if let Some(device) = &mut self.device {
            device.close(frames);
        }
        // A device that the worker has not taken holds frames as well.
        for mut device in self.handover.exchange.lock().next.take().into_iter().flatten() {
            device.close(frames);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_frame::FramePool;
    use bm_port::{MemoryPort, Wire};

    fn memory(wire: &Wire) -> Device {
        Some(Box::new(MemoryPort::new(wire.clone())))
    }

    fn frames() -> Freelist {
        Freelist::new(FramePool::new(64, 2048).unwrap(), 64)
    }

    /// Replaces the device while another thread asks the port for frames.
    fn replaced(
        port: &mut ReplaceablePort,
        replacer: &Replacer,
        next: Device,
        frames: &mut Freelist,
    ) -> Device {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let replacing = scope.spawn(|| {
                let before = replacer.replace(next, Duration::from_secs(30));
                done.store(true, Ordering::Release);
                before.unwrap_or_else(|_| panic!("the port was asked all the time"))
            });
            while !done.load(Ordering::Acquire) {
                let mut burst = Burst::new();
                port.receive(&mut burst, frames);
                burst.free_all(frames);
                std::thread::yield_now();
            }
            replacing.join().unwrap()
        })
    }

    #[test]
    fn goes_on_with_another_device() {
        let (one, two, mut frames) = (Wire::new(), Wire::new(), frames());
        let (mut port, replacer) = ReplaceablePort::new(memory(&one)).unwrap();
        let sent = |port: &mut ReplaceablePort, frames: &mut Freelist| {
            let mut burst = Burst::new();
            burst.push(frames.allocate_with(&[7; 60]).unwrap()).unwrap();
            let refused = port.transmit(&mut burst, frames);
            assert_eq!(burst.frames(), 0);
            refused
        };
        assert_eq!((sent(&mut port, &mut frames), one.take().len()), (0, 1));
        assert!(replaced(&mut port, &replacer, None, &mut frames).is_some());
        assert_eq!((sent(&mut port, &mut frames), one.take().len()), (1, 0), "refused, and not kept");
        assert!(port.wait_on().is_some(), "a port without a device keeps nobody awake");
        assert!(replaced(&mut port, &replacer, memory(&two), &mut frames).is_none());
        assert_eq!((sent(&mut port, &mut frames), two.take().len()), (0, 1));
        two.send(&[9; 60]);
        let mut burst = Burst::new();
        port.receive(&mut burst, &mut frames);
        assert_eq!(burst.free_all(&mut frames), 1);
    }

    #[test]
    fn a_device_that_nobody_takes_comes_back() {
        let (_port, replacer) = ReplaceablePort::new(None).unwrap();
        assert!(replacer.replace(memory(&Wire::new()), Duration::from_millis(1)).is_err_and(|d| d.is_some()));
    }

    #[test]
    fn counts_of_earlier_devices_are_kept() {
        struct Lossy(u64);
        impl Port for Lossy {
            fn receive(&mut self, _burst: &mut Burst, _frames: &mut Freelist) {}
            fn transmit(&mut self, _burst: &mut Burst, _frames: &mut Freelist) -> usize {
                0
            }
            fn device_counters(&self) -> DeviceCounters {
                DeviceCounters { receive_other: self.0, ..DeviceCounters::default() }
            }
        }
        let mut frames = frames();
        let (mut port, replacer) = ReplaceablePort::new(Some(Box::new(Lossy(5)))).unwrap();
        replaced(&mut port, &replacer, None, &mut frames);
        assert_eq!(port.device_counters().receive_other, 5);
        replaced(&mut port, &replacer, Some(Box::new(Lossy(2))), &mut frames);
        assert_eq!(port.device_counters().receive_other, 7);
    }
}
