//! Keeps the list equal to the kernel's settings.
//!
//! ```text
//! events of nftables, XFRM, tc, links ─► what changed is due ─► read again, whole ─► analysed ─► the list
//! what has no events ───────────────────► due at intervals ─┘
//! ```
//!
//! Events only say that something has changed. The part that they are about is then read completely, immediately
//! after the first of them, and with pauses between further ones. Lost events do no harm: everything is read again. A
//! part that cannot be read may contain anything, so all packets go to Linux until it can.
//!
//! One thread owns a `LinuxOnlyWatch` and calls [`LinuxOnlyWatch::process`] when one of the descriptors is readable
//! or [`LinuxOnlyWatch::timeout`] has passed. Reading a large ruleset takes tens of milliseconds, so it should not be
//! a thread that also follows routes.

use super::bpf::{AtNetfilter, OnInterfaces};
use super::entries::{bounded, without_needless_fragments};
use super::hooks::{Hooks, Ipvs};
use super::legacy::Legacy;
use super::names::Names;
use super::nftables::{self, Nftables};
use super::part::{Part, Slot};
use super::tc::{self, Tc};
use super::xfrm::{self, AppliedPolicies, Xfrm};
use super::{Counters, Feature, LinuxOnly, Repeats, RulesetFacts, Traffic};
use bm_netlink::dump;
use bm_netlink::error::Error;
use bm_netlink::link::Link;
use bm_netlink::message::{Message, Messages, Raw};
use bm_netlink::nft::OURS;
use bm_netlink::socket::Socket;
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE, NETLINK_XFRM};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Receives of events at once.
const RECEIVES: usize = 256;
/// Until the links are read again that could not be read.
const RETRY: Duration = Duration::from_millis(200);

/// How the follower behaves.
#[derive(Clone, Debug)]
pub struct LinuxOnlyOptions {
    /// Receive buffer for each kind of events, in bytes.
    pub receive_buffer: usize,
    /// Name of the nftables tables whose rules brickmoon has written: what they drop, its filters drop as well.
    pub own_tables: Box<str>,
    /// IPsec policies that need no help of Linux; see [`LinuxOnlyWatch::set_applied`].
    pub applied: AppliedPolicies,
    /// Whether nftables' counters have to be right.
    pub counters: Counters,
}

impl Default for LinuxOnlyOptions {
    fn default() -> Self {
        Self {
            receive_buffer: 4 << 20,
            own_tables: OURS.into(),
            applied: AppliedPolicies::default(),
            counters: Counters::default(),
        }
    }
}

/// Counters of what has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinuxOnlyStatistics {
    /// Messages about something that matters.
    pub events: u64,
    /// How often the kernel lost messages because the receive buffer was full.
    pub overruns: u64,
    /// Times that the settings of some part of the kernel were read.
    pub reads: u64,
    /// Times that the list has changed.
    pub changes: u64,
    /// The longest time for reading one part.
    pub longest_read: Duration,
}

/// Which parts are read after which events.
mod slot {
    pub(crate) const NFTABLES: usize = 0;
    pub const XFRM: usize = 1;
    pub const TC: usize = 2;
}

/// All parts, with those that have events at the positions in [`slot`].
fn slots(options: &LinuxOnlyOptions, now: Instant) -> Vec<Slot> {
    let parts: [Box<dyn Part>; 8] = [
        Box::new(Nftables::new(&options.own_tables)),
        Box::new(Xfrm::new(options.applied.clone())),
        Box::<Tc>::default(),
        Box::<Legacy>::default(),
        Box::<OnInterfaces>::default(),
        Box::<AtNetfilter>::default(),
        Box::<Hooks>::default(),
        Box::<Ipvs>::default(),
    ];
    parts.into_iter().map(|part| Slot::new(part, now)).collect()
}

/// A socket for events, and the part that they concern.
#[derive(Debug)]
struct Events {
    socket: Socket,
    concerns: fn(&Raw<'_>) -> bool,
    slot: Option<usize>,
}

/// Keeps the list of what is left to Linux.
#[derive(Debug)]
pub struct LinuxOnlyWatch {
    options: LinuxOnlyOptions,
    events: Vec<Events>,
    names: Names,
    /// When the links have to be listed again.
    links_due: Option<Instant>,
    /// Why they could not be listed.
    links_trouble: Option<String>,
    slots: Vec<Slot>,
    list: Vec<LinuxOnly>,
    facts: RulesetFacts,
    more: bool,
    statistics: LinuxOnlyStatistics,
}

impl LinuxOnlyWatch {
    /// Subscribes, and reads everything for the calling thread's network namespace.
    ///
    /// # Errors
    /// If the kernel refuses sockets for events.
    pub fn open(options: LinuxOnlyOptions) -> Result<Self, Error> {
        let now = Instant::now();
        let slots = slots(&options, now);
        let mut watch = Self {
            options,
            events: Vec::new(),
            names: Names::default(),
            links_due: Some(now),
            links_trouble: None,
            slots,
            list: Vec::new(),
            facts: RulesetFacts::default(),
            more: false,
            statistics: LinuxOnlyStatistics::default(),
        };
        watch.subscribe(NETLINK_ROUTE, &[libc::RTNLGRP_LINK], None, |_| false)?;
        watch.subscribe(NETLINK_NETFILTER, &[nftables::GROUP], Some(slot::NFTABLES), nftables::is_event)?;
        watch.subscribe(NETLINK_XFRM, &xfrm::GROUPS, Some(slot::XFRM), xfrm::is_event)?;
        watch.subscribe(NETLINK_ROUTE, &[libc::RTNLGRP_TC], Some(slot::TC), tc::is_event)?;
        watch.process(now);
        Ok(watch)
    }

    fn subscribe(
        &mut self,
        protocol: isize,
        groups: &[u32],
        slot: Option<usize>,
        concerns: fn(&Raw<'_>) -> bool,
    ) -> Result<(), Error> {
        let socket = dump::subscribe(protocol, groups, self.options.receive_buffer)?;
        self.events.extend(socket.map(|socket| Events { socket, concerns, slot }));
        Ok(())
    }

    /// What is left to Linux, and the reasons.
    pub fn list(&self) -> &[LinuxOnly] {
        &self.list
    }

    /// What flows depend on besides the list.
    pub fn facts(&self) -> &RulesetFacts {
        &self.facts
    }

    /// Counters of what has happened so far.
    pub fn statistics(&self) -> &LinuxOnlyStatistics {
        &self.statistics
    }

    /// Descriptors that become readable when there is something to process.
    pub fn as_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.events.iter().map(|events| events.socket.as_fd())
    }

    /// How long the owner may sleep if no event comes; none forever.
    pub fn timeout(&self, now: Instant) -> Option<Duration> {
        if self.more {
            return Some(Duration::ZERO);
        }
        let due = self.slots.iter().filter_map(Slot::due).chain(self.links_due).min();
        due.map(|due| due.saturating_duration_since(now))
    }

    /// Receives available events and reads what is due. Returns whether the list or the facts have changed.
    pub fn process(&mut self, now: Instant) -> bool {
        self.more = false;
        let mut changed = false;
        for index in 0..self.events.len() {
            changed |= self.read_events(index, now);
        }
        changed |= self.read_links(now);
        if changed {
            // The qdiscs of a deleted link disappear without events.
            self.slots[slot::TC].want(now);
        }
        for slot in &mut self.slots {
            let Some((differs, took)) = slot.read_if_due(now, &self.names) else { continue };
            self.statistics.reads += 1;
            self.statistics.longest_read = self.statistics.longest_read.max(took);
            changed |= differs;
        }
        let analysed = changed && self.analyse();
        let generation = self.slots[slot::NFTABLES].generation();
        let passed = std::mem::replace(&mut self.facts.generation, generation) != generation;
        analysed || passed
    }

    /// Sets whether nftables' counters have to be right. Returns whether the list or the facts have changed.
    pub fn set_counters(&mut self, counters: Counters) -> bool {
        let before = std::mem::replace(&mut self.options.counters, counters);
        before != counters && self.analyse()
    }

    /// Sets the IPsec policies of the kernel that brickmoon applies itself, by their indexes. Returns whether the list has
    /// changed.
    pub fn set_applied(&mut self, indexes: BTreeSet<u32>) -> bool {
        self.options.applied.set(indexes) && self.analyse()
    }

    /// Compares the list with a new one; returns a sentence for each difference.
    ///
    /// # Errors
    /// If the kernel refuses sockets.
    pub fn audit(&mut self) -> Result<Vec<String>, Error> {
        self.process(Instant::now());
        let before = self.list.clone();
        let fresh = Self::open(self.options.clone())?;
        self.process(Instant::now());
        // Changes in the meantime are in one of the two.
        let gone = self.list.iter().filter(|entry| before.contains(entry) && !fresh.list.contains(entry));
        let gone =
            gone.map(|entry| format!("{} is listed but no longer present: {}", entry.feature, entry.why));
        let new = fresh.list.iter().filter(|entry| !before.contains(entry) && !self.list.contains(entry));
        let new = new.map(|entry| format!("{} is present but not listed: {}", entry.feature, entry.why));
        Ok(gone.chain(new).collect())
    }

    /// Makes the list from what was read. Returns whether it or the facts have changed.
    fn analyse(&mut self) -> bool {
        let mut list: Vec<LinuxOnly> = Vec::new();
        let mut facts = RulesetFacts::default();
        if let Some(why) = &self.links_trouble {
            let why = format!("the interfaces cannot be listed: {why}");
            let traffic = Traffic::All { ipv4: true, ipv6: true };
            list.push(LinuxOnly { feature: Feature::Nftables, traffic, repeats: Repeats::EachPacket, why });
        }
        for slot in &self.slots {
            let entries = slot.analyse(&self.names, self.options.counters);
            facts = entries.facts.unwrap_or(facts);
            list.extend(entries.finish());
        }
        facts.generation = self.facts.generation;
        let list = without_needless_fragments(bounded(list));
        let changed = self.list != list;
        self.list = list;
        self.statistics.changes += u64::from(changed);
        std::mem::replace(&mut self.facts, facts) != facts || changed
    }

    /// Reads events of one socket. Returns whether the interfaces have changed.
    fn read_events(&mut self, index: usize, now: Instant) -> bool {
        let mut changed = false;
        for turn in 0..RECEIVES {
            match self.events[index].socket.receive(false) {
                Ok(0) => break,
                Ok(count) => changed |= self.apply_events(index, count, now),
                Err(error) => self.lost_events(&error, now),
            }
            self.more |= turn + 1 == RECEIVES;
        }
        changed
    }

    fn apply_events(&mut self, index: usize, count: usize, now: Instant) -> bool {
        let events = &mut self.events[index];
        let mut changed = false;
        for slot in 0..count {
            for raw in Messages(events.socket.slot(slot)) {
                // An event that cannot be parsed is treated as one about this part.
                let concerns = raw.as_ref().map_or(true, events.concerns);
                if let (true, Some(slot)) = (concerns, events.slot) {
                    let matters = self.slots[slot].want_after(raw.as_ref().ok(), now);
                    self.statistics.events += u64::from(matters);
                }
                match (events.slot, raw.and_then(|raw| Message::read(&raw))) {
                    (None, Ok(Some(message))) => changed |= self.names.apply(message),
                    (None, Err(_)) => self.links_due = Some(now),
                    _ => {}
                }
            }
        }
        changed
    }

    /// Messages are lost: everything that has events is read again.
    fn lost_events(&mut self, error: &Error, now: Instant) {
        if !matches!(error, Error::Overrun) {
            tracing::error!(%error, "cannot receive events from the kernel; reading its settings again");
        }
        self.statistics.overruns += 1;
        self.links_due = Some(now);
        for slot in &mut self.slots {
            slot.want_after(None, now);
        }
    }

    /// Lists the links if that is due. Returns whether they may have changed.
    fn read_links(&mut self, now: Instant) -> bool {
        if self.links_due.is_none_or(|due| due > now) {
            return false;
        }
        let (due, trouble) = match list_links() {
            Ok(names) => {
                self.names = names;
                (None, None)
            }
            Err(error) => {
                tracing::error!(%error, "the interfaces cannot be listed, so Linux handles all packets");
                (Some(now + RETRY), Some(error.to_string()))
            }
        };
        (self.links_due, self.links_trouble) = (due, trouble);
        true
    }
}

/// Lists the links. Events that arrive meanwhile are applied afterwards, and say the same or something newer.
fn list_links() -> Result<Names, Error> {
    let mut names = Names::default();
    for link in Link::list()? {
        names.apply(Message::Link(link));
    }
    Ok(names)
}
