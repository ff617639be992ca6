//! What the programs read, byte by byte: `bpf/layout.h` in Rust.

use bm_bpf::MapValue;
use libbpf_rs::libbpf_sys;

/// Ports of one switch.
pub const SLOTS: usize = 1024;
pub(crate) const PORT_UP: u32 = 1;
pub(crate) const PORT_TAKES_FRAMES: u32 = 2;
pub(crate) const PORT_PARTIAL_SUMS: u32 = 4;
pub(crate) const PORT_TAKES_LONG: u32 = 8;
pub(crate) const PORT_NO_LEARNING: u32 = 16;
pub(crate) const PORT_LOCKED: u32 = 32;
pub(crate) const PORT_ISOLATED: u32 = 64;
pub(crate) const PORT_SOURCE_GUARD: u32 = 128;
pub(crate) const PORT_DHCP_GUARD: u32 = 256;
pub(crate) const PORT_RA_GUARD: u32 = 512;
pub(crate) const PORT_UNTAGGED: u32 = 1024;
/// MAC addresses that each port can have without counting against the size of the table.
pub(crate) const RESERVED_MACS: u32 = 16;
/// The numbers of VLANs in the map of members, for each kind of flood.
pub(crate) const VIDS: u32 = 4096;
pub(crate) const FDB_STATIC: u32 = 1;

/// `struct port`.
///
/// Not shared: copied into and out of maps by system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Port {
    pub ifindex: u32,
    pub mtu: u32,
    pub flags: u32,
    pub untagged: u32,
    pub flood_interval_ns: u64,
    pub flood_burst_ns: u64,
    pub move_interval_ns: u64,
    pub move_burst_ns: u64,
    pub learned_max: u32,
    pub unused: u32,
    pub tagged: [u64; 64],
}

impl Port {
    /// The entry of a slot that no port uses.
    pub const NOBODY: Self = Self {
        ifindex: 0,
        mtu: 0,
        flags: 0,
        untagged: 0,
        flood_interval_ns: 0,
        flood_burst_ns: 0,
        move_interval_ns: 0,
        move_burst_ns: 0,
        learned_max: 0,
        unused: 0,
        tagged: [0; 64],
    };
}

/// `struct fdb_entry`.
///
/// Not shared: copied into and out of maps by system calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FdbEntry {
    pub slot: u32,
    pub flags: u32,
    pub seen_ns: u64,
    pub index: u32,
    pub unused: u32,
}

/// `struct rules`.
///
/// Not shared: copied into and out of maps by system calls.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Rules {
    pub ageing_ns: u64,
    pub refresh_ns: u64,
    pub vlans: u32,
    pub table: u32,
    pub isolation: u32,
    pub flood_kinds: u32,
    pub guards: u32,
    pub unused: u32,
}

/// `struct binding`.
///
/// Not shared: copied into and out of maps by system calls.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Binding {
    pub slot: u32,
    pub unused: u32,
    pub mac: u64,
    pub address: [u8; 16],
}

/// `struct bpf_devmap_val`.
///
/// Not shared: copied into and out of maps by system calls.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Member {
    pub ifindex: u32,
    pub program: i32,
}

// SAFETY: numbers only, none narrower than what stands before it leaves a gap.
unsafe impl MapValue for Port {}
// SAFETY: the same.
unsafe impl MapValue for FdbEntry {}
// SAFETY: the same.
unsafe impl MapValue for Rules {}
// SAFETY: the same.
unsafe impl MapValue for Binding {}
// SAFETY: the same.
unsafe impl MapValue for Member {}

const _: () = {
    assert!(size_of::<Port>() == 56 + 512);
    assert!(size_of::<FdbEntry>() == 24);
    assert!(size_of::<Rules>() == 40);
    assert!(size_of::<Binding>() == 32);
    assert!(size_of::<Member>() == size_of::<libbpf_sys::bpf_devmap_val>());
};
