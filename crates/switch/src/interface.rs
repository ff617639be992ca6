//! Properties of interfaces that can be queried without netlink, by ioctl.

use std::io;

use bm_bpf::xdp::Xdp;
pub use bm_sys::interface::{index, list};
use bm_sys::{Flag, Interfaces, Offload};

use crate::features::Accepts;

/// The kind of device that an interface is, as far as it matters to a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// A pair of virtual interfaces: containers.
    Veth,
    /// TUN/TAP: virtual machines.
    Tap,
    /// Anything else.
    Other,
}

/// What a switch has to know about an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceState {
    pub mtu: u32,
    pub up: bool,
    pub accepts: Accepts,
    pub driver: Driver,
    /// Whether senders may leave checksums to a device that does not exist.
    pub partial_sums: bool,
}

impl Driver {
    fn query(interfaces: &Interfaces, name: &str) -> Self {
        match interfaces.driver(name).as_deref() {
            Ok("veth") => Self::Veth,
            Ok("tun") => Self::Tap,
            _ => Self::Other,
        }
    }
}

impl InterfaceState {
    /// Queries everything about an interface.
    pub fn query(interfaces: &Interfaces, name: &str, accepts: Accepts) -> io::Result<Self> {
        let (driver, partial_sums) = (Driver::query(interfaces, name), interfaces.may_leave_checksums(name));
        Self { mtu: 0, up: false, accepts, driver, partial_sums }.refreshed(interfaces, name)
    }

    /// Queries what changes often and what Linux sends events for; the rest is taken from `self`.
    pub fn refreshed(&self, interfaces: &Interfaces, name: &str) -> io::Result<Self> {
        Ok(Self { mtu: interfaces.mtu(name)?, up: interfaces.flag(name, Flag::Up)?, ..*self })
    }
}

/// Prepares one end of a veth to receive frames from XDP: NAPI (GRO) on, and VLAN tags kept in the frames.
pub(crate) fn prepare_peer(interfaces: &Interfaces, name: &str) -> io::Result<()> {
    interfaces.set_gro(name, true)?;
    interfaces.set_offload(name, Offload::TransmitVlan, false).map(drop)
}

/// Whether the program of an interface runs in generic mode.
pub fn is_generic(ifindex: u32) -> bool {
    Xdp::query(ifindex).is_ok_and(|xdp| xdp.generic)
}
