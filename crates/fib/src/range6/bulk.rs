//! Many changes at once: all into the rib, then each slot with many is rebuilt as a whole.
//!
//! ```text
//! changes -> the last one of each prefix, in order -> rib, remembering what was there
//!         -> by root slot: few ? edit each : sweep the slot from the rib   } one transaction
//! ```
//!
//! If anything does not fit, tables and rib are restored, and the changes are carried out one by one instead, which
//! finds the one to be refused.

use super::line::Word;
use super::{ROOT_LENGTH, Range6, slot};
use crate::{Change, NextHop, Shortage};
use bm_wire::prefix::Prefix;

/// For fewer changes, sorting is not worthwhile.
const BULK_MIN: usize = 512;
/// The number of a slot's routes that are processed in the time of one edit.
const SWEPT: usize = 60;
/// With more edits than this, what they replace, which is kept until the end, would take megabytes.
const EDITS_MAX: usize = 2048;

/// The previous route of a prefix.
type Before = (Prefix<u128>, Option<NextHop>);

impl Range6 {
    /// Carries out all `changes`, or none; returns which.
    pub(super) fn bulk(&mut self, changes: &[Change<u128>]) -> bool {
        if changes.len() < BULK_MIN {
            return false;
        }
        if changes.iter().any(|change| matches!(change, Change::Set(_, hop) if !Word::can_name(*hop))) {
            return false;
        }
        let changes = last_of_each(changes);
        if self.are_scattered(&changes) {
            return false;
        }
        let before = self.apply_to_rib(&changes);
        self.writer.begin();
        let done = self.apply_to_trees(&before);
        match done {
            Ok(()) => self.writer.end(),
            Err(_) => {
                self.writer.withdraw();
                before.into_iter().rev().for_each(|(prefix, old)| self.put_back(prefix, old));
            }
        }
        done.is_ok()
    }

    /// Whether too many of the changes, which are sorted, are in slots with few.
    fn are_scattered(&self, changes: &[Change<u128>]) -> bool {
        let slots = changes.chunk_by(|a, b| slot(a.prefix().first()) == slot(b.prefix().first()));
        let few = slots.filter(|changes| !self.is_whole(changes[0].prefix(), changes.len()));
        few.map(<[_]>::len).sum::<usize>() > EDITS_MAX
    }

    /// Whether there are enough changes (`count`) to rebuild their slot.
    fn is_whole(&self, prefix: Prefix<u128>, count: usize) -> bool {
        let all = Prefix::containing(prefix.first(), ROOT_LENGTH).expect("16 is within 128");
        self.rib.within(all).nth(count * SWEPT).is_none()
    }

    fn apply_to_rib(&mut self, changes: &[Change<u128>]) -> Vec<Before> {
        let mut before = Vec::with_capacity(changes.len());
        for change in changes {
            let (old, new) = match *change {
                Change::Set(prefix, hop) => (self.rib.insert(prefix, hop), Some(hop)),
                Change::Remove(prefix) => (self.rib.remove(prefix), None),
            };
            if old != new {
                before.push((change.prefix(), old));
            }
        }
        before
    }

    /// Brings the trees up to date with the rib, where prefixes changed.
    fn apply_to_trees(&mut self, changed: &[Before]) -> Result<(), Shortage> {
        for changed in changed.chunk_by(|(a, _), (b, _)| slot(a.first()) == slot(b.first())) {
            let (short, long): (Vec<_>, Vec<_>) =
                changed.iter().map(|(prefix, _)| *prefix).partition(|prefix| prefix.length() <= ROOT_LENGTH);
            short.into_iter().try_for_each(|prefix| self.refresh(prefix))?;
            match long.first() {
                Some(prefix) if self.is_whole(*prefix, long.len()) => {
                    self.refresh_slot(slot(prefix.first()))?
                }
                _ => long.into_iter().try_for_each(|prefix| self.refresh(prefix))?,
            }
        }
        Ok(())
    }
}

/// The last change of each prefix, in the order of prefixes.
fn last_of_each(changes: &[Change<u128>]) -> Vec<Change<u128>> {
    let mut order: Vec<(Prefix<u128>, u32)> = changes.iter().map(Change::prefix).zip(0..).collect();
    order.sort_unstable();
    let last = order.chunk_by(|(a, _), (b, _)| a == b).filter_map(<[_]>::last);
    last.map(|(_, i)| changes[*i as usize]).collect()
}
