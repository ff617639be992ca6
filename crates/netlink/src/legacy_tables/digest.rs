//! Whether the tables have changed: there are no events for them.
//!
//! A digest of everything that packets do not change in them shows whether a table was replaced.

use crate::error::Error;
use bm_wire::Family;
use std::hash::{DefaultHasher, Hasher};

/// Of all tables of both families.
pub(crate) type Digest = u64;

/// Where things are in an entry.
struct Layout {
    /// How far it is to the next entry.
    next: usize,
    /// Two counters.
    counters: usize,
}

impl Layout {
    fn for_family(family: Family) -> Self {
        match family {
            Family::V4 => Self { next: 90, counters: 96 },
            Family::V6 => Self { next: 142, counters: 152 },
        }
    }
}

/// The digest of all tables in use.
pub(crate) fn digest() -> Digest {
    let mut hasher = DefaultHasher::new();
    for family in Family::BOTH {
        for name in super::names(family) {
            hasher.write(name.as_bytes());
            match super::read(family, &name) {
                Ok(read) => hash(&Layout::for_family(family), &read.entries, &mut hasher),
                // A table that was just deleted; a table that cannot be read differs from one that can.
                Err(Error::System { source, .. }) => hasher.write_i32(source.raw_os_error().unwrap_or(-1)),
                Err(_) => hasher.write_i32(-1),
            }
        }
    }
    hasher.finish()
}

/// Everything except the counters.
fn hash(layout: &Layout, mut entries: &[u8], hasher: &mut DefaultHasher) {
    let after = layout.counters + 16;
    while let Some(next) = entries.get(layout.next..layout.next + 2) {
        let length = usize::from(u16::from_ne_bytes([next[0], next[1]]));
        if length < after || length > entries.len() {
            break;
        }
        hasher.write(&entries[..layout.counters]);
        hasher.write(&entries[after..length]);
        entries = &entries[length..];
    }
    hasher.write(entries);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_counters_are_not_a_change() {
        let digest = |entries: &[u8]| {
            let mut hasher = DefaultHasher::new();
            hash(&Layout::for_family(Family::V4), entries, &mut hasher);
            hasher.finish()
        };
        let mut entries = vec![0; 2 * 152];
        for at in [0, 152] {
            entries[at + 90..at + 92].copy_from_slice(&152u16.to_ne_bytes());
        }
        let before = digest(&entries);
        entries[152 + 100] = 1;
        assert_eq!(digest(&entries), before, "a counter");
        entries[152 + 120] = 1;
        assert_ne!(digest(&entries), before, "a target");
    }
}
