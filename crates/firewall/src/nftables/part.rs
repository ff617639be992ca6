//! The ruleset as a part of the kernel that is followed.

use super::Ruleset;
use super::analysis::analyse;
use super::read::{LastReading, Reading, acting_set, read, read_messages};
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
}

/// How often it is asked whether tables are still there that go away with the process that made them.
const OWNERS_EVERY: Duration = Duration::from_millis(250);

impl Nftables {
    /// For a daemon that names its own tables like this.
    pub fn new(own_tables: &str) -> Self {
        Self { known: LastReading::new(own_tables), ..Self::default() }
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
        let reading = reading?;
        self.socket = Some(socket);
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

    fn note_event(&mut self, raw: &Raw<'_>) {
        if let Some(set) = acting_set(raw) {
            self.known.forget_set(&set);
        }
    }

    fn note_lost_events(&mut self) {
        self.known.forget();
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
