//! What requires connection tracking, and so makes the kernel reassemble fragments.

use super::attributes::{number, some};
use super::verdict::Object;
use super::{Ruleset, TableName, title};
use crate::Feature;
use crate::entries::{Entries, REASSEMBLES};
use bm_netlink::attribute::{self, Attributes};
use bm_netlink::error::Malformed;

/// Attributes.
mod nfta {
    /// Table, name, type.
    pub const OBJECT: [u16; 3] = [1, 2, 3];
}

impl TableName {
    /// Whether connections can be tracked for something in the table.
    pub(crate) fn may_track(&self) -> bool {
        let families = self.tracked();
        families.ipv4 || families.ipv6
    }
}

/// Adds the fragments of the families whose connections are tracked.
pub fn analyse(ruleset: &Ruleset, entries: &mut Entries) {
    // In order, so that the displayed reason does not change from one reading to the next.
    let mut chains: Vec<_> = ruleset.chains.iter().collect();
    chains.sort_unstable_by_key(|(name, _)| *name);
    for ((table, chain), rules) in chains {
        for (number, rule) in (1..).zip(rules) {
            let Some(what) = &rule.tracks else { continue };
            entries.add(Feature::Nftables, table.tracked().fragments(), || {
                format!(
                    "rule {number} (handle {}) of {}: {what}: {REASSEMBLES}",
                    rule.handle,
                    title(table, chain)
                )
            });
        }
    }
    let mut sets: Vec<_> = ruleset.sets.iter().filter(|(_, set)| set.elements.tracks).collect();
    sets.sort_unstable_by_key(|(name, _)| *name);
    for ((table, set), _) in sets {
        entries.add(Feature::Nftables, table.tracked().fragments(), || {
            format!("set {set} with ct count of {}: {REASSEMBLES}", table.title())
        });
    }
    for (table, what) in &ruleset.tracking {
        entries.add(Feature::Nftables, table.tracked().fragments(), || {
            format!("{what} of {}: {REASSEMBLES}", table.title())
        });
    }
}

/// Whether an object gives connections timeouts of their own.
pub(crate) fn is_timeout(list: Attributes<'_>) -> Result<bool, Malformed> {
    let [_, _, kind] = some(list, nfta::OBJECT)?;
    Ok(kind.and_then(number).map(Object::of) == Some(Object::Tracked("ct timeout")))
}

/// The table of an object for which connections are tracked, and its description.
pub(crate) fn of_object(list: Attributes<'_>) -> Result<Option<(Box<str>, String)>, Malformed> {
    let [Some(table), Some(name), kind] = some(list, nfta::OBJECT)? else { return Ok(None) };
    let what = match Object::of(kind.and_then(number).unwrap_or_default()) {
        Object::Plain(_) => return Ok(None),
        Object::Tracked(what) => what,
        Object::Unknown => "object",
    };
    Ok(Some((attribute::text(table), format!("{what} {}", attribute::text(name)))))
}
