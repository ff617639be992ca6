//! Filters as the program reads them: `bpf/rules.h` in Rust, and the maps that hold them.
//!
//! The maps exist only while there are filters. One map contains two sets of rules: the one that is not current is
//! written, then an index is flipped, so each packet is matched against either the old set or the new one.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bm_filter::{COUNTERS, Filters, Flat, ROOM_RULES, ROOM_WORDS, Rate, SOURCES};
use bm_sys::{Access, Map};
use bm_wire::ReversePath;
use bm_wire::prefix::Address;
use libbpf_rs::libbpf_sys::{self, bpf_map_create_opts};
use libbpf_rs::{MapHandle, MapType};

use crate::layout::{INTERFACES, LOCAL_BITS, LOCAL_HASH};
use crate::maps;

const DROP_UNMATCHED: u32 = 1;
const DROP_TINY: u32 = 2;
const HAS_CLAIMS: u32 = 4;
const HAS_LINUX_ONLY: u32 = 32;
const MAY_DROP: u32 = 64;
/// By family, IPv4 first.
const UNKNOWN: [u32; 2] = [8, 16];

/// `struct filter_set` without its words.
///
/// Shared with the program as a copy in the map's memory, made through a raw pointer while the program uses the other
/// set; the atomic store that switches sets is a release.
#[derive(Clone, PartialEq, Eq)]
#[repr(C)]
struct Head {
    root: u32,
    flags: u32,
    interval: u64,
    depth: u64,
    masks: [u32; 4],
    mask: u32,
    claims: u32,
    linux_only: u32,
    unused: u32,
    check: [u8; INTERFACES],
    own: [u64; LOCAL_BITS / 64],
}

const WORDS_AT: usize = size_of::<Head>();
const RULES_AT: usize = WORDS_AT + 4 * ROOM_WORDS + 8;
const SET: usize = RULES_AT + size_of::<Flat>() * ROOM_RULES;
/// The part before the sets, which says which of them is current.
const FIRST: usize = 64;

impl Head {
    fn from_filters(filters: &Filters, asked: &FilterInputs) -> Box<Self> {
        let mut head = Box::new(Self {
            root: filters.tree.root,
            flags: flag(filters.drop_unmatched, DROP_UNMATCHED)
                | flag(filters.drop_tiny_fragments, DROP_TINY)
                | flag(filters.tree.claims.is_some(), HAS_CLAIMS)
                | flag(filters.tree.linux_only.is_some(), HAS_LINUX_ONLY)
                | flag(
                    filters.may_drop() || asked.checks.iter().any(|(_, check)| *check != ReversePath::Off),
                    MAY_DROP,
                )
                | flag(asked.unknown[0], UNKNOWN[0])
                | flag(asked.unknown[1], UNKNOWN[1]),
            interval: 0,
            depth: 0,
            masks: [0; 4],
            mask: 0,
            claims: filters.tree.claims.unwrap_or_default(),
            linux_only: filters.tree.linux_only.unwrap_or_default(),
            unused: 0,
            check: [0; INTERFACES],
            own: [0; LOCAL_BITS / 64],
        });
        if let Some(rate @ Rate { lengths: [ipv4, ipv6], .. }) = filters.rate {
            (head.interval, head.depth) = rate.ticks();
            head.mask = u32::mask(ipv4.min(32));
            let mask = u128::mask(ipv6.min(128));
            head.masks = [96, 64, 32, 0].map(|shift| (mask >> shift) as u32);
        }
        for (interface, check) in &asked.checks {
            if let Some(place) = head.check.get_mut(usize::from(*interface)) {
                *place = *check as u8;
            }
        }
        for address in &asked.own {
            let words = match address {
                IpAddr::V4(address) => u128::from(u32::from(*address)),
                IpAddr::V6(address) => u128::from(*address),
            };
            let folded = [96, 64, 32, 0].iter().fold(0u32, |sum, shift| sum ^ (words >> shift) as u32);
            let hash = folded.wrapping_mul(LOCAL_HASH) >> (32 - LOCAL_BITS.ilog2());
            head.own[hash as usize / 64] |= 1 << (hash % 64);
        }
        head
    }
}

/// `flag` if it is on, and no flag otherwise.
fn flag(on: bool, flag: u32) -> u32 {
    if on { flag } else { 0 }
}

/// The parts of a configuration that filters depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilterInputs {
    pub checks: Vec<(u16, ReversePath)>,
    /// Addresses of this machine's interfaces.
    pub own: Vec<IpAddr>,
    pub unknown: [bool; 2],
}

/// The maps of a program with filters.
pub(crate) struct FilterMaps {
    pub filters: MapHandle,
    pub counts: MapHandle,
    pub sources: MapHandle,
    /// The value of `filters`.
    map: Map,
    /// What the program uses now.
    current: Option<(Arc<Filters>, FilterInputs)>,
}

impl FilterMaps {
    /// Maps for filters, empty.
    pub fn create() -> libbpf_rs::Result<Self> {
        let options = bpf_map_create_opts {
            sz: size_of::<bpf_map_create_opts>() as libbpf_sys::size_t,
            ..bpf_map_create_opts::default()
        };
        let filters = maps::create("filters", FIRST + 2 * SET)?;
        let counts =
            MapHandle::create(MapType::PercpuArray, Some("filter_counts"), 4, 8, COUNTERS as u32, &options)?;
        let sources =
            MapHandle::create(MapType::LruHash, Some("filter_sources"), 16, 8, SOURCES as u32, &options)?;
        let map = Map::file(&filters, 0, (FIRST + 2 * SET).next_multiple_of(4096), Access::ReadWrite)?;
        Ok(Self { filters, counts, sources, map, current: None })
    }

    /// The number with which the mapping begins: which set the program goes by. The program only reads it.
    fn number(&self) -> &AtomicU32 {
        &self.map.atomics(0, 1)[0]
    }

    /// Whether the program uses something else now.
    pub fn differs(&self, filters: &Arc<Filters>, asked: &FilterInputs) -> bool {
        !self
            .current
            .as_ref()
            .is_some_and(|(old, was)| (Arc::ptr_eq(old, filters) || old == filters) && was == asked)
    }

    /// Makes the program use `filters`. A grace period must have passed since the last call.
    pub fn publish(&mut self, filters: &Arc<Filters>, asked: FilterInputs) {
        let head = Head::from_filters(filters, &asked);
        let next = self.number().load(Ordering::Relaxed) & 1 ^ 1;
        let words = &filters.tree.words[..filters.tree.words.len().min(ROOM_WORDS)];
        let rules = &filters.tree.rules[..filters.tree.rules.len().min(ROOM_RULES)];
        // SAFETY: all within the mapping of two sets: `next` is 0 or 1, and the slices are cut to their rooms;
        // places are aligned as their types want, since the mapping begins a page. `&mut self` keeps other
        // writers out, and the caller the program, which has left this set a grace ago.
        unsafe {
            let set = self.map.place::<u8>(FIRST + next as usize * SET, SET);
            std::ptr::copy_nonoverlapping(&*head, set.cast().as_ptr(), 1);
            std::ptr::copy_nonoverlapping(words.as_ptr(), set.add(WORDS_AT).cast().as_ptr(), words.len());
            std::ptr::copy_nonoverlapping(rules.as_ptr(), set.add(RULES_AT).cast().as_ptr(), rules.len());
        }
        self.number().store(next, Ordering::Release);
        self.current = Some((Arc::clone(filters), asked));
    }

    /// Whether the map contains these filters, and the program uses them.
    pub fn holds(&self, filters: &Filters, asked: &FilterInputs) -> bool {
        let head = Head::from_filters(filters, asked);
        let words = &filters.tree.words[..filters.tree.words.len().min(ROOM_WORDS)];
        let rules = &filters.tree.rules[..filters.tree.rules.len().min(ROOM_RULES)];
        let current = self.number().load(Ordering::Acquire) & 1;
        // SAFETY: all within the mapping of two sets, of which `current` names one; places are aligned as their types
        // want, all bytes are values of them, and writers need `&mut self`. The program only reads.
        unsafe {
            let set = self.map.place::<u8>(FIRST + current as usize * SET, SET);
            *set.cast::<Head>().as_ref() == *head
                && std::slice::from_raw_parts(set.add(WORDS_AT).cast::<u32>().as_ptr(), words.len()) == words
                && std::slice::from_raw_parts(set.add(RULES_AT).cast::<Flat>().as_ptr(), rules.len()) == rules
        }
    }

    /// How many packets a counter has counted, over all CPUs.
    pub fn count(&self, counter: u16) -> libbpf_rs::Result<u64> {
        let count = bm_bpf::sum_counters(&self.counts, &u32::from(counter).to_ne_bytes())?;
        Ok(count.map_or(0, |[count]| count))
    }

    /// Resets a counter, for use by another rule.
    pub fn clear(&self, counter: u16) -> libbpf_rs::Result<()> {
        bm_bpf::reset_counters(&self.counts, &u32::from(counter).to_ne_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes that clang gave the structures in `rules.h`.
    #[test]
    fn layout_matches_the_program() {
        assert_eq!((WORDS_AT, RULES_AT), (56 + 1024 + 512, 1_050_176));
        assert_eq!((SET, RULES_AT % align_of::<Flat>()), (2_623_040, 0));
        assert_eq!((FIRST + SET) % align_of::<Flat>(), 0);
    }

    #[test]
    fn a_rate_becomes_an_interval_and_a_burst() {
        let rate = Some(Rate { packets: 1000, burst: 5, lengths: [24, 56] });
        let head = Head::from_filters(&Filters { rate, ..Filters::default() }, &FilterInputs::default());
        assert_eq!((head.interval, head.depth), (16_000_000, 64_000_000));
        assert_eq!((head.mask, head.masks), (0xffff_ff00, [u32::MAX, 0xffff_ff00, 0, 0]));
    }
}
