//! What the program reads, byte by byte: `bpf/layout.h` in Rust. A test compares the two.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64};

const PAGE: usize = 4096;
/// The maximum number of next hops.
pub const HOPS: usize = 1 << 16;
/// The maximum number of buckets of next-hop groups.
pub const BUCKETS: usize = 1 << 18;
const FIB4_ROOT_BYTES: usize = 4 << 17;
const FIB6_ROOT_BYTES: usize = 4 << 16;
const FIB4_BYTES: usize = 8 << 20;
const FIB6_BYTES: usize = 64 << 17;

/// Sizes of the parts of `struct hops`: entries, buckets, MTUs, marks of use.
pub(crate) const HOPS_ROOMS: [usize; 4] = [8 * HOPS, 4 * BUCKETS, 2 * HOPS, HOPS];
/// Sizes of the parts of `struct fib4`: root, words.
pub(crate) const FIB4_ROOMS: [usize; 2] = [FIB4_ROOT_BYTES, FIB4_BYTES];
/// Sizes of the parts of `struct fib6`: root, lines.
pub(crate) const FIB6_ROOMS: [usize; 2] = [FIB6_ROOT_BYTES, FIB6_BYTES];

/// Sets of interfaces on which sources may arrive, with one bit for each interface index.
const SETS_BYTES: usize = bm_fib::sets::SETS * INTERFACES / 8;
/// Sizes of the parts of `struct sources4`: those of a table, then sets.
pub(crate) const SOURCES4_ROOMS: [usize; 3] = [FIB4_ROOMS[0], FIB4_ROOMS[1], SETS_BYTES];
/// Sizes of the parts of `struct sources6`.
pub(crate) const SOURCES6_ROOMS: [usize; 3] = [FIB6_ROOMS[0], FIB6_ROOMS[1], SETS_BYTES];

/// Size of a map whose value is a directory and these parts.
pub fn bytes(rooms: &[usize]) -> usize {
    PAGE + rooms.iter().sum::<usize>()
}

/// Ingress interfaces that can be distinguished, by the low bits of their index in Linux.
pub const INGRESSES: usize = 4096;
/// The number of brickmoon's own interface indices.
pub const INTERFACES: usize = 1024;
pub(crate) const FORWARD_IPV4: u8 = 1;
pub(crate) const FORWARD_IPV6: u8 = 2;
pub(crate) const PARTIAL_SUMS: u8 = 4;
/// By family, IPv4 first.
pub const LINUX_ONLY: [u8; 2] = [8, 16];
pub(crate) const LINUX_ONLY_FRAGMENTS_IPV6: u8 = 32;
pub(crate) const REPORT_UNRESOLVED: u8 = 64;
pub(crate) const BY_FLOW: u8 = 128;
pub const LOCAL_BITS: usize = 4096;
pub(crate) const LOCAL_HASH: u32 = 0x9e37_79b9;

/// `struct ingress`.
///
/// Shared with the program as part of a [`View`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Ingress {
    pub mac: u64,
    pub ifindex: u32,
    pub interface: u16,
    pub flags: u8,
    pub reverse_path: u8,
}

/// `struct egress`.
///
/// Shared with the program as part of a [`View`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Egress {
    pub mac: [u8; 6],
    pub mtu: u16,
    pub ifindex: u32,
    pub tag: u32,
}

/// Slots for VLANs, and how many are searched for one.
pub const VLANS: usize = 4096;
pub(crate) const VLAN_TRIES: usize = 8;
pub(crate) const VLAN_HASH_PORT: u32 = 0x9e37_79b9;
pub(crate) const VLAN_HASH_TAG: u32 = 0x85eb_ca6b;

/// `struct vlan`.
///
/// Shared with the program as part of a [`View`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VlanEntry {
    pub port: u32,
    pub tag: u32,
    pub ifindex: u32,
}

/// `struct view`.
///
/// Shared with the program as a copy in a cell of [`Views`].
#[derive(Clone, PartialEq, Eq)]
#[repr(C)]
pub struct View {
    pub flow_seed: u64,
    pub policy_ipv4: u32,
    pub policy_ipv6: u32,
    pub local: [u64; LOCAL_BITS / 64],
    pub ingress: [Ingress; INGRESSES],
    pub egress: [Egress; INTERFACES],
    pub vlans: [VlanEntry; VLANS],
    /// MTUs of egresses for the program at tc, which can send through any device; 0 for VLANs, and where nothing may
    /// be sent.
    pub tc_mtus: [u16; INTERFACES],
}

impl View {
    /// A view in which nothing is forwarded.
    pub fn empty() -> Box<Self> {
        Box::new(Self {
            flow_seed: 0,
            policy_ipv4: 0,
            policy_ipv6: 0,
            local: [0; LOCAL_BITS / 64],
            ingress: [Ingress::default(); INGRESSES],
            egress: [Egress::default(); INTERFACES],
            vlans: [VlanEntry::default(); VLANS],
            tc_mtus: [0; INTERFACES],
        })
    }
}

/// `struct views`.
///
/// Shared with the program at any time: atomics, and cells of which the program reads the one that `current` selects
/// while the other is written.
#[repr(C)]
pub struct Views {
    pub current: AtomicU32,
    pub grace_jiffies: AtomicU32,
    pub alive_until: AtomicU64,
    /// The daemon is changing the tables. The program does not read this.
    pub busy: AtomicU32,
    unused: [u32; 11],
    pub of: [UnsafeCell<View>; 2],
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes that clang gave the structures in `layout.h`.
    #[test]
    fn layout_matches_the_program() {
        assert_eq!((size_of::<Ingress>(), size_of::<Egress>()), (16, 16));
        assert_eq!(size_of::<View>(), 16 + 512 + 65_536 + 16_384 + 49_152 + 2_048);
        assert_eq!(size_of::<Views>(), 64 + 2 * size_of::<View>());
        assert_eq!(bytes(&HOPS_ROOMS), 4096 + (512 + 1024 + 128 + 64) * 1024);
        assert_eq!(bytes(&FIB4_ROOMS), 4096 + (512 + 8192) * 1024);
        assert_eq!(bytes(&FIB6_ROOMS), 4096 + (256 + 8192) * 1024);
        assert_eq!(bytes(&SOURCES4_ROOMS) - bytes(&FIB4_ROOMS), 512 * 1024);
        assert_eq!(bytes(&SOURCES6_ROOMS) - bytes(&FIB6_ROOMS), 512 * 1024);
    }
}
