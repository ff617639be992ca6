//! Filters, before all other stages: rules, tiny fragments, reverse path checks, rate limits.
//!
//! ```text
//! burst -> key -> fragments -> source -> rules -> rate -> Linux only? -> on, in order and without gaps
//!                    '--------'---------'-------'          '---> slow path, to Linux
//!                              '---> for this machine? then on all the same, else a named drop
//! ```
//!
//! The kernel path does the same in crates/fastpath/bpf/filter.h, with the same tree; a test compares the two, packet
//! by packet. Without filters in the tables, this costs one test per burst.

mod counts;
mod key;
mod plain;
mod rates;
mod set;

use bm_fib::next_hop::Action;
use bm_filter::{AnyAddress, Filters, Flat, Key, UNMATCHED};

use bm_stats::Reason;
use bm_wire::{ipv4, ipv6};

use crate::compiled::{PortView, mac_key};
use crate::stages::source;
use crate::tables::{Feasible, ReversePath, Tables, Vlan};
use crate::verdict::{Refusal, Verdict};

pub(crate) use key::COMPLETE;
pub(crate) use plain::PlainFilter;

pub use counts::RuleCounts;
pub use rates::SourceRates;
pub use set::FilterSet;

/// What filters do with a frame of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterVerdict {
    /// It is dropped, with a reason.
    Drop(Reason),
    /// Only Linux may handle it.
    LinuxOnly,
}

impl From<FilterVerdict> for Refusal {
    fn from(taken: FilterVerdict) -> Self {
        match taken {
            FilterVerdict::Drop(reason) => Self::Drop(reason),
            FilterVerdict::LinuxOnly => Self::Slow(Verdict::LinuxOnly),
        }
    }
}

/// What filters do with a frame that arrived on a port, if anything; counted as by the first worker.
pub fn takes(tables: &Tables, port: usize, frame: &[u8], now_ns: u64) -> Option<FilterVerdict> {
    PortFilter::of(tables, port, 0, now_ns)?.takes(frame)
}

/// The index for an interface that only Linux knows.
const NO_INTERFACE: u16 = u16::MAX;

/// The filters of one port, as a worker uses them now.
pub(crate) struct PortFilter<'a> {
    tables: &'a Tables,
    set: &'a FilterSet,
    view: &'a PortView,
    worker: usize,
    now_ns: u64,
}

impl<'a> PortFilter<'a> {
    /// None where workers do not filter.
    pub fn of(tables: &'a Tables, port: usize, worker: usize, now_ns: u64) -> Option<Self> {
        let set = tables.filters.as_deref()?;
        let view = tables.compiled.ports.get(port).filter(|_| set.ports.get(port) == Some(&true))?;
        Some(Self { tables, set, view, worker, now_ns })
    }

    /// The port.
    pub fn view(&self) -> &'a PortView {
        self.view
    }

    /// Whether each packet may count only once, for the rate of its source.
    pub fn limits_rates(&self) -> bool {
        self.set.filters.rate.is_some()
    }

    /// What is done with a frame, if anything. Matching rules are counted.
    pub fn takes(&self, frame: &[u8]) -> Option<FilterVerdict> {
        let Some((key::FrameKey { mut key, tiny }, logical)) = self.key_of(frame) else {
            // Rules cannot be compared with what Linux may find behind these tags.
            let is_unknown = key::has_too_many_tags(frame) && self.set.may_drop();
            return is_unknown.then_some(FilterVerdict::Drop(Reason::Filter));
        };
        key.set_interface(self.view.untagged.unwrap_or(NO_INTERFACE));
        // Linux routes frames to a group MAC only if a rule makes them unicast. All others use up no rate.
        if frame[0] & 1 != 0 && self.is_for_linux(&key, logical) {
            return None;
        }
        let Some((reason, counter)) = self.verdict(&key, tiny, logical) else {
            let only = self.is_for_port(frame) && self.is_for_linux_only(key, logical);
            return only.then_some(FilterVerdict::LinuxOnly);
        };
        if self.is_for_linux(&key, logical) {
            return None;
        }
        counter.into_iter().for_each(|counter| self.set.counts.add(self.worker, counter, 1));
        Some(FilterVerdict::Drop(reason))
    }

    /// Whether only Linux may handle a frame, as far as its headers show. Nothing is counted.
    pub fn is_linux_only(&self, frame: &[u8]) -> bool {
        let key = self.key_of(frame).filter(|_| self.is_for_port(frame));
        key.is_some_and(|(frame_key, logical)| self.is_for_linux_only(frame_key.key, logical))
    }

    /// The counter of the claim for a frame that passes, where the kernel path has such (`[[claim]]`).
    pub fn claim(&self, frame: &[u8]) -> Option<u16> {
        let (key::FrameKey { mut key, .. }, logical) =
            self.key_of(frame).filter(|_| self.is_for_port(frame))?;
        key.set_interface(self.view.untagged.unwrap_or(NO_INTERFACE));
        let claim = self.set.filters.tree.find_claim(&key)?;
        (!self.is_for_linux(&key, logical)).then_some(claim.counter)
    }

    fn is_for_linux_only(&self, mut key: Key, logical: u16) -> bool {
        // Linux's rules refer to the VLAN, those of the configuration to the port.
        key.set_interface(logical);
        self.set.filters.tree.is_linux_only(&key)
    }

    /// The key of a frame for the rules, and its interface; `None` if no rule applies.
    fn key_of(&self, frame: &[u8]) -> Option<(key::FrameKey, u16)> {
        let kind = u16::from_be_bytes(*frame.get(12..)?.first_chunk()?);
        Some((key::frame_key(frame)?, self.logical(frame, kind)))
    }

    /// Whether a frame is for the port's own MAC, or tagged. Rules apply to others as well, since Linux may forward them:
    /// it also takes frames for the MACs of interfaces on the port (macvlan).
    fn is_for_port(&self, frame: &[u8]) -> bool {
        let kind = frame.get(12..).and_then(<[u8]>::first_chunk).map(|kind| u16::from_be_bytes(*kind));
        kind.is_some_and(key::is_tag) || frame.first_chunk().map(mac_key) == Some(self.view.mac)
    }

    /// The interface of a frame; an unused index if only Linux knows it.
    fn logical(&self, frame: &[u8], kind: u16) -> u16 {
        let own = self.view.untagged.unwrap_or(NO_INTERFACE);
        let tag = key::is_tag(kind).then(|| frame.get(14..)?.first_chunk::<4>().copied()).flatten();
        let Some([high, low, inner @ ..]) = tag else { return own };
        match u16::from_be_bytes([high, low]) & 0xfff {
            _ if key::is_tag(u16::from_be_bytes(inner)) => NO_INTERFACE,
            0 => own,
            id => self.view.interface_of(Vlan { protocol: kind, id }).unwrap_or(NO_INTERFACE),
        }
    }

    /// Why a packet is dropped, with the counter of the rule that drops it.
    fn verdict(&self, key: &Key, tiny: bool, logical: u16) -> Option<(Reason, Option<u16>)> {
        let Filters { tree, drop_unmatched, drop_tiny_fragments, rate } = &*self.set.filters;
        if tiny && *drop_tiny_fragments {
            return Some((Reason::TinyFragment, None));
        }
        let check = self.set.checks.get(usize::from(logical)).copied().unwrap_or_default();
        if check != ReversePath::Off && !self.comes_back(key, check, logical) {
            return Some((Reason::ReversePath, None));
        }
        let (drops, counter) = outcome(tree.find(key), *drop_unmatched);
        if drops {
            return Some((Reason::Filter, Some(counter)));
        }
        self.set.counts.add(self.worker, counter, 1);
        let (rate, rates) = rate.as_ref().zip(self.set.rates.as_deref())?;
        rates.is_over(key, rate, self.now_ns).then_some((Reason::RateLimit, None))
    }

    /// Whether the source passes the reverse path check (RFC 3704). DHCP's 0.0.0.0 and link-local sources always do.
    fn comes_back(&self, key: &Key, check: ReversePath, logical: u16) -> bool {
        let vrf = self.vrf_of(logical);
        let Some(table) = self.tables.vrfs.get(vrf) else { return true };
        if self.set.unknown[usize::from(matches!(key.source(), AnyAddress::V6(_)))] {
            return true;
        }
        let hop = match key.source() {
            AnyAddress::V4(0) | AnyAddress::V6(0) => return true,
            AnyAddress::V6(source) if ipv6::is_link_local(source) => return true,
            AnyAddress::V4(source) => table.ipv4.lookup(source),
            AnyAddress::V6(source) => table.ipv6.lookup(source),
        };
        source::passes(&self.tables.next_hops, hop, check, logical)
            || check == ReversePath::Feasible
                && self.tables.feasible.get(vrf).is_some_and(|ways| is_way(ways, key, logical))
    }

    fn vrf_of(&self, interface: u16) -> usize {
        self.tables.compiled.ingress.get(usize::from(interface)).map_or(0, |on| usize::from(on.vrf))
    }

    /// Whether a packet is for this machine or its link: Linux's own filters handle those.
    fn is_for_linux(&self, key: &Key, logical: u16) -> bool {
        let Some(table) = self.tables.vrfs.get(self.vrf_of(logical)) else { return true };
        // A route that leads to Linux may be one that Linux forwards by, or stand for routes that are not known.
        match key.destination() {
            AnyAddress::V4(address) => {
                if !may_be_one(address) {
                    return true;
                }
                let entry = self.tables.next_hops.entry(table.ipv4.lookup(address));
                entry.is_local()
                    || entry.action() == Action::Host && self.tables.compiled.local.holds(address)
            }
            AnyAddress::V6(address) => {
                if ipv6::is_multicast(address) || ipv6::is_link_local(address) {
                    return true;
                }
                let entry = self.tables.next_hops.entry(table.ipv6.lookup(address));
                entry.is_local()
                    || entry.action() == Action::Host && self.tables.local_ipv6.contains(&address.into())
            }
        }
    }
}

/// Whether a packet is dropped, and its counter.
#[inline(always)]
fn outcome(found: Option<&Flat>, drop_unmatched: bool) -> (bool, u16) {
    found.map_or((drop_unmatched, UNMATCHED), |rule| (rule.drops != 0, rule.counter))
}

/// Whether a worse route to the source's prefix leads out of the interface.
fn is_way(ways: &Feasible, key: &Key, interface: u16) -> bool {
    match key.source() {
        AnyAddress::V4(source) => ways.ipv4.1.holds(ways.ipv4.0.lookup(source), interface),
        AnyAddress::V6(source) => ways.ipv6.1.holds(ways.ipv6.0.lookup(source), interface),
    }
}

/// Whether an address may belong to one host: not 0/8, 127/8, multicast or 255/8.
fn may_be_one(address: u32) -> bool {
    !matches!(address >> 24, 0 | 127 | 255) && !ipv4::is_multicast(address)
}

#[cfg(test)]
mod tests;
