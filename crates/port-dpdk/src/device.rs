//! A device that DPDK drives. It is closed when the last of its queues is dropped.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bm_frame::{FramePool, Memory, Pages};

use crate::eal;
use crate::ffi::{self, Info, Named, Setup};
use crate::pci;
use crate::pool::{self, Pool};
use crate::port::DpdkPort;
use crate::rest::Rest;
use crate::steer::DpdkSteering;
use crate::{DpdkError, Link, Options, Spec, Spread};

/// An Ethernet header and two VLAN tags: bytes of a frame beyond the MTU.
const FRAME_OVERHEAD: usize = 14 + 2 * 4;
/// The headroom that drivers leave in a received frame, and the cache lines by which slots are shifted.
const RECEIVE_OFFSET: usize = 128 + 6 * 64;

/// How long workers may take to stop using a device: each sleeps a tenth of a second at most.
const LEAVES_WITHIN: Duration = Duration::from_secs(1);

/// DPDK opens and closes devices one at a time.
static OPENING: Mutex<()> = Mutex::new(());

fn opening() -> MutexGuard<'static, ()> {
    OPENING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running device.
pub struct DpdkDevice {
    shared: Arc<Shared>,
}

/// The part of a device that its queues share.
pub(crate) struct Shared {
    pub spec: Spec,
    pub port: u16,
    pub pool: Pool,
    pub memory: &'static Memory,
    pub driver: String,
    copied: Option<String>,
    own_pool: OwnPool,
    queues: u16,
    /// Pauses of its queues.
    pub rest: Rest,
}

/// A frame pool of DPDK's own, or a null pointer. It is freed with the device.
struct OwnPool(*mut c_void);

// SAFETY: a mempool may be used by many threads.
unsafe impl Send for OwnPool {}
// SAFETY: as above.
unsafe impl Sync for OwnPool {}

impl Shared {
    /// The pool that frames are copied from and to; null if they are not copied.
    pub fn own_pool(&self) -> *mut c_void {
        self.own_pool.0
    }

    /// An error of this device, unless `done` shows success.
    pub fn check(&self, step: &str, done: c_int) -> Result<c_int, DpdkError> {
        check(&self.spec, step, done)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _alone = opening();
        // SAFETY: no queue is left, so no thread is in the driver.
        unsafe { ffi::bm_device_close(self.port) };
    }
}

fn check(spec: &Spec, step: &str, done: c_int) -> Result<c_int, DpdkError> {
    if done >= 0 {
        return Ok(done);
    }
    let (device, step) = (spec.as_str().into(), step.into());
    Err(DpdkError::Device { device, step, why: eal::text(done), said: eal::said() })
}

/// The text in an array that ends with a zero.
fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn info(spec: &Spec, port: u16) -> Result<Info, DpdkError> {
    // SAFETY: numbers and bytes, for which zero is valid.
    let mut info: Info = unsafe { std::mem::zeroed() };
    // SAFETY: the shim writes one `Info`.
    check(spec, "querying its capabilities", unsafe { ffi::bm_device_info(port, &mut info) })?;
    Ok(info)
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
        let pool = pool::over(frame_pool)?;
        let alone = opening();
        let _before = eal::said();
        let mut port = 0;
        // SAFETY: a text, and a place for one number.
        let probed = unsafe { ffi::bm_device_probe(name.as_ptr(), &mut port) };
        if let Err(refused) = check(spec, "no DPDK driver accepts it", probed) {
            let kept = pci::kept_from_us(Path::new(pci::DEVICES), Path::new(pci::IOMMUS), spec);
            return Err(kept.unwrap_or(refused));
        }
        let memory = frame_pool.memory();
        let mut shared = Shared {
            spec: spec.clone(),
            port,
            pool,
            memory,
            driver: String::new(),
            copied: None,
            own_pool: OwnPool(std::ptr::null_mut()),
            queues: 0,
            rest: Rest::default(),
        };
        let done = shared.set_up(options);
        // A device that could not be set up is closed here.
        drop(alone);
        done?;
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Name of its driver.
    pub fn driver(&self) -> &str {
        &self.shared.driver
    }

    /// Its MAC address; zero if the device is gone.
    pub fn mac(&self) -> [u8; 6] {
        info(&self.shared.spec, self.shared.port).map_or([0; 6], |info| info.mac)
    }

    /// Its MTU in bytes; 0 if the device is gone.
    pub fn mtu(&self) -> u16 {
        info(&self.shared.spec, self.shared.port).map_or(0, |info| info.mtu)
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

    /// Its steering.
    pub fn steering(&self) -> DpdkSteering {
        DpdkSteering::new(self.shared.clone())
    }

    /// Its link; down if the device is gone.
    pub fn link(&self) -> Link {
        let mut link = ffi::Link::default();
        // SAFETY: the shim writes one `Link`.
        let known = unsafe { ffi::bm_device_link(self.shared.port, &mut link) } == 0;
        Link { up: known && link.up != 0, mbps: link.mbps }
    }

    /// How it distributes flows over its queues, according to the device.
    pub fn spread(&self) -> Spread {
        let mut spread = ffi::Spread { key: [0; 64], key_bytes: 0, buckets: 0, queue: [0; 512] };
        // SAFETY: the shim writes one `Spread`, and no more of its arrays than they hold.
        unsafe { ffi::bm_device_spread(self.shared.port, &mut spread) };
        let (key, queues) = (usize::from(spread.key_bytes), usize::from(spread.buckets));
        Spread { key: spread.key[..key].to_vec(), queues: spread.queue[..queues].to_vec() }
    }

    /// Changes its MTU.
    ///
    /// # Errors
    /// [`DpdkError::Mtu`] if a slot is too small for it, [`DpdkError::Device`] if the device refuses, or does not
    /// start again: then its queues receive nothing until a later change starts it.
    pub fn set_mtu(&self, mtu: u16) -> Result<(), DpdkError> {
        self.shared.fits(mtu)?;
        // SAFETY: a number for a port that is ours.
        let set = || unsafe { ffi::bm_device_set_mtu(self.shared.port, mtu) };
        let step = format!("setting an MTU of {mtu}");
        match set() {
            // Some drivers change it only while the device is stopped.
            done if done == -libc::EBUSY => self.shared.at_rest(&step, set),
            done => self.shared.check(&step, done).map(drop),
        }
    }

    /// Changes its MAC.
    ///
    /// # Errors
    /// [`DpdkError::Device`] if the device refuses.
    pub fn set_mac(&self, mac: [u8; 6]) -> Result<(), DpdkError> {
        // SAFETY: six bytes, as the shim reads.
        let done = unsafe { ffi::bm_device_set_mac(self.shared.port, mac.as_ptr()) };
        self.shared.check("setting its MAC address", done).map(drop)
    }

    /// All counters of the device (DPDK's xstats), with DPDK's names.
    pub fn counters(&self) -> Vec<(String, u64)> {
        // SAFETY: without a place to write to, the shim says how many there are.
        let count = unsafe { ffi::bm_device_xstats(self.shared.port, std::ptr::null_mut(), 0) };
        let mut named = vec![Named { name: [0; 64], value: 0 }; count.max(0) as usize];
        // SAFETY: room for as many as are named.
        let got = unsafe { ffi::bm_device_xstats(self.shared.port, named.as_mut_ptr(), named.len() as u32) };
        named.truncate(got.max(0) as usize);
        named.iter().map(|named| (text(&named.name), named.value)).collect()
    }
}

impl Shared {
    /// Stops the device, changes something and starts it again, while no worker is in the driver.
    fn at_rest(&self, step: &str, change: impl FnOnce() -> c_int) -> Result<(), DpdkError> {
        let stop_and_start = || {
            // SAFETY: a number for a port that is ours, and no worker receives or sends.
            let stopped = unsafe { ffi::bm_device_stop(self.port) };
            if stopped < 0 {
                return (self.check(&format!("{step}: stopping the device"), stopped), true);
            }
            let changed = self.check(step, change());
            // SAFETY: as above.
            let started = unsafe { ffi::bm_device_start(self.port) };
            match self.check(&format!("{step}: restarting the device"), started) {
                Ok(_) => (changed, true),
                Err(refused) => (Err(refused), false),
            }
        };
        let busy = || self.check(&format!("{step}: workers did not release the device"), -libc::EBUSY);
        self.rest.during(LEAVES_WITHIN, stop_and_start).unwrap_or_else(busy).map(drop)
    }

    fn fits(&self, mtu: u16) -> Result<(), DpdkError> {
        let mtu_max = self.memory.slot_size().saturating_sub(RECEIVE_OFFSET + FRAME_OVERHEAD);
        if usize::from(mtu) <= mtu_max {
            return Ok(());
        }
        Err(DpdkError::Mtu { device: self.spec.as_str().into(), mtu, mtu_max })
    }

    fn set_up(&mut self, options: Options) -> Result<(), DpdkError> {
        let info = info(&self.spec, self.port)?;
        self.driver = text(&info.driver);
        let mtu = options.mtu.unwrap_or(info.mtu);
        self.fits(mtu)?;
        self.queues = queues(&info, options.queues, is_fed_by_queue(&self.spec, &self.driver));
        if self.queues == 1 && options.queues > 1 && info.receive_queues_max > 1 {
            tracing::warn!(
                "dpdk:{}: {} does not spread packets over queues (RSS), so one worker gets them all",
                self.spec.as_str(),
                self.driver
            );
        }
        if self.spec.is_pci() {
            self.map()?;
        }
        self.copied = self.spec.copied().map(Into::into);
        if let Err(refused) = self.prepare(mtu) {
            if self.copied.is_some() {
                return Err(refused);
            }
            // Some drivers need more room than an Ethernet frame of their MTU does.
            self.copied = Some(format!(
                "{} cannot use brickmoon's frame memory as it is, so every frame is copied; a larger `slot_size` may help",
                self.driver
            ));
            self.prepare(mtu).map_err(|_| refused)?;
        }
        // SAFETY: the port was set up just now.
        self.check("starting the device", unsafe { ffi::bm_device_start(self.port) }).map(drop)
    }

    /// Configures the device and its queues, with brickmoon's frames or a pool of DPDK's own.
    fn prepare(&mut self, mtu: u16) -> Result<(), DpdkError> {
        let copied = u8::from(self.copied.is_some());
        let is_virtual = u8::from(!self.spec.is_pci());
        let setup = Setup { queues: self.queues, mtu, copied, is_virtual, pool: self.pool.pointer() };
        let mut step = std::ptr::null();
        // SAFETY: the pool is DPDK's and lives on; the shim writes two pointers.
        let done = unsafe { ffi::bm_device_setup(self.port, &setup, &mut self.own_pool.0, &mut step) };
        if done >= 0 {
            return Ok(());
        }
        // SAFETY: the shim has set it to a text that never changes.
        let step = unsafe { CStr::from_ptr(step) }.to_string_lossy().into_owned();
        self.check(&step, done).map(drop)
    }

    /// Maps the frame memory for a card.
    fn map(&self) -> Result<(), DpdkError> {
        let region = pool::region(self.memory);
        // SAFETY: the region is registered, and mapped as long as the process lives.
        let done = unsafe { ffi::bm_device_map(self.port, &region) };
        if done < 0 && self.memory.pages() == Pages::Plain {
            return Err(DpdkError::PlainPages { device: self.spec.as_str().into() });
        }
        self.check("mapping the frame memory for it", done).map(drop)
    }
}

/// Whether the queue of a packet is decided elsewhere: by the other end of a virtual device.
fn is_fed_by_queue(spec: &Spec, driver: &str) -> bool {
    !spec.is_pci() || driver == "net_virtio"
}

/// The number of queues: at most what the device has and `wanted` says; one if all packets would arrive on the first.
fn queues(info: &Info, wanted: u16, is_fed: bool) -> u16 {
    let has = info.receive_queues_max.min(info.transmit_queues_max).max(1);
    if info.has_rss != 0 || is_fed { wanted.clamp(1, has) } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_frame::{Burst, Freelist};
    use bm_port::Port;

    #[test]
    fn a_card_that_spreads_nothing_has_one_queue() {
        let info = |has_rss| Info {
            driver: [0; 64],
            mac: [0; 6],
            mtu: 1500,
            mtu_min: 68,
            mtu_max: 9000,
            receive_queues_max: 4,
            transmit_queues_max: 8,
            has_rss,
        };
        let fed = |spec, driver| is_fed_by_queue(&Spec::new(spec), driver);
        assert_eq!([1, 3, 9].map(|wanted| queues(&info(1), wanted, false)), [1, 3, 4]);
        assert_eq!([1, 3, 9].map(|wanted| queues(&info(0), wanted, fed("0000:01:00.0", "net_em"))), [1; 3]);
        for (spec, driver) in [("0000:01:00.0", "net_virtio"), ("net_memif0", "net_memif")] {
            assert_eq!(queues(&info(0), 3, fed(spec, driver)), 3);
        }
    }

    #[test]
    fn a_device_is_changed_while_its_queue_is_left_alone() {
        let frame_pool = FramePool::new(1024, 2048).unwrap();
        let device = DpdkDevice::open(&Spec::new("net_ring_rest"), &frame_pool, Options::default()).unwrap();
        let mut port = device.queue(0).unwrap();
        let mut frames = Freelist::new(frame_pool.clone(), 128);
        let mut burst = Burst::new();
        let ended = std::sync::atomic::AtomicBool::new(false);
        let refused = std::thread::scope(|scope| {
            let changed = scope.spawn(|| {
                let changed = device.shared.at_rest("change it", || -libc::EINVAL);
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
}
