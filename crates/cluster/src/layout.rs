//! The values of the program's maps: `bpf/layout.h` in Rust.

use bm_bpf::MapValue;

/// The program on fabric links; its name ends in the version of the layout.
pub const PROGRAM: &str = "bm_fabric_3";
/// The largest number of entries of the map of neighbors.
pub const NEIGHBORS: u32 = 65_536;
/// Instead of an interface: the link exists, its interface does not.
pub const NO_INTERFACE: u32 = u32::MAX;
/// Instead of an epoch: there is none.
pub(crate) const NO_EPOCH: u32 = 0x100;
/// In place of the external port of messages between nodes: a message, a probe. Answers to probes have 2.
pub(crate) const PORT_MESSAGE: u8 = 0;
pub(crate) const PORT_PROBE: u8 = 1;

/// `struct self`.
///
/// Not shared: copied into and out of maps by system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Own {
    pub node: u32,
    pub epoch: u32,
    pub epoch_before: u32,
    pub unused: u32,
}

/// `struct neighbor`.
///
/// Not shared: copied into and out of maps by system calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Neighbor {
    /// Six bytes and two that are zero, as in `from`: the program reads all eight at once.
    pub to: [u8; 8],
    pub from: [u8; 8],
    pub ifindex: u32,
    pub check: u32,
    pub port: u32,
    pub family: u32,
    pub address: [u8; 16],
}

// SAFETY: numbers only, none narrower than what stands before it leaves a gap.
unsafe impl MapValue for Own {}
// SAFETY: the same.
unsafe impl MapValue for Neighbor {}

const _: () = {
    assert!(size_of::<Own>() == 16);
    assert!(size_of::<Neighbor>() == 48);
};
