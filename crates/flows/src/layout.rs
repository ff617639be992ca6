//! The area that the writer, BPF programs and workers share, byte by byte: `crates/fastpath/bpf/flow_table.h` in Rust.
//! A test compares the two.
//!
//! ```text
//! 0      Head: one page
//! 4096   Bucket 0, Bucket 1, ..              each of 8 slots: 0, or the number of an entry and a tag
//! next   entry 1, entry 2, .. entry max      each 128 bytes: a cache line with the key, one with the action
//! page
//! ```
//!
//! Everything is atomic, because others read it while it is written, and count in it. The order that makes this
//! right is the writer's (`table.rs`): an entry is complete before its number is in a slot (release, acquire), and is
//! written anew only after a grace period.

use bm_sys::{Atomic, Map};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

const PAGE: usize = 4096;
/// Slots of a bucket.
pub(crate) const WAYS: usize = 8;
/// Bits of a slot that are the number of an entry.
pub(crate) const NUMBER_BITS: u32 = 22;
pub(crate) const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;
/// In the first slot of a bucket: flows whose first bucket it is may be in their second one.
pub(crate) const SPILLS: u32 = 1 << NUMBER_BITS;
/// Where the tag begins in a slot.
pub(crate) const TAG_AT: u32 = NUMBER_BITS + 1;
/// In [`Flow::follows`].
pub(crate) const FOLLOWS_ACKNOWLEDGED: u8 = 1;
/// In [`Flow::flags`].
pub(crate) const TRANSLATES: u8 = 1;
pub(crate) const TRACKED: u8 = 2;
/// By family, IPv4 first: the bits of [`Head::families`].
pub(crate) const FAMILIES: [u32; 2] = [1, 2];

/// `struct flow_head`.
///
/// Shared with programs and workers, which only read it.
#[repr(C)]
pub(crate) struct Head {
    /// Of nftables, that entries hold for.
    pub generation: AtomicU32,
    /// Entries of another one are void; never 0.
    pub epoch: AtomicU32,
    /// Whose packets may use flows now.
    pub families: AtomicU32,
    /// Jiffies (low 32 bits) from which on no flow is used.
    pub until: AtomicU32,
    /// The secret of the hash, odd.
    pub key: [AtomicU64; 2],
    rest: [AtomicU8; PAGE - 32],
}

/// `struct flow_bucket`.
///
/// Shared with programs and workers, which only read it.
#[repr(C)]
pub(crate) struct Bucket {
    /// No number if free; else that of an entry, and its tag. In the first one [`SPILLS`] as well.
    pub slots: [AtomicU32; WAYS],
}

/// `struct flow`, with fields as in packets: network order.
///
/// Shared with programs and workers. They write `ended`, `used_at`, `reply_low`, `reply_high`, `follows`, `packets`, `bytes`,
/// `acknowledged`, `end` and `checked_at`; the rest is the writer's.
#[repr(C)]
pub(crate) struct Flow {
    /// IPv4 in the first, the others 0.
    pub source: [AtomicU32; 4],
    pub destination: [AtomicU32; 4],
    /// Source, then destination.
    pub ports: AtomicU32,
    /// On which packets arrive: brickmoon's index.
    pub interface: AtomicU16,
    pub protocol: AtomicU8,
    /// 4 or 6.
    pub family: AtomicU8,
    /// 0 once it is taken out.
    pub epoch: AtomicU32,
    /// Brickmoon's index of the interface that Linux sent it through.
    pub out: AtomicU16,
    /// [`TRANSLATES`]: addresses or ports change; [`TRACKED`]: packets belong to a connection of Linux.
    pub flags: AtomicU8,
    /// Why it is no longer used; 0 as long as it is.
    pub ended: AtomicU8,
    /// Jiffies (low 32 bits) of the last packet.
    pub used_at: AtomicU32,
    /// The number of the entry of the other direction; 0 if the program knows none.
    pub reply_low: AtomicU16,
    pub reply_high: AtomicU8,
    /// Which of `acknowledged` and `end` are known: [`FOLLOWS_ACKNOWLEDGED`] and 2.
    pub follows: AtomicU8,
    pub packets: AtomicU64,
    /// Of frames as they arrive. The second cache line begins here.
    pub bytes: AtomicU64,
    pub new_source: [AtomicU32; 4],
    pub new_destination: [AtomicU32; 4],
    pub new_ports: AtomicU32,
    /// By which the ones' complement sum (words as in memory) of the addresses grows.
    pub sum_addresses: AtomicU16,
    /// By which that of the ports grows.
    pub sum_ports: AtomicU16,
    /// Of TCP: the greatest number that packets have acknowledged.
    pub acknowledged: AtomicU32,
    /// Of TCP: the number behind the data of the last packet, if it is the connection's last one.
    pub end: AtomicU32,
    /// Of the connection.
    pub mark: AtomicU32,
    /// Of the connection, in this direction.
    pub zone: AtomicU16,
    /// Jiffies (low 16 bits) when the connection was last looked up.
    pub checked_at: AtomicU16,
}

// SAFETY: atomics without padding, as the test of the layout shows.
unsafe impl Atomic for Head {}
// SAFETY: atomics of one size.
unsafe impl Atomic for Bucket {}
// SAFETY: atomics without padding, as the test of the layout shows.
unsafe impl Atomic for Flow {}

/// Number of buckets of a table of `max` flows: four of five slots are used when it is full.
pub fn buckets(max: usize) -> usize {
    (max * 5 / 4).div_ceil(WAYS).max(8)
}

/// Offset of the first entry.
fn flows_at(max: usize) -> usize {
    (PAGE + buckets(max) * size_of::<Bucket>()).next_multiple_of(PAGE)
}

/// Bytes of memory for a table of `max` flows.
pub fn bytes(max: usize) -> usize {
    flows_at(max) + max * size_of::<Flow>()
}

/// The number of an entry: names a flow until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowIndex(pub(crate) u32);

/// The memory of a table.
#[derive(Debug)]
pub(crate) struct Area {
    map: Map,
    buckets: usize,
    max: usize,
    flows_at: usize,
}

impl Area {
    /// The area of a table of `max` flows; `map` has at least [`bytes`] of it.
    pub fn new(map: Map, max: usize) -> Self {
        Self { map, buckets: buckets(max), max, flows_at: flows_at(max) }
    }

    pub fn head(&self) -> &Head {
        &self.map.atomics::<Head>(0, 1)[0]
    }

    pub fn buckets(&self) -> &[Bucket] {
        self.map.atomics(PAGE, self.buckets)
    }

    /// All entries: number 1 is at index 0.
    pub fn flows(&self) -> &[Flow] {
        self.map.atomics(self.flows_at, self.max)
    }

    /// The entry of a number.
    pub fn flow(&self, number: u32) -> &Flow {
        &self.flows()[number as usize - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The sizes and offsets that clang gave the structures in `flow_table.h`.
    #[test]
    fn layout_matches_the_program() {
        assert_eq!((size_of::<Head>(), size_of::<Bucket>(), size_of::<Flow>()), (4096, 32, 128));
        let head = [offset_of!(Head, epoch), offset_of!(Head, families), offset_of!(Head, key)];
        assert_eq!(head, [4, 8, 16]);
        assert_eq!(
            [offset_of!(Flow, source), offset_of!(Flow, destination), offset_of!(Flow, ports)],
            [0, 16, 32]
        );
        let arrival = [offset_of!(Flow, interface), offset_of!(Flow, protocol), offset_of!(Flow, family)];
        assert_eq!(arrival, [36, 38, 39]);
        let state = [offset_of!(Flow, epoch), offset_of!(Flow, out), offset_of!(Flow, flags)];
        assert_eq!(state, [40, 44, 46]);
        let written = [offset_of!(Flow, ended), offset_of!(Flow, used_at), offset_of!(Flow, packets)];
        assert_eq!(written, [47, 48, 56]);
        let reply = [offset_of!(Flow, reply_low), offset_of!(Flow, reply_high), offset_of!(Flow, follows)];
        assert_eq!(reply, [52, 54, 55]);
        let action =
            [offset_of!(Flow, bytes), offset_of!(Flow, new_source), offset_of!(Flow, new_destination)];
        assert_eq!(action, [64, 72, 88]);
        let last =
            [offset_of!(Flow, new_ports), offset_of!(Flow, sum_addresses), offset_of!(Flow, sum_ports)];
        assert_eq!(last, [104, 108, 110]);
        let tcp = [offset_of!(Flow, acknowledged), offset_of!(Flow, end)];
        assert_eq!(tcp, [112, 116]);
        let connection = [offset_of!(Flow, mark), offset_of!(Flow, zone), offset_of!(Flow, checked_at)];
        assert_eq!(connection, [120, 124, 126]);
    }

    #[test]
    fn a_million_flows_fit_in_128_mib() {
        assert_eq!(bytes(1_000_000), 4096 + 5_001_216 + 128_000_000);
        assert!(bytes(1_000_000) <= 128 << 20);
        assert_eq!(bytes(1), 4096 + 4096 + 128);
    }
}
