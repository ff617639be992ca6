//! A part of the kernel that can drop, change or count routed packets, and how its settings are kept up to date.

use super::entries::Entries;
use super::names::Names;
use super::{Counters, Feature, Traffic};
use bm_netlink::error::Error;
use bm_netlink::message::Raw;
use std::fmt;
use std::time::{Duration, Instant};

/// Until something is read again that could not be read.
const RETRY: Duration = Duration::from_millis(200);
/// Longest pause between two reads of something that keeps changing.
const PAUSE_MAX: Duration = Duration::from_millis(40);
/// Shortest pause.
const PAUSE_MIN: Duration = Duration::from_millis(2);
/// The largest share of the time for reading something without events: one part in this many.
const POLL_SHARE: u32 = 20;

/// Why settings could not be read.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// The kernel or our reading of it.
    Error(Error),
    /// They changed faster than they can be read.
    Restless,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => error.fmt(f),
            Self::Restless => f.write_str("changes interrupt every attempt to read all of it"),
        }
    }
}

impl From<Error> for Unreadable {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// A part of the kernel.
pub(super) trait Part: Send + fmt::Debug {
    /// The feature of its entries if it cannot be read.
    fn feature(&self) -> Feature;

    /// Its name, as in "the nftables ruleset".
    fn title(&self) -> &'static str;

    /// How often it has to be read if there are no events for it.
    fn poll_interval(&self) -> Option<Duration> {
        None
    }

    /// An event about it has come. Returns whether it has to be read for that reason.
    fn note_event(&mut self, _: &Raw<'_>) -> bool {
        true
    }

    /// Events about it may have been lost.
    fn note_lost_events(&mut self) {}

    /// Reads its settings again. Returns whether they may have changed.
    fn read(&mut self, names: &Names) -> Result<bool, Unreadable>;

    /// Which generation of its settings was read, if it counts them.
    fn generation(&self) -> Option<u32> {
        None
    }

    /// Adds the packets that it concerns.
    fn analyse(&self, names: &Names, entries: &mut Entries);
}

/// A part, and when it is read next.
#[derive(Debug)]
pub(super) struct Slot {
    part: Box<dyn Part>,
    /// When to read it next, if needed.
    due: Option<Instant>,
    /// The earliest time for that, so that something that keeps changing leaves time for the rest.
    not_before: Instant,
    /// Why it could not be read the last time.
    trouble: Option<String>,
}

impl Slot {
    /// A part that has not been read yet.
    pub fn new(part: Box<dyn Part>, now: Instant) -> Self {
        Self { part, due: Some(now), not_before: now, trouble: None }
    }

    /// Schedules it to be read as soon as possible.
    pub fn want(&mut self, now: Instant) {
        let at = now.max(self.not_before);
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Schedules it because of an event, if the event makes that necessary; none if it cannot be parsed. Returns whether
    /// it does.
    pub(crate) fn want_after(&mut self, event: Option<&Raw<'_>>, now: Instant) -> bool {
        let matters = match event {
            Some(event) => self.part.note_event(event),
            None => {
                self.part.note_lost_events();
                true
            }
        };
        if matters {
            self.want(now);
        }
        matters
    }

    /// Which generation of its settings was read, if it counts them and they could be read.
    pub(crate) fn generation(&self) -> Option<u32> {
        self.part.generation().filter(|_| self.trouble.is_none())
    }

    /// When it is read next.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Reads it if it is due. Returns whether its content may have changed, and how long it took.
    pub(crate) fn read_if_due(&mut self, now: Instant, names: &Names) -> Option<(bool, Duration)> {
        self.due.filter(|&due| due <= now)?;
        let started = Instant::now();
        let read = self.part.read(names);
        let took = started.elapsed();
        self.not_before = now + took + took.clamp(PAUSE_MIN, PAUSE_MAX);
        self.due = self.part.poll_interval().map(|every| now + every.max(took * POLL_SHARE));
        let (changed, trouble) = match read {
            Ok(changed) => (changed || self.trouble.is_some(), None),
            Err(trouble) => (true, Some(trouble.to_string())),
        };
        if trouble.is_some() {
            self.due = Some(now + took + RETRY);
        }
        match (&trouble, &self.trouble) {
            (Some(why), before) if before.as_ref() != Some(why) => {
                let what = self.part.title();
                tracing::error!(%why, "{what} cannot be read, so Linux handles all packets");
            }
            (None, Some(_)) => tracing::info!("{} can be read again", self.part.title()),
            _ => {}
        }
        self.trouble = trouble;
        Some((changed, took))
    }

    /// The packets that it concerns: all if it could not be read.
    pub fn analyse(&self, names: &Names, counters: Counters) -> Entries {
        let mut entries = Entries::new(counters);
        match &self.trouble {
            Some(why) => {
                let title = self.part.title();
                let all = Traffic::All { ipv4: true, ipv6: true };
                entries.add(self.part.feature(), all, || format!("{title} cannot be read: {why}"));
            }
            None => self.part.analyse(names, &mut entries),
        }
        entries
    }
}
