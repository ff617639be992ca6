//! When the lifetimes of IPv6 routes end.
//!
//! Linux stops using such a route at that moment, and removes it, with a message, up to half a minute later. It may
//! also have renewed the lifetime without a message. So shortly before that moment the prefix is put in doubt, which
//! leaves its packets to Linux, and the routes are read again.

use crate::mirror::{Lifetime, Mirror};
use bm_wire::prefix::Ipv6Prefix;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long before its end a lifetime is not relied on any more: a message may be that old when it is read.
const MARGIN: Duration = Duration::from_millis(500);

/// The first end of a lifetime for each prefix, by table.
#[derive(Debug, Default)]
pub(super) struct Lifetimes {
    ends: BTreeMap<(u32, Ipv6Prefix), Instant>,
}

impl Lifetimes {
    /// Adds lifetimes as of `now`. Of several for a prefix the shortest counts: a message is about one of its routes.
    pub fn note(&mut self, heard: Vec<Lifetime>, now: Instant) {
        for (table, prefix, hundredths) in heard {
            let left = Duration::from_millis(u64::try_from(hundredths).unwrap_or(0) * 10);
            let end = now + left.saturating_sub(MARGIN);
            self.ends.entry((table, prefix)).and_modify(|known| *known = end.min(*known)).or_insert(end);
        }
    }

    /// When the next one ends.
    pub fn next(&self) -> Option<Instant> {
        self.ends.values().min().copied()
    }

    /// Puts the prefixes of ended lifetimes in doubt; returns whether there were any.
    pub fn expire(&mut self, mirror: &mut Mirror, now: Instant) -> bool {
        let before = self.ends.len();
        self.ends.retain(|&(table, prefix), end| {
            let ended = *end <= now;
            if ended {
                mirror.doubt_prefix(table, prefix);
            }
            !ended
        });
        self.ends.len() < before
    }
}
