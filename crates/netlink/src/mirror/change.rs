//! The mirror's messages to its reader: which objects to read again.

use super::BodyId;
use bm_wire::Family;
use bm_wire::prefix::{Ipv4Prefix, Ipv6Prefix};
use std::net::IpAddr;

/// An object that was added, removed or changed. It only identifies the object; the mirror has its current state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// Anything may be different: read the whole mirror. Comes first, and alone.
    Everything,
    /// A link, by its number.
    Link(u32),
    /// The addresses of a link.
    Addresses(u32),
    /// Settings of a link (or of all) for a family.
    Netconf(Family, i32),
    /// Settings that are the same for all links.
    Sysctls,
    /// The rules of a family.
    Rules(Family),
    Neighbor(u32, IpAddr),
    /// A next-hop object, or a group with that object in it.
    NextHop(u32),
    /// A body: its hops have appeared or disappeared with their links, or its ID now means another body or none.
    /// Routes that keep such a body have no change of their own.
    Body(Family, BodyId),
    /// The routes to an IPv4 prefix.
    Route4 {
        table: u32,
        /// Destination.
        prefix: Ipv4Prefix,
    },
    /// The routes to an IPv6 prefix.
    Route6 {
        table: u32,
        /// Destination.
        prefix: Ipv6Prefix,
    },
}

/// Collects changes until they are taken, each once.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    list: Vec<Change>,
    /// Length at which duplicates are next removed, so that a reader that never comes costs no memory beyond one
    /// change for each existing object.
    squeeze_at: usize,
    everything: bool,
}

impl Changes {
    const SQUEEZE_MIN: usize = 65_536;

    #[inline]
    pub fn push(&mut self, change: Change) {
        if self.everything {
            return;
        }
        if self.list.len() >= self.squeeze_at.max(Self::SQUEEZE_MIN) {
            self.compact();
            self.squeeze_at = self.list.len() * 2;
        }
        self.list.push(change);
    }

    pub fn everything(&mut self) {
        self.list = Vec::new();
        self.everything = true;
    }

    pub fn take(&mut self) -> Vec<Change> {
        self.squeeze_at = 0;
        if std::mem::take(&mut self.everything) {
            return vec![Change::Everything];
        }
        self.compact();
        std::mem::take(&mut self.list)
    }

    fn compact(&mut self) {
        self.list.sort_unstable();
        self.list.dedup();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_each_changed_object_once() {
        let mut changes = Changes::default();
        for round in 0..1_000_000u32 {
            changes.push(Change::Link(round % 7));
        }
        assert!(changes.list.capacity() < 4 * Changes::SQUEEZE_MIN);
        assert_eq!(changes.take(), (0..7).map(Change::Link).collect::<Vec<_>>());
        assert_eq!(changes.take(), []);
        changes.everything();
        changes.push(Change::Sysctls);
        assert_eq!(changes.take(), [Change::Everything]);
    }
}
