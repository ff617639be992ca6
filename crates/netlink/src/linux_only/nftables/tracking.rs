//! What requires connection tracking, and so makes the kernel reassemble fragments.

use super::expression::{number, some};
use super::{Ruleset, TableName, title};
use crate::attribute::{self, Attributes};
use crate::error::Malformed;
use crate::linux_only::Feature;
use crate::linux_only::entries::{Entries, REASSEMBLES};

/// Attributes.
mod nfta {
    /// Table and name, then one expression and several.
    pub const SET: [u16; 4] = [1, 2, 17, 18];
    /// Table, name, type.
    pub const OBJECT: [u16; 3] = [1, 2, 3];
    pub const EXPR_NAME: u16 = 1;
}
/// The expression that counts connections.
const COUNT: &str = "connlimit";
/// Types of named objects (`NFT_OBJECT_*`) that have nothing to do with connections: counter, quota, limit, tunnel,
/// secmark.
const UNTRACKED: [u32; 5] = [1, 2, 4, 6, 8];

impl TableName {
    /// Whether connections can be tracked for something in the table.
    pub fn may_track(&self) -> bool {
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
    for (table, what) in &ruleset.tracking {
        entries.add(Feature::Nftables, table.tracked().fragments(), || {
            format!("{what} of {}: {REASSEMBLES}", table.title())
        });
    }
}

/// The table of a set that counts connections, and its description.
pub fn of_set(list: Attributes<'_>) -> Result<Option<(Box<str>, String)>, Malformed> {
    let [Some(table), Some(name), one, several] = some(list, nfta::SET)? else { return Ok(None) };
    let counts = counts_connections([one, several])?;
    Ok(counts.then(|| (attribute::text(table), format!("set {} with ct count", attribute::text(name)))))
}

/// The table of an object for which connections are tracked, and its description.
pub fn of_object(list: Attributes<'_>) -> Result<Option<(Box<str>, String)>, Malformed> {
    let [Some(table), Some(name), kind] = some(list, nfta::OBJECT)? else { return Ok(None) };
    let kind = kind.and_then(number).unwrap_or_default();
    let what = match kind {
        3 => "ct helper",
        5 => "ct count",
        7 => "ct timeout",
        9 => "ct expectation",
        10 => "synproxy",
        _ => "object",
    };
    let tracked = !UNTRACKED.contains(&kind);
    Ok(tracked.then(|| (attribute::text(table), format!("{what} {}", attribute::text(name)))))
}

/// Whether an expression, or one of several, counts connections.
pub fn counts_connections([one, several]: [Option<&[u8]>; 2]) -> Result<bool, Malformed> {
    let is_count = |expression: &[u8]| -> Result<bool, Malformed> {
        let name = Attributes::new(expression).find(nfta::EXPR_NAME)?;
        Ok(name.is_some_and(|name| &*attribute::text(name) == COUNT))
    };
    for element in Attributes::new(several.unwrap_or_default()) {
        if is_count(element?.1)? {
            return Ok(true);
        }
    }
    one.map_or(Ok(false), is_count)
}
