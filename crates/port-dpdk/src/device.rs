//! A device that DPDK drives. It is closed when the last of its queues is dropped.

use std::ffi::CString;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;

use bm_frame::FramePool;

use crate::eal;
use crate::ffi::{self, ExtendedStatistic};
use crate::log;
use crate::pci;
use crate::pool;
use crate::port::DpdkPort;
use crate::shared::{SharedDevice, check, info, opening, text};
use crate::steer::DpdkSteering;
use crate::{DpdkError, Link, Options, RssSettings, Spec};

/// A running device.
pub struct DpdkDevice {
    shared: Arc<SharedDevice>,
}

impl DpdkDevice {
    /// Starts DPDK if needed, then the device, with the number of queues that it has and `options` asks for. `frame_pool`
    /// is where frames come from: its memory is registered with DPDK.
    ///
    /// # Errors
    /// See [`DpdkError`]; the device is then unchanged.
    pub fn open(spec: &Spec, frame_pool: &Arc<FramePool>, options: Options) -> Result<Self, DpdkError> {
        let Ok(name) = CString::new(spec.as_str()) else {
            return Err(DpdkError::Name { device: spec.as_str().into() });
        };
        if spec.name().is_empty() {
            return Err(DpdkError::Name { device: spec.as_str().into() });
        }
        let shares = spec.name().starts_with("net_virtio_user");
        if eal::start(!shares)? && shares {
            return Err(DpdkError::HugePages { device: spec.as_str().into() });
        }
        let pool = pool::of_frames(frame_pool)?;
        let alone = opening();
        let _before = log::log_lines();
        let mut port = 0;
        // SAFETY: a text, and a place for one number.
        let probed = unsafe { ffi::bm_device_probe(name.as_ptr(), &mut port) };
        if let Err(refused) = check(spec, "no DPDK driver accepts it", probed) {
            let refusal = pci::refusal(Path::new(pci::DEVICES), Path::new(pci::IOMMUS), spec);
            return Err(refusal.unwrap_or(refused));
        }
        let memory = frame_pool.memory();
        let mut shared = SharedDevice::new(spec.clone(), port, pool, memory);
        let done = shared.set_up(options);
        // A device that could not be set up is closed here.
        drop(alone);
        done?;
        Ok(Self { shared: shared.registered() })
    }

    /// Name of its driver.
    pub fn driver(&self) -> &str {
        &self.shared.driver
    }

    /// Its MAC address; zero if the device is gone.
    pub fn mac(&self) -> [u8; 6] {
        info(&self.shared.spec, self.shared.port()).map_or([0; 6], |info| info.mac)
    }

    /// Its MTU in bytes; 0 if the device is gone.
    pub fn mtu(&self) -> u16 {
        info(&self.shared.spec, self.shared.port()).map_or(0, |info| info.mtu)
    }

    /// Why frames are copied between the driver's memory and brickmoon's, if they are.
    pub fn copied(&self) -> Option<&str> {
        self.shared.copied.as_deref()
    }

    /// How many queues it has.
    pub fn queues(&self) -> u16 {
        self.shared.queues
    }

    /// One queue, for one thread at a time.
    ///
    /// # Errors
    /// [`DpdkError::Queues`] if there is no such queue.
    pub fn queue(&self, queue: u16) -> Result<DpdkPort, DpdkError> {
        let has = self.queues();
        if queue >= has {
            let device = self.shared.spec.as_str().into();
            return Err(DpdkError::Queues { device, wanted: queue + 1, has });
        }
        Ok(DpdkPort::new(self.shared.clone(), queue))
    }

    pub fn steering(&self) -> DpdkSteering {
        DpdkSteering::new(self.shared.clone())
    }

    /// Its link; down if the device is gone.
    pub fn link(&self) -> Link {
        let mut link = ffi::Link::default();
        let known = ffi::bm_device_link(self.shared.port(), &mut link) == 0;
        Link { up: known && link.up != 0, mbps: link.mbps }
    }

    /// How it distributes flows over its queues, according to the device.
    pub fn spread(&self) -> RssSettings {
        let mut spread = ffi::RssSettings { key: [0; 64], key_bytes: 0, buckets: 0, queue: [0; 512] };
        ffi::bm_device_spread(self.shared.port(), &mut spread);
        let (key, queues) = (usize::from(spread.key_bytes), usize::from(spread.buckets));
        RssSettings { key: spread.key[..key].to_vec(), queues: spread.queue[..queues].to_vec() }
    }

    /// Changes its MTU.
    ///
    /// # Errors
    /// [`DpdkError::Mtu`] if a slot is too small for it, [`DpdkError::Device`] if the device refuses, or does not
    /// start again: then its queues receive nothing until a later change starts it.
    pub fn set_mtu(&self, mtu: u16) -> Result<(), DpdkError> {
        self.shared.fits(mtu)?;
        let set = || ffi::bm_device_set_mtu(self.shared.port(), mtu);
        let step = format!("setting an MTU of {mtu}");
        match set() {
            // Some drivers change it only while the device is stopped.
            done if done == -libc::EBUSY => self.shared.while_stopped(&step, set),
            done => self.shared.check(&step, done).map(drop),
        }
    }

    /// Changes its MAC.
    ///
    /// # Errors
    /// [`DpdkError::Device`] if the device refuses.
    pub fn set_mac(&self, mac: [u8; 6]) -> Result<(), DpdkError> {
        let done = ffi::bm_device_set_mac(self.shared.port(), &mac);
        self.shared.check("setting its MAC address", done).map(drop)
    }

    /// All counters of the device (DPDK's xstats), with DPDK's names.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let count = self.read_counters(&mut []);
        let mut named = vec![ExtendedStatistic { name: [0; 64], value: 0 }; count];
        let got = self.read_counters(&mut named);
        named.truncate(got);
        named.iter().map(|named| (text(&named.name), named.value)).collect()
    }

    /// How many counters there are. They are written if there is room for all.
    fn read_counters(&self, named: &mut [ExtendedStatistic]) -> usize {
        let (to, room) = if named.is_empty() { (null_mut(), 0) } else { (named.as_mut_ptr(), named.len()) };
        // SAFETY: room for as many as are named; without a place to write to, the shim only counts.
        let has = unsafe { ffi::bm_device_xstats(self.shared.port(), to, room as u32) };
        has.max(0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_frame::{Burst, Freelist};
    use bm_port::Port;

    #[test]
    fn a_device_is_changed_while_its_queue_is_left_alone() {
        let frame_pool = FramePool::new(1024, 2048).unwrap();
        let device = DpdkDevice::open(&Spec::new("net_ring_pause"), &frame_pool, Options::default()).unwrap();
        let mut port = device.queue(0).unwrap();
        let mut frames = Freelist::new(frame_pool.clone(), 128);
        let mut burst = Burst::new();
        let ended = std::sync::atomic::AtomicBool::new(false);
        let refused = std::thread::scope(|scope| {
            let changed = scope.spawn(|| {
                let changed = device.shared.while_stopped("change it", || -libc::EINVAL);
                ended.store(true, std::sync::atomic::Ordering::Relaxed);
                changed
            });
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                port.tend(&mut frames);
            }
            changed.join().unwrap()
        });
        // What the change says is returned, and the device runs again.
        assert!(refused.is_err_and(|error| error.to_string().contains("change it")));
        burst.push(frames.allocate_with(&[7; 60]).unwrap()).unwrap();
        assert_eq!(port.transmit(&mut burst, &mut frames), 0);
        port.receive(&mut burst, &mut frames);
        assert_eq!(burst.len(), 1);
        burst.free_all(&mut frames);
        port.close(&mut frames);
        drop((port, device, frames));
        assert_eq!(frame_pool.available(), 1024);
    }

    unsafe extern "C" {
        /// Removes a device from DPDK, as when it is unplugged (`<rte_dev.h>`).
        fn rte_eal_hotplug_remove(bus: *const std::ffi::c_char, device: *const std::ffi::c_char) -> i32;
    }

    fn open(spec: &str, frame_pool: &Arc<FramePool>) -> (DpdkDevice, DpdkPort) {
        let device = DpdkDevice::open(&Spec::new(spec), frame_pool, Options::default()).unwrap();
        let port = device.queue(0).unwrap();
        (device, port)
    }

    #[test]
    fn a_removed_device_neither_receives_nor_takes_frames() {
        let frame_pool = FramePool::new(1024, 2048).unwrap();
        let (device, mut port) = open("net_null_gone,size=64", &frame_pool);
        let mut frames = Freelist::new(frame_pool.clone(), 512);
        let mut burst = Burst::new();
        port.receive(&mut burst, &mut frames);
        let taken = burst.len();
        assert!(taken > 0 && device.link().up);
        // It counts what it sends.
        assert_eq!(port.transmit(&mut burst, &mut frames), 0);
        port.receive(&mut burst, &mut frames);
        let (waiting, counted) = (burst.len(), port.device_counters());
        let alone = opening();
        // SAFETY: two texts that end with a zero.
        assert_eq!(unsafe { rte_eal_hotplug_remove(c"vdev".as_ptr(), c"net_null_gone".as_ptr()) }, 0);
        drop(alone);
        // DPDK gives its number to the next device, which the ports of the removed one must not use.
        let (next, mut next_port) = open("net_null_next,size=64", &frame_pool);
        for _ in 0..3 {
            assert_eq!(port.transmit(&mut burst, &mut frames), 0);
            assert_eq!(burst.frames(), waiting, "what is not sent stays");
        }
        burst.free_all(&mut frames);
        port.receive(&mut burst, &mut frames);
        assert_eq!(burst.len(), 0);
        port.tend(&mut frames);
        assert_eq!(port.device_counters(), counted);
        assert!(device.set_mtu(1400).is_err() && port.device_counters() == counted);
        assert_eq!((device.link().up, device.mac(), device.mtu()), (false, [0; 6], 0));
        assert!(device.counters().is_empty());
        assert!(matches!(device.set_mtu(1400), Err(DpdkError::Device { .. })));
        assert!(matches!(device.set_mac([2; 6]), Err(DpdkError::Device { .. })));
        port.close(&mut frames);
        drop((port, device));
        assert!(next.link().up && next.mtu() == 1500);
        next_port.receive(&mut burst, &mut frames);
        assert!(!burst.is_empty());
        burst.free_all(&mut frames);
        drop((next_port, next));
        // Its name can be used again.
        let (device, mut port) = open("net_null_gone,size=64", &frame_pool);
        port.receive(&mut burst, &mut frames);
        assert!(!burst.is_empty());
        burst.free_all(&mut frames);
        drop((port, device, frames));
        assert_eq!(frame_pool.available(), 1024);
    }
}
