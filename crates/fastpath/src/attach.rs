//! Interfaces: the program on them, and whether their devices can send redirected frames.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use bm_bpf::xdp::{self, Xdp};
use bm_bpf::{AttachType, AttachedProgram, ProgramInfo, pins, tcx};
use bm_sys::Interfaces;
use libbpf_rs::{Link, ProgramMut};

use crate::counters::Counters;
use crate::error::KernelError;
use crate::tags;

/// The first Linux version that reports which devices can send redirected frames.
const FEATURES_ARE_TOLD: (u32, u32) = (6, 3);
/// The first Linux version with links at tc.
const HAS_TCX: (u32, u32) = (6, 6);

/// How the program is to be attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachChoice {
    /// At tc on a veth and on what XDP cannot send through; elsewhere as XDP, until packets come that XDP has to leave to
    /// Linux and tc has not.
    #[default]
    Auto,
    Xdp,
    Tc,
}

/// The result of [`crate::Kernel::attach`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The interface index.
    pub ifindex: u32,
    /// The driver does not support XDP, so the program runs in generic mode.
    pub generic: bool,
    /// An earlier daemon's program is attached, of this layout version, until [`crate::Kernel::take_over`].
    pub adopted: Option<u32>,
    /// What the program is attached to.
    pub attach_type: AttachType,
}

/// An interface to which the program is attached.
pub struct AttachedInterface {
    pub ifindex: u32,
    pub attach_type: AttachType,
    /// Whether that was chosen automatically, and why.
    pub reason: Option<String>,
    /// Its counters when it was last checked whether tc is better.
    pub seen: Option<Counters>,
    pub link: Link,
    /// Where it is pinned.
    pub pin: Option<PathBuf>,
    /// The attached program is still an earlier daemon's.
    pub waits: bool,
    /// Set while the attached program is the one that drops everything that filters may forbid, because the filters
    /// are not in place yet; since when.
    pub held: Option<Instant>,
    /// It stays attached when this is dropped, if it is pinned.
    pub kept: bool,
    /// brickmoon turned off VLAN tag stripping, and turns it on again at the end.
    pub tags_kept: bool,
}

/// The index of an interface of this thread's network namespace.
pub fn ifindex(interface: &str) -> Result<u32, KernelError> {
    bm_sys::interface::index(interface)
        .ok_or_else(|| KernelError::NoInterface { interface: interface.into() })
}

/// The name of an interface of this thread's network namespace; its index, if it no longer exists.
pub fn name(ifindex: u32) -> String {
    bm_sys::interface::name(ifindex).unwrap_or_else(|_| ifindex.to_string())
}

fn query(ifindex: u32) -> io::Result<Xdp> {
    // Before Linux 6.3 the answer for a deleted interface is the same as for one without a program.
    bm_sys::interface::name(ifindex)?;
    Xdp::query(ifindex)
}

/// Whether the device of an interface can send frames that XDP redirects to it: a veth can once its other end has GRO
/// or a program, most network cards always can. Linux before 6.3 does not say; then the answer is yes.
pub fn takes_frames(ifindex: u32) -> bool {
    query(ifindex).is_ok_and(|xdp| xdp.sends_frames || !reports_features())
}

/// Whether senders on an interface may leave checksums to a device that does not exist; yes if that cannot be found out.
pub fn may_leave_checksums(ifindex: u32) -> bool {
    Interfaces::open().map_or(true, |interfaces| interfaces.may_leave_checksums(&name(ifindex)))
}

fn reports_features() -> bool {
    linux_version() >= FEATURES_ARE_TOLD
}

/// Whether programs can be attached at tc by links.
pub(crate) fn has_tcx() -> bool {
    linux_version() >= HAS_TCX
}

fn linux_version() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Why XDP cannot send frames through an interface, and how to fix it; `None` if it can.
pub fn why_no_frames(interface: &str) -> Option<String> {
    let Ok(ifindex) = ifindex(interface) else { return Some(format!("there is no interface {interface}")) };
    if takes_frames(ifindex) {
        return None;
    }
    let interfaces = Interfaces::open();
    let driver = interfaces.as_ref().ok().and_then(|interfaces| interfaces.driver(interface).ok());
    if driver.as_deref() != Some("veth") {
        let driver = driver.map_or_else(String::new, |driver| format!(" ({driver})"));
        return Some(format!("the driver of {interface}{driver} cannot send frames that XDP redirects"));
    }
    let why = format!("XDP cannot send through {interface} while the other end of this veth has GRO off");
    // Its name cannot be found: it may be in another namespace, which has its own indices.
    Some(match interfaces.ok().and_then(|interfaces| interfaces.veth_peer(interface)) {
        Some(number) => format!(
            "{why}: turn it on with `ethtool -K NAME gro on` in the network namespace of the other end, where the interface has index {number}"
        ),
        None => why,
    })
}

/// Why the program is better at tc than at XDP on an interface, whatever comes in there.
pub(crate) fn why_tc(interface: &str) -> Option<String> {
    let driver = Interfaces::open().and_then(|interfaces| interfaces.driver(interface)).unwrap_or_default();
    why_no_frames(interface).or_else(|| {
        (driver == "veth")
            .then(|| format!("hosts on {interface}, a veth, send large packets, which XDP cuts up"))
    })
}

/// Whether an interface of that name exists.
pub fn is_there(interface: &str) -> bool {
    ifindex(interface).is_ok()
}

/// Whether an interface of that name exists, has Ethernet headers and a MAC address.
pub fn is_ethernet(interface: &str) -> bool {
    let address = Interfaces::open().and_then(|interfaces| interfaces.hardware_address(interface));
    address.is_ok_and(|address| address.kind == libc::ARPHRD_ETHER && address.mac != [0; 6])
}

/// Whether an interface with that index still exists.
pub fn exists(ifindex: u32) -> bool {
    bm_sys::interface::name(ifindex).is_ok()
}

/// Attaches the program to an interface; as XDP, in native mode if the driver supports it.
pub fn attach(
    interface: &str,
    attach_type: AttachType,
    program: &ProgramMut<'_>,
) -> Result<AttachedInterface, KernelError> {
    let ifindex = ifindex(interface)?;
    let link = match attach_type {
        AttachType::Xdp => {
            if let Some(other) = AttachedProgram::on(ifindex, interface) {
                return Err(bm_bpf::Error::Taken(other).into());
            }
            program
                .attach_xdp(ifindex as i32)
                .map_err(|error| KernelError::Attach { interface: interface.into(), error })?
        }
        AttachType::Tc => tcx::attach(program, ifindex)
            .map_err(|error| KernelError::AttachTc { interface: interface.into(), error })?,
    };
    Ok(AttachedInterface {
        ifindex,
        attach_type,
        reason: None,
        seen: None,
        link,
        pin: None,
        waits: false,
        held: None,
        kept: false,
        tags_kept: attach_type == AttachType::Xdp && tags::keep(interface, true),
    })
}

/// Whether the program of an interface runs in generic mode.
pub fn is_generic(ifindex: u32) -> bool {
    query(ifindex).is_ok_and(|xdp| xdp.generic)
}

/// The ID of the program on an interface.
pub fn program_on(ifindex: u32) -> Option<u32> {
    query(ifindex).ok()?.program_id
}

impl AttachedInterface {
    /// Why the program does not see all that Linux forwards from its interface; `None` if it does.
    ///
    /// XDP has room for one program. At tc others may run before ours, and hand packets to Linux without it; and whoever
    /// may attach programs may detach ours.
    pub(crate) fn why_not_first(&self) -> Option<String> {
        if !self.is_live() {
            return Some("its program has been detached: restart the daemon".into());
        }
        if self.attach_type == AttachType::Xdp {
            return None;
        }
        let own = self.link.info().ok()?.prog_id;
        let first = tcx::programs(self.ifindex).ok()?.first().copied().filter(|first| *first != own)?;
        let name = ProgramInfo::query(first).map(|info| info.name).unwrap_or_default();
        Some(format!(
            "another BPF program at tc ingress runs before brickmoon's ({name}, id {first}): attach it behind, or stop \
             the program that uses it"
        ))
    }

    /// Whether the program is still attached to its interface. It is not once the interface is deleted, even if
    /// another one has got the same index.
    pub(crate) fn is_live(&self) -> bool {
        let on = self.link.info().map(|info| info.info);
        on.is_ok_and(|on| pins::place(&on) == Some((self.ifindex, self.attach_type)))
    }
}

impl Drop for AttachedInterface {
    fn drop(&mut self) {
        // A failed start does not remove what an earlier daemon left running.
        if self.waits || (self.kept && self.pin.is_some()) {
            return;
        }
        if let Some(pin) = &self.pin {
            let _gone = fs::remove_file(pin);
        }
        if self.tags_kept && self.is_live() {
            tags::keep(&name(self.ifindex), false);
        }
        xdp::detach(&self.link);
    }
}
