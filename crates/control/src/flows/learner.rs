//! Puts flows into the table, and takes them out again.
//!
//! ```text
//! reports ─► checks ─► Linux keeps the connection without seeing its packets ─► table
//! events of connections, rules, settings, time ─────────────────────────────────► out of the table
//! ```
//!
//! A report and an event may be read in the other order than that in which they happened. So events stay in `recent`
//! until all reports have been read that were made before them.

mod refresh;

pub(super) use refresh::STEPS;

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;
use std::io;
use std::time::{Duration, Instant};

use bm_conntrack::{Arrival, Event, EventKind, Settings, Tuple, Update, status};
use bm_fastpath::Report;
use bm_flows::{FlowIndex, Insert, Key, Table};

use super::check::{Candidate, Checks, ESTABLISHED, TCP, refusal};
use super::counts::{Counts, EndReason, NotLearned};
use super::filter::FlowFilter;
use super::known::{ConnectionKey, KnownConnection, KnownConnections};
use super::linux::{Connections, GracePeriods};
use super::ruleset::Ruleset;

/// How long packets may be on their way through Linux's hooks: those that met other rules have left by then.
const ON_THEIR_WAY: Duration = Duration::from_millis(50);
/// Connections that Linux is asked to change at once.
const UPDATES: usize = 256;
/// Reads of events between two looks at reports.
const EVENT_READS: usize = 64;

/// The table, and everything that it depends on.
pub(super) struct Learner<C, G> {
    pub linux: C,
    grace: G,
    /// Whether entries wait for the grace period that was begun last.
    frees: bool,
    pub table: Table,
    pub ruleset: Ruleset,
    filter: FlowFilter,
    /// Settings of conntrack; `None` without it.
    settings: Option<Settings>,
    pub known: KnownConnections,
    /// Which share of the connections is looked at next.
    step: usize,
    /// What was told of connections since reports were last read to the end.
    recent: HashMap<ConnectionKey, Recent>,
    without_events: WithoutEvents,
    /// When all flows ended, if packets that were then on their way may still be reported.
    settles: Option<Instant>,
    pub counts: Counts,
}

/// What was told of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    mark: u32,
    /// It is gone, or was before another one came.
    is_gone: bool,
    /// It is not established at present.
    is_closing: bool,
}

/// Connections of whose end Linux does not tell, since they began before this thread. Kept as hashes.
#[derive(Default)]
struct WithoutEvents {
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl WithoutEvents {
    fn set(&mut self, all: impl Iterator<Item = ConnectionKey>) {
        self.hashes = all.map(|key| self.hasher.hash_one(key)).collect();
    }

    fn has(&self, key: &ConnectionKey) -> bool {
        !self.hashes.is_empty() && self.hashes.contains(&self.hasher.hash_one(key))
    }

    /// Linux tells something of a connection, so it is a new one.
    fn remove(&mut self, key: &ConnectionKey) {
        if !self.hashes.is_empty() {
            self.hashes.remove(&self.hasher.hash_one(key));
        }
    }
}

impl<C: Connections, G: GracePeriods> Learner<C, G> {
    /// A learner that knows no rules yet.
    pub fn new(linux: C, grace: G, table: Table) -> Self {
        let ruleset = Ruleset::default();
        let mut learner = Self {
            linux,
            grace,
            frees: false,
            table,
            filter: FlowFilter::new(&ruleset.each_packet),
            ruleset,
            settings: None,
            known: KnownConnections::default(),
            step: 0,
            recent: HashMap::new(),
            without_events: WithoutEvents::default(),
            settles: None,
            counts: Counts::default(),
        };
        learner.read_settings(Instant::now());
        learner.list();
        learner
    }

    /// Notes the connections that began before events were subscribed to.
    fn list(&mut self) {
        match self.linux.list() {
            Ok(list) => self.without_events.set(list.iter().map(|connection| ConnectionKey {
                original: connection.original,
                zone: connection.zones[0],
            })),
            // Without conntrack there are none.
            Err(error) => tracing::debug!(%error, "cannot list connections"),
        }
    }

    /// Takes over rules and tables. If they differ from those before, all flows end.
    pub fn accept(&mut self, ruleset: Ruleset, now: Instant) {
        if self.ruleset != ruleset {
            self.filter = FlowFilter::new(&ruleset.each_packet);
            self.ruleset = ruleset;
            self.void(EndReason::Rules, now);
        }
    }

    /// Routes or addresses have changed, which rules may look up.
    pub(crate) fn routes_changed(&mut self, now: Instant) {
        if self.ruleset.looks_up_routes && !self.table.is_empty() {
            self.void(EndReason::Rules, now);
        }
    }

    /// Ends all flows. New ones are learned once nothing is on its way any more that has met what was before.
    pub fn void(&mut self, why: EndReason, now: Instant) {
        self.counts.end(why, self.table.len());
        self.table.void();
        self.known.clear();
        self.settles = Some(now);
        self.begin_grace();
    }

    fn begin_grace(&mut self) {
        self.table.mark();
        self.grace.begin();
        self.frees = true;
    }

    /// Reads settings of conntrack, which Linux does not announce.
    pub(crate) fn read_settings(&mut self, now: Instant) {
        let settings = match self.linux.settings() {
            Ok(settings) => Some(settings),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(%error, "cannot read settings of connection tracking");
                return;
            }
        };
        if self.settings == settings {
            return;
        }
        let had_events = self.settings.is_none_or(|settings| settings.events != 0);
        self.settings = settings;
        if !had_events {
            self.list();
        }
        self.void(EndReason::Rules, now);
    }

    /// Why no flows are learned; `None` if they are.
    pub fn why_not(&self) -> Option<&'static str> {
        match &self.settings {
            Some(Settings { acct: true, .. }) => Some(
                "net.netfilter.nf_conntrack_acct is 1, so Linux has to count the packets of each connection",
            ),
            Some(Settings { events: 0, .. }) => {
                Some("net.netfilter.nf_conntrack_events is 0, so Linux does not tell when connections end")
            }
            _ => self.ruleset.why_not(),
        }
    }

    /// Whether packets may use flows: of IPv4, of IPv6.
    pub fn families(&self) -> [bool; 2] {
        if self.why_not().is_some() { [false; 2] } else { self.ruleset.families }
    }

    /// Whether reports are of no use at present.
    pub(crate) fn ignores_reports(&self) -> bool {
        self.settles.is_some() || self.why_not().is_some()
    }

    /// Whether something waits for a grace period.
    pub fn waits(&self) -> bool {
        self.settles.is_some() || self.frees
    }

    /// Frees entries whose grace period has passed. Lets packets use flows again once nothing is on its way that has met
    /// other rules: call it when all reports were read.
    pub fn settle(&mut self, now: Instant) {
        if self.frees && self.grace.has_passed() {
            self.table.reuse();
            self.frees = false;
        }
        let Some(since) = self.settles else {
            if self.table.retired() > 0 && !self.frees {
                self.begin_grace();
            }
            return;
        };
        if self.frees || now.saturating_duration_since(since) < ON_THEIR_WAY {
            return;
        }
        self.settles = None;
        self.table.set_generation(self.ruleset.generation.unwrap_or_default());
        self.table.set_families(self.families());
    }

    /// Makes flows of reports, if they may be made.
    pub fn learn(&mut self, reports: &[Report], now: Instant) {
        if self.ignores_reports() {
            return;
        }
        let mut candidates = Vec::with_capacity(reports.len());
        for report in reports {
            match self.check(report) {
                Ok(candidate) => candidates.push(candidate),
                Err(why) => self.counts.refuse(why),
            }
        }
        let refused = self.keep(&candidates);
        let mut learned = HashSet::new();
        for candidate in &candidates {
            match candidate.connection.and_then(|key| refused.get(&key)) {
                Some(why) => self.counts.refuse(*why),
                None if self.insert(candidate, now) => learned.extend(candidate.connection),
                None => {}
            }
        }
        self.forget_acknowledgements(&learned);
    }

    /// Makes Linux forget what packets had acknowledged when it saw the last ones: it would compare an RST with that.
    fn forget_acknowledgements(&mut self, learned: &HashSet<ConnectionKey>) {
        let of_tcp = learned.iter().filter(|key| key.original.protocol == TCP);
        let updates: Vec<_> = of_tcp
            .map(|key| Update {
                original: key.original,
                zone: key.zone,
                timeout_s: None,
                liberal: true,
                status: None,
            })
            .collect();
        for updates in updates.chunks(UPDATES) {
            bm_sys::heartbeat::beat();
            // Of those that are gone an event tells.
            let _results = self.linux.update(updates);
        }
    }

    fn check(&mut self, report: &Report) -> Result<Candidate, NotLearned> {
        let Self { ruleset, filter, settings, .. } = &*self;
        let candidate = Checks { ruleset, filter, settings: settings.as_ref() }.check(report)?;
        match &candidate.connection {
            Some(key) if self.without_events.has(key) => return Err(NotLearned::NoEvents),
            Some(key) => {
                let recent = self.recent.get(key);
                if recent.is_some_and(|recent| {
                    recent.is_gone || recent.is_closing || recent.mark != candidate.mark
                }) {
                    return Err(NotLearned::State);
                }
            }
            // A packet that does not fit a connection is not tracked, but the others of its tuple are.
            None if self.linux.get(&tuple_of(&candidate), 0).is_some() => return Err(NotLearned::State),
            None => {}
        }
        if candidate.is_expected && self.has_helper(&candidate) {
            return Err(NotLearned::Helper);
        }
        Ok(candidate)
    }

    /// Whether a helper reads a connection that was expected because of another one.
    fn has_helper(&mut self, candidate: &Candidate) -> bool {
        let Some(key) = &candidate.connection else { return false };
        let connection = self.linux.get(&key.original, key.zone);
        connection.is_none_or(|connection| connection.has_helper)
    }

    /// Makes Linux keep connections that are not known yet without seeing their packets; returns those that it refuses.
    fn keep(&mut self, candidates: &[Candidate]) -> HashMap<ConnectionKey, NotLearned> {
        let (mut asked, mut updates) = (HashSet::new(), Vec::new());
        for candidate in candidates {
            let Some(key) = candidate.connection else { continue };
            if self.known.find(&key).is_none() && asked.insert(key) {
                let liberal = key.original.protocol == TCP;
                let timeout_s = Some(candidate.timeout.as_secs() as u32);
                let ConnectionKey { original, zone } = key;
                updates.push(Update { original, zone, timeout_s, liberal, status: None });
            }
        }
        let mut refused = HashMap::new();
        for updates in updates.chunks(UPDATES) {
            bm_sys::heartbeat::beat();
            for (update, result) in updates.iter().zip(self.linux.update(updates)) {
                if let Err(error) = result {
                    let key = ConnectionKey { original: update.original, zone: update.zone };
                    refused.insert(key, refusal(&error));
                }
            }
        }
        refused
    }

    /// Puts a flow into the table; `false` if it is there already, or finds no room.
    fn insert(&mut self, candidate: &Candidate, now: Instant) -> bool {
        let inserted = match self.table.insert(&candidate.key, &candidate.action, candidate.jiffies) {
            Insert::Inserted(index) => Some(index),
            Insert::Renewed { index, replaced } => {
                self.drop_flow(replaced, EndReason::Changed);
                Some(index)
            }
            Insert::Exists(index) => {
                self.check_owner(index, candidate);
                None
            }
            Insert::Full => {
                self.counts.full += 1;
                None
            }
        };
        if let Some(index) = inserted {
            self.counts.learned += 1;
            if let Some(acknowledged) = candidate.acknowledged {
                self.table.set_acknowledged(index, acknowledged);
            }
            self.note(candidate, index, now);
        }
        for evicted in self.table.take_evicted() {
            self.drop_flow(evicted, EndReason::Room);
        }
        inserted.is_some()
    }

    /// Notes whose flow this is.
    fn note(&mut self, candidate: &Candidate, index: FlowIndex, now: Instant) {
        let known = candidate.connection.and_then(|key| self.known.find(&key));
        let place = known.unwrap_or_else(|| {
            let Candidate { connection, mark, timeout, .. } = *candidate;
            self.known.add(KnownConnection::new(connection, mark, timeout, now))
        });
        if let Some(surplus) = self.known.add_flow(place, index, now) {
            self.table.remove(surplus);
            self.counts.end(EndReason::Room, 1);
        }
    }

    /// Removes a flow that packets of another connection have as well, as in another zone: it is not known whose they are.
    fn check_owner(&mut self, index: FlowIndex, candidate: &Candidate) {
        let place = self.known.flow(index).map(|flow| flow.place);
        let owner = place.and_then(|place| self.known.get_mut(place)).map(|connection| connection.key);
        if owner != Some(candidate.connection) {
            self.table.remove(index);
            self.drop_flow(index, EndReason::Changed);
            self.counts.refuse(NotLearned::State);
        }
    }

    /// Forgets a flow that is no longer in the table.
    fn drop_flow(&mut self, index: FlowIndex, why: EndReason) {
        if self.known.drop_flow(index) {
            self.counts.end(why, 1);
        }
    }

    /// Ends the flows of a connection.
    fn forget(&mut self, place: usize, why: EndReason) {
        let flows = self.known.remove(place);
        for index in &flows {
            self.table.remove(*index);
        }
        self.counts.end(why, flows.len());
    }

    /// To be called when all reports were learned that had come: events that were read before are not about later ones.
    pub(crate) fn all_learned(&mut self) {
        self.recent.clear();
    }

    /// Reads events of connections, and ends flows accordingly.
    pub fn read_events(&mut self, now: Instant) {
        // Only the last state counts: earlier ones may be from before a flow was learned.
        let mut told: HashMap<ConnectionKey, Recent> = HashMap::new();
        for _ in 0..EVENT_READS {
            match self.linux.events() {
                Arrival::Events(events) if events.is_empty() => break,
                Arrival::Events(events) => events.iter().for_each(|event| note_event(&mut told, event)),
                Arrival::Overrun => {
                    tracing::debug!("events of connections were lost: all flows are learned again");
                    self.void(EndReason::Lost, now);
                    break;
                }
            }
            bm_sys::heartbeat::beat();
        }
        for (key, recent) in told {
            self.without_events.remove(&key);
            let before = self.recent.insert(key, recent);
            if before.is_some_and(|before| before.is_gone) {
                self.recent.insert(key, Recent { is_gone: true, ..recent });
            }
            let Some(place) = self.known.find(&key) else { continue };
            let mark = self.known.get_mut(place).map(|connection| connection.mark);
            if recent.is_gone {
                self.forget(place, EndReason::Connection);
            } else if recent.is_closing || mark != Some(recent.mark) {
                self.forget(place, EndReason::Changed);
            }
        }
    }
}

/// Adds an event to what was told of connections before.
fn note_event(told: &mut HashMap<ConnectionKey, Recent>, event: &Event) {
    let connection = &event.connection;
    let key = ConnectionKey { original: connection.original, zone: connection.zones[0] };
    let recent = told.entry(key).or_default();
    recent.mark = connection.mark;
    recent.is_gone |= event.kind == EventKind::Destroyed || connection.status & status::DYING != 0;
    if let Some(state) = connection.tcp_state {
        recent.is_closing = state != ESTABLISHED;
    }
}

/// The tuple of a flow whose addresses are not translated.
fn tuple_of(candidate: &Candidate) -> Tuple {
    let Key { source, destination, source_port, destination_port, protocol, .. } = candidate.key;
    Tuple { source, destination, source_port, destination_port, protocol }
}
