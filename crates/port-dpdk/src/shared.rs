//! The part of a device that its queues and its steering share. The device is closed with it.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use bm_frame::{Memory, Pages};
use bm_sys::Mutex;

use crate::ffi::{self, Info, Setup};
use crate::log;
use crate::pause::Pause;
use crate::pool::{self, Pool};
use crate::{DpdkError, Options, Spec};

/// An Ethernet header and two VLAN tags: bytes of a frame beyond the MTU.
const FRAME_OVERHEAD: usize = 14 + 2 * 4;
/// The headroom that drivers leave in a received frame, and the cache lines by which slots are shifted.
const RECEIVE_OFFSET: usize = 128 + 6 * 64;

/// How long workers may take to stop using a device: each sleeps a tenth of a second at most.
const LEAVES_WITHIN: Duration = Duration::from_secs(1);

/// DPDK opens and closes devices one at a time.
static OPENING: Mutex<()> = Mutex::new(());

/// The devices that are open, by their port numbers.
static OPEN: Mutex<BTreeMap<u16, Weak<SharedDevice>>> = Mutex::new(BTreeMap::new());

/// A port number that no device has.
const NO_PORT: u16 = u16::MAX;

pub(crate) fn opening() -> MutexGuard<'static, ()> {
    OPENING.lock()
}

/// The part of a device that its queues share.
pub(crate) struct SharedDevice {
    pub spec: Spec,
    port: AtomicU16,
    pub pool: Pool,
    pub memory: &'static Memory,
    pub driver: String,
    pub copied: Option<String>,
    own_pool: OwnPool,
    pub queues: u16,
    /// Keeps workers out of the driver.
    pub pause: Pause,
}

/// A frame pool of DPDK's own, or a null pointer. It is freed with the device.
struct OwnPool(*mut c_void);

// SAFETY: a mempool may be used by many threads.
unsafe impl Send for OwnPool {}
// SAFETY: as above.
unsafe impl Sync for OwnPool {}

impl SharedDevice {
    /// A device that is not set up yet.
    pub fn new(spec: Spec, port: u16, pool: Pool, memory: &'static Memory) -> Self {
        Self {
            spec,
            port: AtomicU16::new(port),
            pool,
            memory,
            driver: String::new(),
            copied: None,
            own_pool: OwnPool(std::ptr::null_mut()),
            queues: 0,
            pause: Pause::default(),
        }
    }

    /// Shares it, and registers it for [`removed`].
    pub fn registered(self) -> Arc<Self> {
        let shared = Arc::new(self);
        let mut open = OPEN.lock();
        open.insert(shared.port(), Arc::downgrade(&shared));
        shared
    }

    /// DPDK's number for the device, or one that no device has after it was removed: DPDK may use the number for another
    /// device then, and refuses every call with an unknown number.
    pub fn port(&self) -> u16 {
        self.port.load(Ordering::Acquire)
    }

    /// The pool that frames are copied from and to; null if they are not copied.
    pub(crate) fn own_pool(&self) -> *mut c_void {
        self.own_pool.0
    }

    /// An error of this device, unless `done` shows success.
    pub fn check(&self, step: &str, done: c_int) -> Result<c_int, DpdkError> {
        check(&self.spec, step, done)
    }
}

impl Drop for SharedDevice {
    fn drop(&mut self) {
        let _alone = opening();
        // SAFETY: no queue is left, so no thread is in the driver.
        unsafe { ffi::bm_device_close(self.port(), self.own_pool.0) };
    }
}

/// The device with this number is removed, as when a card is unplugged. No worker is in its driver when this returns,
/// unless one hangs there.
pub(crate) fn removed(port: u16) {
    let removed = OPEN.lock().remove(&port);
    // A device that is closed here is removed, too.
    let Some(shared) = removed.and_then(|shared| shared.upgrade()) else { return };
    tracing::warn!("dpdk:{}: the device was removed", shared.spec.as_str());
    shared.port.store(NO_PORT, Ordering::Release);
    shared.pause.make_permanent(LEAVES_WITHIN);
}

/// An error of a device, unless `done` shows success.
pub(crate) fn check(spec: &Spec, step: &str, done: c_int) -> Result<c_int, DpdkError> {
    if done >= 0 {
        return Ok(done);
    }
    let (device, step) = (spec.as_str().into(), step.into());
    Err(DpdkError::Device { device, step, why: log::error_text(done), log: log::log_lines() })
}

/// The text in an array that ends with a zero.
pub(crate) fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Its capabilities.
pub(crate) fn info(spec: &Spec, port: u16) -> Result<Info, DpdkError> {
    let mut info = Info::EMPTY;
    check(spec, "querying its capabilities", ffi::bm_device_info(port, &mut info))?;
    Ok(info)
}

impl SharedDevice {
    /// Stops the device, changes something and starts it again, while no worker is in the driver.
    pub(crate) fn while_stopped(&self, step: &str, change: impl FnOnce() -> c_int) -> Result<(), DpdkError> {
        let changed = self.pause.during(LEAVES_WITHIN, || self.stop_and_start(step, change));
        changed
            .unwrap_or_else(|| {
                self.check(&format!("{step}: workers did not release the device"), -libc::EBUSY)
            })
            .map(drop)
    }

    /// Only while no worker is in the driver. Returns the result of the change, and whether workers may enter it again.
    fn stop_and_start(&self, step: &str, change: impl FnOnce() -> c_int) -> (Result<c_int, DpdkError>, bool) {
        if self.port() == NO_PORT {
            return (self.check(step, -libc::ENODEV), false);
        }
        // SAFETY: a number for a port that is ours, and no worker receives or sends.
        let stopped = unsafe { ffi::bm_device_stop(self.port()) };
        if stopped < 0 {
            return (self.check(&format!("{step}: stopping the device"), stopped), true);
        }
        let changed = self.check(step, change());
        // SAFETY: as above.
        let started = unsafe { ffi::bm_device_start(self.port()) };
        match self.check(&format!("{step}: restarting the device"), started) {
            Ok(_) => (changed, true),
            Err(refused) => (Err(refused), false),
        }
    }

    pub fn fits(&self, mtu: u16) -> Result<(), DpdkError> {
        let mtu_max = self.memory.slot_size().saturating_sub(RECEIVE_OFFSET + FRAME_OVERHEAD);
        if usize::from(mtu) <= mtu_max {
            return Ok(());
        }
        Err(DpdkError::Mtu { device: self.spec.as_str().into(), mtu, mtu_max })
    }

    pub fn set_up(&mut self, options: Options) -> Result<(), DpdkError> {
        let info = info(&self.spec, self.port())?;
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
        self.check("starting the device", unsafe { ffi::bm_device_start(self.port()) }).map(drop)
    }

    /// Configures the device and its queues, with brickmoon's frames or a pool of DPDK's own.
    fn prepare(&mut self, mtu: u16) -> Result<(), DpdkError> {
        let copied = u8::from(self.copied.is_some());
        let is_virtual = u8::from(!self.spec.is_pci());
        let setup = Setup { queues: self.queues, mtu, copied, is_virtual, pool: self.pool.pointer() };
        let mut step = None;
        // SAFETY: the pool is DPDK's and lives on; the shim writes two pointers.
        let done = unsafe { ffi::bm_device_setup(self.port(), &setup, &mut self.own_pool.0, &mut step) };
        if done >= 0 {
            return Ok(());
        }
        let step = step.map_or_else(|| "setting it up".into(), |step| step.read());
        self.check(&step, done).map(drop)
    }

    /// Maps the frame memory for a card.
    fn map(&self) -> Result<(), DpdkError> {
        let region = pool::region(self.memory);
        // SAFETY: the region is registered, and mapped as long as the process lives.
        let done = unsafe { ffi::bm_device_map(self.port(), &region) };
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

    #[test]
    fn a_card_that_spreads_nothing_has_one_queue() {
        let info = |has_rss| Info { receive_queues_max: 4, transmit_queues_max: 8, has_rss, ..Info::EMPTY };
        let fed = |spec, driver| is_fed_by_queue(&Spec::new(spec), driver);
        assert_eq!([1, 3, 9].map(|wanted| queues(&info(1), wanted, false)), [1, 3, 4]);
        assert_eq!([1, 3, 9].map(|wanted| queues(&info(0), wanted, fed("0000:01:00.0", "net_em"))), [1; 3]);
        for (spec, driver) in [("0000:01:00.0", "net_virtio"), ("net_memif0", "net_memif")] {
            assert_eq!(queues(&info(0), 3, fed(spec, driver)), 3);
        }
    }
}
