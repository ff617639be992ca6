//! The ruleset as a part of the kernel that is followed.

use super::Ruleset;
use super::analysis::analyse;
use super::read::{LastReading, Reading, acting_set, committed, read, read_messages};
use super::tracking;
use crate::Feature;
use crate::entries::Entries;
use crate::names::Names;
use crate::part::{Part, Unreadable};
use bm_netlink::dump;
use bm_netlink::error::Malformed;
use bm_netlink::message::Raw;
use bm_netlink::socket::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;
use std::time::Duration;

/// The ruleset.
#[derive(Debug, Default)]
pub struct Nftables {
    /// The socket for reading; opened again after a failure, so that no rest of an answer is in the way.
    socket: Option<Socket>,
    ruleset: Ruleset,
    known: LastReading,
    /// Generation that the ruleset is of.
    generation: Option<u32>,
    /// Something has changed since it was read.
    stale: bool,
}

/// How often it is asked whether tables are still there that go away with the process that made them.
const OWNERS_EVERY: Duration = Duration::from_millis(250);

impl Nftables {
    /// For a daemon that names its own tables like this.
    pub fn new(own_tables: &str) -> Self {
        Self { known: LastReading::new(own_tables), ..Self::default() }
    }

    /// A commit is complete. Without an event that matters it leaves the ruleset as it is, and only its generation is
    /// another. Returns whether the ruleset has to be read.
    fn note_generation(&mut self, committed: u32) -> bool {
        let Some(known) = self.generation.filter(|_| !self.stale) else { return self.stale };
        // The kernel counts without 0.
        let next = known.checked_add(1).unwrap_or(1);
        if committed == next {
            self.generation = Some(next);
            self.known.pass(next);
        }
        // The reading may have been of a later one than the event.
        committed.wrapping_sub(next).cast_signed() > 0
    }
}

impl Part for Nftables {
    fn feature(&self) -> Feature {
        Feature::Nftables
    }

    fn title(&self) -> &'static str {
        "the nftables ruleset"
    }

    fn read(&mut self, _: &Names) -> Result<bool, Unreadable> {
        let socket =
            self.socket.take().map_or_else(|| dump::open(NETLINK_NETFILTER), |socket| Ok(Some(socket)));
        let Some(mut socket) = socket? else { return Ok(false) };
        let reading = read(&mut socket, &mut self.known);
        if !matches!(reading, Ok(Reading::Ruleset(_) | Reading::Same)) {
            self.known.forget();
        }
        self.generation = self.known.generation();
        let reading = reading?;
        self.socket = Some(socket);
        self.stale = false;
        match reading {
            Reading::Ruleset(ruleset) => self.ruleset = *ruleset,
            Reading::Same => return Ok(false),
            Reading::Restless => return Err(Unreadable::Restless),
        }
        Ok(true)
    }

    fn poll_interval(&self) -> Option<Duration> {
        self.known.has_owners().then_some(OWNERS_EVERY)
    }

    fn note_event(&mut self, raw: &Raw<'_>) -> bool {
        if let Some(generation) = committed(raw) {
            return self.note_generation(generation);
        }
        if let Some(set) = acting_set(raw) {
            self.known.forget_set(&set);
        }
        self.stale = true;
        true
    }

    fn note_lost_events(&mut self) {
        self.known.forget();
        self.stale = true;
    }

    fn generation(&self) -> Option<u32> {
        self.generation
    }

    fn analyse(&self, names: &Names, entries: &mut Entries) {
        analyse(&self.ruleset, names, entries);
        tracking::analyse(&self.ruleset, entries);
    }
}

/// Adds the packets that the ruleset in these messages concerns: tables, then chains, then rules, as the kernel lists
/// them.
pub(crate) fn from_messages(
    messages: &[Raw<'_>],
    names: &Names,
    entries: &mut Entries,
) -> Result<(), Malformed> {
    let ruleset = read_messages(messages)?;
    analyse(&ruleset, names, entries);
    tracking::analyse(&ruleset, entries);
    Ok(())
}
