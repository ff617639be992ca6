//! DPDK devices, each with a host TAP: an interface in Linux with the MAC, MTU and link state of the device.
//!
//! ```text
//! device ─► queues ─► workers            Linux: ip, ARP, routing daemons
//!    ▲                                      │
//!    └── MAC and MTU as Linux has them ── host TAP ◄── carrier as the device has it
//! ```

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bm_api::PortMode;
use bm_cli::Failure;
use bm_control::config;
use bm_frame::FramePool;
use bm_port::Port;
use bm_port_dpdk::{DpdkDevice, Options, Spec};
use bm_port_tap::{HostTap, HostTapHandle};

use crate::ports::open_port::{OpenDevice, OpenPort};

/// How often the states of device and host TAP are compared.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long one comparison may take: the driver may reset the device.
const SILENT_MAX: Duration = Duration::from_secs(10);

/// Opens a device with at most `most` queues, and creates its host TAP.
pub fn open(
    device: &str,
    port: &config::Port,
    frame_pool: &Arc<FramePool>,
    most: usize,
) -> Result<OpenPort, Failure> {
    let spec = Spec::new(device);
    let queues = port.queues.unwrap_or(1).min(most as u32).min(u32::from(u16::MAX)) as u16;
    let options = Options { queues, mtu: None };
    let device = Arc::new(DpdkDevice::open(&spec, frame_pool, options).map_err(Failure::failed)?);
    let host_tap = HostTap::new(&spec.host_tap(), mac(&device, &spec), usize::from(device.mtu()));
    let host_tap = host_tap.map_err(Failure::failed)?;
    let mut queues: Vec<Box<dyn Port>> = Vec::new();
    for queue in 0..device.queues() {
        queues.push(Box::new(device.queue(queue).map_err(Failure::failed)?));
    }
    let driver = device.driver();
    tracing::info!(driver, queues = queues.len(), host_tap = host_tap.name(), "dpdk:{}", spec.as_str());
    if queues.len() > 1 {
        let spread = device.spread();
        let (buckets, key) = (spread.queues.len(), spread.key.len());
        tracing::debug!(buckets, key, "{}: flows are spread over {} queues", host_tap.name(), queues.len());
    }
    let reason = device.copied().map(Into::into);
    let handle = host_tap.handle().map_err(Failure::failed)?;
    let counted = device.clone();
    let steering = device.steering();
    let last_trouble = LastTrouble::default();
    let asked = last_trouble.clone();
    Ok(OpenPort {
        name: host_tap.name(),
        device: port.device.to_string(),
        keep_open: Vec::from_iter(host_tap.keep_open().map_err(Failure::failed)?),
        open: OpenDevice {
            ifindex: Some(host_tap.index().map_err(Failure::failed)?),
            mode: PortMode::Dpdk,
            reason,
            queues,
            host: Box::new(host_tap),
            steering: Box::new(steering),
            keep: Box::new(Monitored::start(device, handle, spec, last_trouble)?),
        },
        hardware: Some(Arc::new(move || counted.counters())),
        trouble: Some(Arc::new(move || asked.get())),
        replaceable: None,
    })
}

/// The device's MAC; for a device without one, a MAC derived from its name.
fn mac(device: &DpdkDevice, spec: &Spec) -> [u8; 6] {
    let mac = device.mac();
    if mac != [0; 6] && mac[0] & 1 == 0 {
        return mac;
    }
    let mut hasher = DefaultHasher::new();
    spec.name().hash(&mut hasher);
    let hash = hasher.finish().to_be_bytes();
    // Locally administered, unicast.
    let mac = [2, hash[0], hash[1], hash[2], hash[3], hash[4]];
    if let Err(error) = device.set_mac(mac) {
        tracing::debug!(%error, "the device does not accept a MAC; it receives all frames");
    }
    mac
}

/// The last known problem of a device.
#[derive(Clone, Default)]
struct LastTrouble(Arc<Mutex<Option<String>>>);

impl LastTrouble {
    fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, what: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }
}

/// The likely reason why a device has no link.
fn without_link(device: &str) -> &'static str {
    let reasons = [
        ("net_memif", "no process has connected to the other end of its socket"),
        ("net_vhost", "no virtual machine or container has connected to its socket"),
        ("net_virtio_user", "the vhost at the other end of its path has not answered"),
        ("net_tap", "its interface in Linux is down"),
        ("net_af_packet", "its interface in Linux is down or has no carrier"),
        ("net_af_xdp", "its interface in Linux is down or has no carrier"),
    ];
    let known = reasons.into_iter().find(|(driver, _)| device.starts_with(driver));
    known.map_or("nothing is connected, or the other end is down", |(_, reason)| reason)
}

/// A device, and the thread that keeps it and its host TAP in the same state.
struct Monitored {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Monitored {
    fn start(
        device: Arc<DpdkDevice>,
        host_tap: HostTapHandle,
        spec: Spec,
        last_trouble: LastTrouble,
    ) -> Result<Self, Failure> {
        let (end, ended) = mpsc::channel();
        let (mtu, mac) = (device.mtu(), host_tap.mac().ok());
        let mut tending = Monitor { mtu, mac, up: None, failed: None, device, host_tap, spec, last_trouble };
        let thread = std::thread::Builder::new().name("bm-dpdk".into()).spawn(move || {
            let _watched = bm_sys::heartbeat::watch(SILENT_MAX);
            while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                tending.update();
                bm_sys::heartbeat::beat();
            }
        });
        let thread = thread.map_err(Failure::failed)?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Monitored {
    fn drop(&mut self) {
        self.end = None;
        // A panic was logged when it happened.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

struct Monitor {
    device: Arc<DpdkDevice>,
    host_tap: HostTapHandle,
    mtu: u16,
    mac: Option<[u8; 6]>,
    up: Option<bool>,
    /// Why the device did not take a setting of its host TAP.
    failed: Option<String>,
    spec: Spec,
    last_trouble: LastTrouble,
}

impl Monitor {
    fn update(&mut self) {
        let up = self.device.link().up;
        if self.up != Some(up) {
            self.up = Some(up);
            if let Err(error) = self.host_tap.set_carrier(up) {
                tracing::warn!(%error, "cannot set the carrier of the host TAP");
            }
        }
        if let Ok(mtu) = self.host_tap.mtu()
            && mtu != usize::from(self.mtu)
        {
            self.change_mtu(mtu);
        }
        if let Ok(mac) = self.host_tap.mac()
            && self.mac != Some(mac)
        {
            self.change_mac(mac);
        }
        self.last_trouble.set(self.trouble(up));
    }

    fn trouble(&self, up: bool) -> Option<String> {
        let no_link = (!up).then(|| format!("the device has no link: {}", without_link(self.spec.name())));
        let both: Vec<_> = no_link.into_iter().chain(self.failed.clone()).collect();
        (!both.is_empty()).then(|| both.join("; "))
    }

    /// Sets the MTU of the host TAP on the device; if the device rejects it, the host TAP gets the old one back.
    fn change_mtu(&mut self, mtu: usize) {
        let set = u16::try_from(mtu).map_err(|error| error.to_string());
        match set.and_then(|mtu| self.device.set_mtu(mtu).map_err(|error| error.to_string())) {
            Ok(()) => (self.mtu, self.failed) = (mtu as u16, None),
            Err(error) => {
                tracing::warn!(%error, "the device rejects the MTU; it stays {}", self.mtu);
                self.failed = Some(format!("the device rejects the MTU, which stays {}: {error}", self.mtu));
                let _gone = self.host_tap.set_mtu(usize::from(self.mtu));
            }
        }
    }

    /// Sets the MAC of the host TAP on the device; if the device rejects it, the host TAP gets the old one back.
    fn change_mac(&mut self, mac: [u8; 6]) {
        match self.device.set_mac(mac) {
            Ok(()) => (self.mac, self.failed) = (Some(mac), None),
            Err(error) => {
                tracing::warn!(%error, "the device rejects the MAC; it stays as it was");
                self.failed = Some(format!("the device rejects the MAC, which stays as it was: {error}"));
                let _gone = self.mac.map(|mac| self.host_tap.set_mac(mac));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_why_a_device_has_no_link() {
        assert!(without_link("net_memif0,role=client").contains("socket"));
        assert!(without_link("net_vhost1,iface=/tmp/s").contains("virtual machine"));
        assert!(without_link("0000:01:00.0").contains("other end"));
    }
}
