//! The steering program of one port: loading, attaching, and settings.

use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bm_bpf::xdp::{self, Mode};
use bm_bpf::{AttachedProgram, MapValue, samples};
use bm_frame::DATA_OFFSET;
use bm_port::{LinuxRoute, Steering, Unattended};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::batch;
use crate::error::XdpError;
use crate::interface::Interface;
use crate::options::{Attach, Local, Options};
use crate::shared::Shared;
use crate::skeleton::{SteerSkel, SteerSkelBuilder};

bm_bpf::counters! {
    /// What the steering program did with the frames of a port, summed over all CPUs.
    pub struct SteerCounters of STEER_COUNTERS = [
        // Taken: sent to a worker's socket. Frames that the socket could not accept are in the port's device counters.
        "steered",
        // Left to Linux because no worker's socket is bound to the queue.
        "no_worker",
        // Left to Linux because steering is off.
        "inactive",
        // Left to Linux because the destination MAC address is another host's.
        "other_mac",
        // Left to Linux because the MAC or IP address is multicast or broadcast.
        "group",
        // Left to Linux because it is neither IPv4 nor IPv6, for example ARP.
        "other_type",
        // Left to Linux because the destination address is its own.
        "local",
        // Left to Linux as neighbor discovery.
        "neighbor",
        // Seen again while being delivered to Linux, in generic mode.
        "delivered",
        // Left to Linux because earlier frames were not fetched: the worker hangs, or the process is being killed.
        "unattended",
        // Left to Linux because only Linux may handle the address family: a firewall, an IPsec policy, traffic control.
        "firewall",
        // Dropped because filters might drop it: see `Options::held` and `Unattended`.
        "held",
        // Left to Linux because they do not fit into a slot.
        "too_large",
        // Dropped because they do not fit into a slot, and Linux must not forward what filters may drop.
        "too_large_dropped",
        // Left to Linux because their route leads where only Linux can send.
        "route",
    ];
}

/// `struct control` of `steer.bpf.c`.
///
/// Not shared: copied into and out of a map by system calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Control {
    mac: u64,
    active: u32,
    other_macs: u32,
    /// A bit for each family, IPv4 lowest.
    linux_only: u32,
    /// Whether packets that Linux might route are dropped while steering is off.
    held: u32,
    /// If `active` is [`SAMPLED`].
    sample_one_in: u32,
    /// Whether filters of workers may drop packets.
    filters_drop: u32,
    /// Families with routes that lead to Linux, as `linux_only`.
    linux_routes: u32,
    /// What to do while no worker fetches packets, as [`Unattended`] counts.
    unattended: u32,
}

/// Values of `active`.
const ACTIVE: u32 = 1;
const SAMPLED: u32 = 2;

// SAFETY: numbers only, the widest first and an even number of the others, so there is no padding.
unsafe impl MapValue for Control {}

impl Control {
    /// These settings for a port that takes packets or not, and samples one in so many.
    fn taking(self, active: bool, sample_one_in: u32) -> Self {
        let active = match (active, sample_one_in) {
            (false, _) => 0,
            (true, 0) => ACTIVE,
            (true, _) => SAMPLED,
        };
        Self { active, sample_one_in, ..self }
    }

    /// Reads the value in the program's map.
    fn read(map: &MapHandle) -> io::Result<Self> {
        let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).map_err(system_error)?;
        value.and_then(|value| Self::from_bytes(&value)).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

fn mac_key(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// The loaded program: its maps, and the link that exists as long as this does.
pub(crate) struct Program {
    pub xsks: MapHandle,
    pub heartbeats: MapHandle,
    pub deliver: OwnedFd,
    /// The steering program and its queue, if frames can be delivered to Linux in batches.
    pub many: Option<(OwnedFd, MapHandle)>,
    pub generic: bool,
    /// The error of native mode, if generic mode is used instead.
    pub native_error: Option<io::Error>,
    control: MapHandle,
    macs: MapHandle,
    counts: MapHandle,
    /// Whether it started by dropping packets that Linux might route.
    held: bool,
    /// Closing it detaches the program, also when the process is killed; none if another program is attached.
    link: Option<OwnedFd>,
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(link) = &self.link {
            xdp::detach(link);
        }
    }
}

impl Program {
    /// Attaches as the options say, trying native mode first.
    pub(crate) fn attach(port: &Interface, shared: &Shared, options: &Options) -> Result<Self, XdpError> {
        refuse_if_taken(port)?;
        let mut native = None;
        if options.attach != Attach::Generic {
            match Self::load(port, shared, options, Some(Mode::Native))? {
                Ok(program) => return Ok(program),
                Err(error) => native = Some(error),
            }
        }
        if options.attach != Attach::Native {
            match Self::load(port, shared, options, Some(Mode::Generic))? {
                Ok(mut program) => {
                    program.native_error = native;
                    return Ok(program);
                }
                Err(generic) => {
                    let interface = port.name.clone();
                    return Err(XdpError::Attach { interface, native, generic: Some(generic) });
                }
            }
        }
        Err(XdpError::Attach { interface: port.name.clone(), native, generic: None })
    }

    /// Loads the program for an interface with another program attached: it only delivers frames to Linux.
    pub(crate) fn beside(port: &Interface, shared: &Shared, options: &Options) -> Result<Self, XdpError> {
        Self::load(port, shared, options, None)?.map_err(|error| XdpError::Attach {
            interface: port.name.clone(),
            native: Some(error),
            generic: None,
        })
    }

    /// Loads the program and attaches it in one mode, or in none; the inner error is the driver's refusal.
    fn load(
        port: &Interface,
        shared: &Shared,
        options: &Options,
        mode: Option<Mode>,
    ) -> Result<io::Result<Self>, XdpError> {
        let generic = mode == Some(Mode::Generic);
        let many = mode == Some(Mode::Native) && batch::is_possible();
        let failed = |error| XdpError::Program { interface: port.name.clone(), error };
        let mut storage = MaybeUninit::uninit();
        let mut open = SteerSkelBuilder::default().open(&mut storage).map_err(failed)?;
        if let Some(settings) = open.maps.rodata_data.as_deref_mut() {
            settings.take_tagged = options.tagged;
            settings.take_all = options.everything;
            settings.take_esp = options.local == Local::Esp;
            settings.take_local = options.local == Local::All;
            settings.generic_mode = generic;
            settings.delivers_many = many;
            settings.delivered_mark = random();
            settings.frame_max = frame_max(shared.memory().slot_size());
        }
        if let Some(control) = open.maps.data_control_data.as_deref_mut() {
            control.control.held = options.held.into();
        }
        let local = shared.local_maps().map_err(failed)?;
        open.maps.xsks.set_max_entries(port.queues).map_err(failed)?;
        open.maps.heartbeats.set_max_entries(port.queues).map_err(failed)?;
        open.maps.local4.reuse_fd(local.v4.as_fd()).map_err(failed)?;
        open.maps.local6.reuse_fd(local.v6.as_fd()).map_err(failed)?;
        open.maps.local_hints.reuse_fd(local.hints.as_fd()).map_err(failed)?;
        let [routes4, routes6, route_hints] = shared.route_maps().map_err(failed)?;
        open.maps.routes4.reuse_fd(routes4.as_fd()).map_err(failed)?;
        open.maps.routes6.reuse_fd(routes6.as_fd()).map_err(failed)?;
        open.maps.route_hints.reuse_fd(route_hints.as_fd()).map_err(failed)?;
        open.maps.samples.reuse_fd(samples::samples().map_err(failed)?.as_fd()).map_err(failed)?;
        let loaded = open.load().map_err(failed)?;
        let steer = &loaded.progs.steer;
        let link = match mode.map(|mode| xdp::attach(steer, port.index, mode)).transpose() {
            Ok(link) => link,
            Err(error) => return Ok(Err(error)),
        };
        let handle = |map: &libbpf_rs::Map<'_>| MapHandle::try_from(map).map_err(failed);
        let program = Self {
            xsks: handle(&loaded.maps.xsks)?,
            heartbeats: handle(&loaded.maps.heartbeats)?,
            control: handle(&loaded.maps.data_control)?,
            macs: handle(&loaded.maps.macs)?,
            counts: handle(&loaded.maps.counts)?,
            deliver: loaded
                .progs
                .deliver
                .as_fd()
                .try_clone_to_owned()
                .map_err(|error| failed(error.into()))?,
            many: many.then(|| delivers_many(&loaded)).transpose().map_err(failed)?,
            generic,
            native_error: None,
            held: options.held,
            link,
        };
        Ok(Ok(program))
    }

    /// The steering of the program; it starts with the port's own MAC address, and with steering off.
    pub(crate) fn steering(&self, port: &Interface, shared: &Arc<Shared>) -> Result<XdpSteering, XdpError> {
        let failed = |error| XdpError::Program { interface: port.name.clone(), error };
        let mut steering = XdpSteering {
            control: MapHandle::try_from(&self.control).map_err(failed)?,
            macs: MapHandle::try_from(&self.macs).map_err(failed)?,
            counts: MapHandle::try_from(&self.counts).map_err(failed)?,
            shared: shared.clone(),
            now: Control { held: self.held.into(), ..Control::default() },
            others: Vec::new(),
        };
        steering.set_macs(&[port.mac]).map_err(|error| failed(error.into()))?;
        Ok(steering)
    }

    /// The counters, summed over all CPUs.
    pub(crate) fn counters(&self) -> libbpf_rs::Result<SteerCounters> {
        counters(&self.counts)
    }
}

/// The steering program for test runs that deliver frames.
fn delivers_many(loaded: &SteerSkel<'_>) -> libbpf_rs::Result<(OwnedFd, MapHandle)> {
    let steer = loaded.progs.steer.as_fd().try_clone_to_owned()?;
    Ok((steer, MapHandle::try_from(&loaded.maps.queue)?))
}

fn counters(counts: &MapHandle) -> libbpf_rs::Result<SteerCounters> {
    SteerCounters::read(counts, 0).map(Option::unwrap_or_default)
}

/// The largest frame that fits into a slot of this size, in bytes.
pub fn frame_max(slot_size: usize) -> u32 {
    slot_size.saturating_sub(DATA_OFFSET) as u32
}

/// An unpredictable number other than 0.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish() | 1
}

fn refuse_if_taken(port: &Interface) -> Result<(), XdpError> {
    AttachedProgram::on(port.index, &port.name).map_or(Ok(()), |other| Err(XdpError::Taken(other)))
}

/// Tells a port's steering program which packets to leave to Linux.
pub struct XdpSteering {
    control: MapHandle,
    macs: MapHandle,
    counts: MapHandle,
    shared: Arc<Shared>,
    now: Control,
    others: Vec<[u8; 6]>,
}

impl XdpSteering {
    fn set(&mut self, control: Control) -> io::Result<()> {
        let written = self.control.update(&0u32.to_ne_bytes(), control.bytes(), MapFlags::ANY);
        written.map_err(system_error)?;
        self.now = control;
        Ok(())
    }
}

impl Steering for XdpSteering {
    fn has_kernel_program(&self) -> bool {
        true
    }

    fn set_macs(&mut self, macs: &[[u8; 6]]) -> io::Result<()> {
        let (first, others) = macs.split_first().map_or(([0; 6], &[][..]), |(first, rest)| (*first, rest));
        for mac in others {
            self.macs.update(&mac_key(*mac).to_ne_bytes(), &[1], MapFlags::ANY).map_err(system_error)?;
        }
        self.set(Control { mac: mac_key(first), other_macs: others.len() as u32, ..self.now })?;
        for gone in std::mem::replace(&mut self.others, others.to_vec()) {
            if !others.contains(&gone) {
                self.macs.delete(&mac_key(gone).to_ne_bytes()).map_err(system_error)?;
            }
        }
        Ok(())
    }

    fn set_local(&mut self, addresses: &[IpAddr]) -> io::Result<()> {
        self.shared.set_local(addresses).map_err(system_error)
    }

    fn set_active(&mut self, active: bool) -> io::Result<()> {
        self.set(Control { held: 0, ..self.now.taking(active, self.now.sample_one_in) })
    }

    fn set_linux_only(&mut self, [ipv4, ipv6]: [bool; 2]) -> io::Result<()> {
        self.set(Control { linux_only: u32::from(ipv4) | u32::from(ipv6) << 1, ..self.now })
    }

    fn set_linux_routes(&mut self, routes: &[LinuxRoute]) -> io::Result<()> {
        self.shared.set_routes(routes).map_err(system_error)?;
        let of = |six: bool| u32::from(routes.iter().any(|route| route.address.is_ipv6() == six));
        self.set(Control { linux_routes: of(false) | of(true) << 1, ..self.now })
    }

    fn set_filters_drop(&mut self, drop: bool) -> io::Result<()> {
        self.set(Control { filters_drop: drop.into(), ..self.now })
    }

    fn set_unattended(&mut self, unattended: Unattended) -> io::Result<()> {
        self.set(Control { unattended: unattended as u32, ..self.now })
    }

    fn set_sampling(&mut self, one_in: u32) -> io::Result<()> {
        self.set(self.now.taking(self.now.active > 0, one_in))
    }

    fn differences(&self) -> io::Result<Vec<String>> {
        let mut differences = Vec::new();
        let found = Control::read(&self.control)?;
        if found != self.now {
            differences.push(format!(
                "the steering program has the settings {found:x?} and should have {:x?}",
                self.now
            ));
        }
        let mut macs: Vec<_> = self.macs.keys().collect();
        let mut should: Vec<_> = self.others.iter().map(|mac| mac_key(*mac).to_ne_bytes().to_vec()).collect();
        macs.sort_unstable();
        should.sort_unstable();
        if macs != should {
            differences.push(format!(
                "the steering program has the MAC addresses {macs:x?} and should have {should:x?}"
            ));
        }
        Ok(differences)
    }

    fn held(&self) -> u64 {
        counters(&self.counts).map_or(0, |counters| counters.get("held"))
    }

    fn linux_only(&self) -> u64 {
        counters(&self.counts).map_or(0, |counters| counters.get("firewall"))
    }
}

fn system_error(error: libbpf_rs::Error) -> io::Error {
    let kind = match error.kind() {
        ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        ErrorKind::OutOfMemory => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
