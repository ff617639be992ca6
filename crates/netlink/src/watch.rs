//! The driver: keeps a mirror equal to the kernel, by itself.
//!
//! ```text
//! events ──► live mirror ──► changes
//!       └──► backlog ─┐
//! dump ────► fresh mirror, then the backlog ──► adopted by the live one: differences are changes too
//! ```
//!
//! Subscribing comes first, so no event is missed; a dump goes into a new mirror, and the events that arrive
//! meanwhile are applied to that too, in order, before it is used. So no state goes backwards, and events keep
//! flowing while a dump of a million routes is in progress: it is read in steps.
//!
//! A dump is made at the start, after an overrun (messages are lost then), some time after the mirror has doubts, at
//! long intervals, and on request. One thread owns a `Watch` and calls [`Watch::process`] when the descriptor is
//! readable or [`Watch::timeout`] has passed. Nothing here blocks except [`Watch::open`] and [`Watch::compare`].

mod exceptions;
mod lifetimes;
mod load;

use crate::error::Error;
use crate::link::Upper;
use crate::message::{Message, Messages};
use crate::mirror::{Change, Findings, Mirror};
use crate::socket::{self, Socket};
use crate::sysctl::SysctlFiles;
use exceptions::Exceptions;
pub(crate) use exceptions::{Sign, Signs};
use lifetimes::Lifetimes;
use load::{FreshMirror, Load, Reason};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// A message about a prefix in an advertisement, which libc does not have.
const RTM_NEWPREFIX: u16 = 52;
/// Receives of events at once, before a step of a dump and the changes get their turn.
const RECEIVES: usize = 256;
/// Bytes of events kept for a dump under way; more is treated as an overrun.
const BACKLOG_MAX: usize = 256 << 20;
/// Longest wait before a dump is tried again that overruns keep spoiling.
const BACK_OFF_MAX: Duration = Duration::from_secs(2);
/// The largest share of the time for dumps because of doubts: one part in this many.
const AUDIT_SHARE: u32 = 10;

/// How a watch behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Receive buffer for events, in bytes. The kernel grants twice as much, and counts about 750 bytes
    /// for an event of a route.
    pub receive_buffer: usize,
    /// How often the mirror is compared with the kernel; never if none.
    pub audit_every: Option<Duration>,
    /// How long after a doubt it is compared.
    pub audit_delay: Duration,
    /// How often settings are read that the kernel does not announce.
    pub sysctl_every: Duration,
    /// How many differences of a comparison are kept in full.
    pub findings_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            receive_buffer: 64 << 20,
            audit_every: Some(Duration::from_secs(600)),
            audit_delay: Duration::from_secs(1),
            sysctl_every: Duration::from_millis(200),
            findings_max: 10_000,
        }
    }
}

/// Counters of what has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Events applied.
    pub events: u64,
    /// How often the kernel lost events because the receive buffer was full.
    pub overruns: u64,
    /// Dumps adopted after those.
    pub resyncs: u64,
    /// Comparisons finished.
    pub audits: u64,
    /// Differences that they found.
    pub differences: u64,
    /// Parts of a dump that were repeated because something changed meanwhile.
    pub repeated: u64,
    /// Messages that were not well formed.
    pub malformed: u64,
    /// How often settings could not be read: their previous values stay in use.
    pub unread: u64,
    /// How long the last complete dump took.
    pub dump_time: Duration,
}

/// A finished comparison.
#[derive(Clone, Debug)]
pub struct Audit {
    /// Where mirror and kernel did not agree; they do now.
    pub findings: Findings,
    /// How long it took.
    pub took: Duration,
}

/// Keeps a mirror equal to the kernel.
#[derive(Debug)]
pub struct Watch {
    options: Options,
    events: Socket,
    dumps: Socket,
    mirror: Mirror,
    load: Option<Load>,
    /// When to dump because there is no mirror, or events were lost.
    dump_due: Option<(Instant, Reason)>,
    /// When to compare, by doubt or demand.
    audit_due: Option<Instant>,
    /// When the next regular comparison is due.
    audit_next: Option<Instant>,
    audit: Option<Audit>,
    /// Before this time, doubts are no reason to read the tables again.
    doubt_not_before: Instant,
    lifetimes: Lifetimes,
    exceptions: (Exceptions<u32>, Exceptions<u128>),
    sysctls: SysctlFiles,
    sysctl_next: Instant,
    /// Dumps made useless by overruns since the last good one.
    spoilt: u32,
    /// The last look at the events left some unread.
    more: bool,
    statistics: Statistics,
}

impl Watch {
    /// Subscribes and loads the tables of the calling thread's network namespace. The first change is
    /// [`Change::Everything`].
    pub fn open(options: Options) -> Result<Self, Error> {
        let mut events = Socket::open(options.receive_buffer)?;
        events.subscribe()?;
        let now = Instant::now();
        let mut watch = Self {
            options,
            events,
            dumps: Socket::open(4 << 20)?,
            mirror: Mirror::default(),
            load: None,
            dump_due: Some((now, Reason::Start)),
            audit_due: None,
            audit_next: options.audit_every.map(|every| now + every),
            audit: None,
            doubt_not_before: now,
            lifetimes: Lifetimes::default(),
            exceptions: (Exceptions::open(), Exceptions::open()),
            sysctls: SysctlFiles::new(),
            sysctl_next: now,
            spoilt: 0,
            more: false,
            statistics: Statistics::default(),
        };
        while watch.dump_due.is_some() || watch.load.is_some() {
            watch.wait(Duration::from_millis(50))?;
            watch.advance(Instant::now())?;
        }
        Ok(watch)
    }

    /// The tables.
    pub fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// The kernel was just asked to use this neighbor ([`crate::Batch::use_neighbor`]): if it was unknown, it is being
    /// resolved now, which no event says.
    pub fn note_resolving(&mut self, ifindex: u32, address: IpAddr) {
        self.mirror.note_resolving(ifindex, address);
    }

    /// Sets the interfaces in other namespaces on top of links, which no event tells.
    pub fn set_uppers(&mut self, uppers: BTreeMap<u32, Vec<Upper>>) {
        self.mirror.set_uppers(uppers);
    }

    /// What has happened so far.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Whether the mirror follows the kernel: no events were lost for which a dump is still due. A comparison in
    /// progress does not matter.
    pub fn in_step(&self) -> bool {
        self.dump_due.is_none() && self.load.as_ref().is_none_or(|load| load.reason == Reason::Audit)
    }

    /// Whether the mirror contains everything that was there to be read the last time.
    pub fn is_settled(&self) -> bool {
        !self.more && self.in_step()
    }

    /// When the next lifetime of a route ends. There is no message about it.
    pub fn next_end(&self) -> Option<Instant> {
        self.lifetimes.next()
    }

    /// How long the owner may sleep if no event comes; none forever.
    pub fn timeout(&self, now: Instant) -> Option<Duration> {
        let resting = self.load.as_ref().and_then(|load| load.rest_until);
        if self.more || self.load.is_some() && resting.is_none() {
            return Some(Duration::ZERO);
        }
        let dump = self.dump_due.map(|(at, _)| at).or(self.audit_due).filter(|_| self.load.is_none());
        let deadlines = [Some(self.sysctl_next), self.audit_next, dump, resting, self.lifetimes.next()];
        deadlines.into_iter().flatten().min().map(|at| at.saturating_duration_since(now))
    }

    /// Sleeps until there is something to process, or `timeout` has passed.
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        let own = self.timeout(Instant::now()).unwrap_or(timeout);
        socket::wait_until(self.events.as_fd(), Some(own.min(timeout))).map(drop)
    }

    /// Applies available events and does what is due. Returns what changed, each object once; the mirror has the new
    /// state already. Does not block; takes about 30 ms at most, at the end of a dump with a million routes about 300
    /// ms.
    pub fn process(&mut self, now: Instant) -> Result<Vec<Change>, Error> {
        self.receive(now)?;
        self.process_received(now)
    }

    /// The first half of [`Watch::process`]: receives available events, and returns whether there were any. Messages
    /// that were read are gone for everyone else who has the socket.
    pub fn receive(&mut self, now: Instant) -> Result<bool, Error> {
        let before = self.statistics;
        self.read_events(now)?;
        let after = self.statistics;
        Ok(self.more
            || (before.events, before.malformed, before.overruns)
                != (after.events, after.malformed, after.overruns))
    }

    /// The second half: does what is due, without reading events.
    pub fn process_received(&mut self, now: Instant) -> Result<Vec<Change>, Error> {
        self.run_due(now)?;
        Ok(self.mirror.take_changes())
    }

    /// Requests a comparison, which runs while events are applied. [`Watch::take_audit`] returns its result.
    pub fn request_audit(&mut self, now: Instant) {
        self.want_audit(now);
    }

    /// The last finished comparison, once.
    pub fn take_audit(&mut self) -> Option<Audit> {
        self.audit.take()
    }

    /// Compares the mirror with the kernel, and waits for the result. Differences are also corrected, and returned as
    /// changes.
    pub fn compare(&mut self) -> Result<Audit, Error> {
        // One that is in progress started before this request.
        let under_way = self.load.as_ref().is_some_and(|load| load.reason == Reason::Audit);
        let wanted = self.statistics.audits + 1 + u64::from(under_way);
        self.request_audit(Instant::now());
        while self.statistics.audits < wanted {
            self.wait(Duration::from_millis(50))?;
            self.advance(Instant::now())?;
        }
        Ok(self.audit.take().expect("a finished audit leaves its findings"))
    }

    fn advance(&mut self, now: Instant) -> Result<(), Error> {
        self.read_events(now)?;
        self.run_due(now)
    }

    fn run_due(&mut self, now: Instant) -> Result<(), Error> {
        if now >= self.sysctl_next {
            self.sysctl_next = now + self.options.sysctl_every;
            self.read_sysctls();
            self.mirror.set_exceptions(self.exceptions.0.read(now), self.exceptions.1.read(now));
        }
        let ended = self.lifetimes.expire(&mut self.mirror, now);
        if self.mirror.take_reread_request() || ended {
            self.want_audit(now.max(self.doubt_not_before));
        }
        if self.mirror.take_comparison_request() {
            self.schedule_comparison(now);
        }
        if self.audit_next.is_some_and(|at| now >= at) {
            self.audit_next = self.options.audit_every.map(|every| now + every);
            self.want_audit(now);
        }
        if self.load.is_none() {
            self.begin_load(now);
        }
        self.step_load(now)
    }

    fn read_sysctls(&mut self) {
        self.mirror.set_sysctls(self.sysctls.read());
        let links = self.mirror.links().filter(|link| !link.loopback());
        let read = self.sysctls.read_links(links.map(|link| (link.ifindex, &*link.name)));
        self.mirror.set_link_sysctls(read);
        self.statistics.unread = self.sysctls.failures();
    }

    /// A missing dump has priority over a doubt.
    fn begin_load(&mut self, now: Instant) {
        let reason = match self.dump_due {
            Some((at, reason)) => (now >= at).then_some(reason),
            None => self.audit_due.filter(|at| now >= *at).map(|_| Reason::Audit),
        };
        let Some(reason) = reason else { return };
        match reason {
            Reason::Audit => self.audit_due = None,
            _ => self.dump_due = None,
        }
        self.load = Some(Load::begin(reason, now));
    }

    fn want_audit(&mut self, at: Instant) {
        self.audit_due = Some(self.audit_due.map_or(at, |other| other.min(at)));
    }

    /// The mirror may be wrong: it is compared soon, but not again and again.
    fn schedule_comparison(&mut self, now: Instant) {
        self.want_audit((now + self.options.audit_delay).max(self.doubt_not_before));
    }

    fn read_events(&mut self, now: Instant) -> Result<(), Error> {
        self.more = false;
        let mut overrun = false;
        for turn in 0..RECEIVES {
            // After an overrun the kernel drops events until the queue is empty: read on to its end.
            match self.events.receive(false) {
                Ok(0) => break,
                Ok(count) => self.apply_events(count, now),
                Err(Error::Overrun) => overrun = true,
                Err(error) => return Err(error),
            }
            self.more = turn + 1 == RECEIVES;
        }
        if overrun || self.load.as_ref().is_some_and(|load| load.backlog.len() > BACKLOG_MAX) {
            self.overrun(now);
        }
        Ok(())
    }

    fn apply_events(&mut self, count: usize, now: Instant) {
        let (mut malformed, mut prefixes) = (false, false);
        for index in 0..count {
            let bytes = self.events.slot(index);
            if let Some(load) = &mut self.load {
                load.backlog.extend_from_slice(bytes);
            }
            for raw in Messages(bytes) {
                let kind = raw.as_ref().map_or(0, |raw| raw.kind);
                match raw.and_then(|raw| Message::read(&raw)) {
                    Ok(Some(message)) => {
                        self.statistics.events += 1;
                        if let (Message::Route6(_), Some(load)) = (&message, &mut self.load) {
                            load.disturbed = true;
                        }
                        self.mirror.apply(message);
                    }
                    // The lifetime of the prefix of an advertisement: its route is renewed without a message.
                    Ok(None) => prefixes |= kind == RTM_NEWPREFIX,
                    Err(why) => {
                        self.statistics.malformed += 1;
                        malformed = true;
                        tracing::warn!(%why, "received a malformed routing event; comparing all tables with the kernel");
                    }
                }
            }
        }
        self.lifetimes.note(self.mirror.take_lifetimes(), now);
        if prefixes {
            self.want_audit(now.max(self.doubt_not_before));
        }
        if malformed {
            // It is unknown what it would have changed.
            self.schedule_comparison(now);
        }
    }

    /// Events are lost: what was dumped so far is useless, and a new dump is needed. It is delayed more and more
    /// while this repeats, because each dump slows down those who cause the events.
    fn overrun(&mut self, now: Instant) {
        self.statistics.overruns += 1;
        // A dump that is due and not begun has lost nothing.
        let Some(spoilt) = self.load.take().map(|load| load.reason) else {
            self.dump_due.get_or_insert((now, Reason::Overrun));
            return;
        };
        if spoilt == Reason::Audit {
            self.want_audit(now);
        }
        self.spoilt += 1;
        let wait = (Duration::from_millis(25) * 2u32.pow(self.spoilt.min(8))).min(BACK_OFF_MAX);
        tracing::info!(
            ?wait,
            "routing events were lost while the tables were being read; reading them again"
        );
        let reason = if spoilt == Reason::Start { spoilt } else { Reason::Overrun };
        self.dump_due = Some((now + wait, reason));
        self.abandon_dump();
    }

    /// After an incomplete dump its rest would be in the queue of the next: a new socket has none.
    fn abandon_dump(&mut self) {
        match Socket::open(4 << 20) {
            Ok(socket) => self.dumps = socket,
            Err(error) => tracing::warn!(%error, "cannot reopen the netlink socket for dumps"),
        }
    }

    fn step_load(&mut self, now: Instant) -> Result<(), Error> {
        // All events that there are go first: they belong to the piece read last.
        if self.more {
            return Ok(());
        }
        let Some(load) = &mut self.load else { return Ok(()) };
        let step = load.step(&mut self.dumps, &mut self.statistics);
        match step.and_then(|complete| Ok(complete && load.may_finish(&mut self.dumps, now)?)) {
            Ok(false) => Ok(()),
            Ok(true) => {
                let load = self.load.take().expect("it was there above");
                self.finish(load, now);
                Ok(())
            }
            Err(error) => {
                let reason = load.reason;
                self.load = None;
                match reason {
                    // No event was lost; only the comparison is still due for those who requested it.
                    Reason::Audit => self.want_audit(now + BACK_OFF_MAX),
                    Reason::Start | Reason::Overrun => self.dump_due = Some((now + BACK_OFF_MAX, reason)),
                }
                self.abandon_dump();
                Err(error)
            }
        }
    }

    fn finish(&mut self, load: Load, now: Instant) {
        let took = load.started.elapsed();
        let reason = load.reason;
        let FreshMirror { mirror: fresh, doubtful, lifetimes } = load.finish(&self.mirror);
        self.lifetimes = lifetimes;
        self.statistics.dump_time = took;
        self.spoilt = 0;
        self.doubt_not_before = now + took * AUDIT_SHARE;
        if doubtful {
            self.want_audit(self.doubt_not_before.max(now + self.options.audit_delay));
        }
        if fresh.is_in_doubt() {
            self.want_audit(self.doubt_not_before);
        }
        if reason == Reason::Start {
            self.mirror = fresh;
            // A file that only such a kernel has.
            let known = Path::new("/proc/sys/net/ipv6/conf/all/accept_ra_rtr_pref").exists();
            self.mirror.set_router_preference(known);
            self.lifetimes.expire(&mut self.mirror, now);
            self.read_sysctls();
            self.mirror.everything_changed();
            return;
        }
        let limit = if reason == Reason::Audit { self.options.findings_max } else { 0 };
        let mut findings = Findings::up_to(limit);
        self.mirror.adopt(fresh, &mut findings);
        // What has ended is listed until Linux removes it, with a message.
        self.lifetimes.expire(&mut self.mirror, now);
        if reason == Reason::Overrun {
            self.statistics.resyncs += 1;
            tracing::info!(differences = findings.count, ?took, "the tables are complete again");
            return;
        }
        self.statistics.audits += 1;
        self.statistics.differences += findings.count as u64;
        if findings.count > 0 {
            let first = findings.list.first().map(ToString::to_string);
            tracing::warn!(
                differences = findings.count,
                first,
                "the mirror differed from the kernel's tables and was corrected"
            );
        }
        self.audit = Some(Audit { findings, took });
    }
}

impl AsFd for Watch {
    /// Readable when there are events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::net::UnixDatagram;

    const QUIET: Options = Options {
        receive_buffer: 1 << 20,
        audit_every: None,
        audit_delay: Duration::from_secs(1),
        sysctl_every: Duration::from_secs(3600),
        findings_max: 10,
    };

    /// Puts something else in the place of a socket.
    fn exchange(socket: &Socket, other: impl Into<OwnedFd>) {
        // SAFETY: both are open; the socket's number stays its own.
        assert!(unsafe { libc::dup2(other.into().as_raw_fd(), socket.as_fd().as_raw_fd()) } >= 0);
    }

    /// Lets a watch work by a clock that runs ahead by `skip`, until a comparison is finished.
    fn audited(watch: &mut Watch, skip: Duration) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(30) {
            watch.process(Instant::now() + skip).unwrap();
            if watch.take_audit().is_some() {
                return true;
            }
            if watch.load.is_none() && watch.audit_due.is_none() {
                return false;
            }
        }
        panic!("neither finished nor given up");
    }

    #[test]
    fn a_failed_comparison_is_repeated() {
        let mut watch = Watch::open(QUIET).unwrap();
        let now = Instant::now();
        watch.request_audit(now);
        exchange(&watch.dumps, std::fs::File::open("/dev/null").unwrap());
        assert!(watch.process(now).is_err());
        assert!(watch.in_step(), "no event was lost");
        assert!(audited(&mut watch, BACK_OFF_MAX));
        assert_eq!((watch.statistics.audits, watch.statistics.resyncs), (1, 0));
    }

    #[test]
    fn a_malformed_event_triggers_a_comparison() {
        let mut watch = Watch::open(QUIET).unwrap();
        let (ours, kernel) = UnixDatagram::pair().unwrap();
        exchange(&watch.events, ours);
        // An event of a link, of which there is only the header.
        let kind = libc::RTM_NEWLINK.to_ne_bytes();
        kernel.send(&[16, 0, 0, 0, kind[0], kind[1], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        let now = Instant::now();
        watch.doubt_not_before = now;
        watch.process(now).unwrap();
        assert_eq!(watch.statistics.malformed, 1);
        assert_eq!(watch.audit_due, Some(now + QUIET.audit_delay));
        assert!(audited(&mut watch, QUIET.audit_delay));
    }

    #[test]
    fn is_in_step_unless_a_dump_is_pending() {
        let mut watch = Watch::open(QUIET).unwrap();
        assert!(watch.in_step());
        let now = Instant::now();
        watch.overrun(now);
        assert!(!watch.in_step(), "due");
        watch.begin_load(now);
        assert!(!watch.in_step(), "under way");
        while watch.load.is_some() {
            watch.process(now).unwrap();
        }
        assert!(watch.in_step());
        watch.load = Some(Load::begin(Reason::Audit, now));
        assert!(watch.in_step());
    }
}
