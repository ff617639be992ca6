//! Puts flows into the table, and takes them out again.
//!
//! ```text
//! reports ─► checks ─► Linux keeps the connection without seeing its packets ─► table
//! rules, settings, time ────────────────────────────────────────────────────────► out of the table
//! ```
//!
//! What happens to connections, programs find out themselves: they look each up when its flow is first used, and from time to
//! time after that. So a report may be late.

mod refresh;

pub(super) use refresh::STEPS;

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use bm_conntrack::{Settings, Tuple, Update};
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
/// Timeout of a connection that is being closed, in seconds, if Linux's cannot be read.
const CLOSING_S: u32 = 10;
/// Connections that Linux is asked to change at once.
const UPDATES: usize = 256;

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
    /// When all flows ended, if packets that were then on their way may still be reported.
    settles: Option<Instant>,
    pub counts: Counts,
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
            settles: None,
            counts: Counts::default(),
        };
        learner.read_settings(Instant::now());
        learner
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
        self.settings = settings;
        self.void(EndReason::Rules, now);
    }

    /// Why no flows are learned; `None` if they are.
    pub fn why_not(&self) -> Option<&'static str> {
        match &self.settings {
            Some(Settings { acct: true, .. }) => Some(
                "net.netfilter.nf_conntrack_acct is 1, so Linux has to count the packets of each connection",
            ),
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
            // Programs find out about those that are gone.
            let _results = self.linux.update(updates);
        }
    }

    fn check(&mut self, report: &Report) -> Result<Candidate, NotLearned> {
        let Self { ruleset, filter, settings, .. } = &*self;
        let candidate = Checks { ruleset, filter, settings: settings.as_ref() }.check(report)?;
        // A packet that does not fit a connection is not tracked, but the others of its tuple are.
        if candidate.connection.is_none() && self.linux.get(&tuple_of(&candidate), 0).is_some() {
            return Err(NotLearned::State);
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

    /// Makes Linux keep connections without seeing their packets; returns those that it refuses. Also those that are
    /// known: it may have forgotten them, and begun others with the same tuples.
    fn keep(&mut self, candidates: &[Candidate]) -> HashMap<ConnectionKey, NotLearned> {
        let (mut asked, mut updates) = (HashSet::new(), Vec::new());
        for candidate in candidates {
            let Some(key) = candidate.connection else { continue };
            if asked.insert(key) {
                let liberal = key.original.protocol == TCP;
                let timeout_s = Some(candidate.timeout.as_secs() as u32);
                let ConnectionKey { original, zone } = key;
                updates.push(Update { original, zone, timeout_s, liberal, status: None });
            }
        }
        let mut refused = HashMap::new();
        for updates in updates.chunks(UPDATES) {
            for (update, result) in updates.iter().zip(self.keep_alive(updates)) {
                if let Err(why) = result {
                    refused.insert(ConnectionKey { original: update.original, zone: update.zone }, why);
                }
            }
        }
        refused
    }

    /// Sets timeouts of connections whose packets Linux does not see; the result of each, in their order.
    fn keep_alive(&mut self, updates: &[Update]) -> Vec<Result<(), NotLearned>> {
        bm_sys::heartbeat::beat();
        let results = self.linux.update(updates);
        let each = updates.iter().zip(results);
        each.map(|(update, result)| {
            result.map_err(|error| refusal(&error))?;
            if update.original.protocol == TCP { self.check_state(update) } else { Ok(()) }
        })
        .collect()
    }

    /// Gives a TCP connection the timeout of its state if it is no longer established: what closed it came before the update,
    /// which lets it last for days.
    fn check_state(&mut self, update: &Update) -> Result<(), NotLearned> {
        let connection = self.linux.get(&update.original, update.zone).ok_or(NotLearned::Gone)?;
        let Some(state) = connection.tcp_state.filter(|state| *state != ESTABLISHED) else { return Ok(()) };
        let timeout_s = self.linux.tcp_timeout_s(state).unwrap_or_else(|error| {
            tracing::warn!(%error, "a connection that closes gets a short timeout");
            CLOSING_S
        });
        // Refused if it is gone.
        let _results = self.linux.update(&[Update { timeout_s: Some(timeout_s), ..*update }]);
        Err(NotLearned::State)
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
        let Candidate { connection: key, timeout, .. } = *candidate;
        let known = key.and_then(|key| self.known.find(&key));
        let place = known.unwrap_or_else(|| self.known.add(KnownConnection::new(key, timeout, now)));
        if let Some(connection) = self.known.get_mut(place) {
            (connection.timeout, connection.refreshed, connection.used_since) = (timeout, now, false);
        }
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
}

/// The tuple of a flow whose addresses are not translated.
fn tuple_of(candidate: &Candidate) -> Tuple {
    let Key { source, destination, source_port, destination_port, protocol, .. } = candidate.key;
    Tuple { source, destination, source_port, destination_port, protocol }
}
