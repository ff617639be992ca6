//! How a change of the rib reaches the trees.
//!
//! ```text
//! one by one   root slot -> tree -> .. -> the window that ends behind the prefix: its keys are swept
//!              from the rib anew, spliced into the least subtree around them, and linked by one store
//! in bulk      see `bulk`
//! ```

use super::line::{CHILDREN, RANGES, Word};
use super::sweep::Window;
use super::{LOW, Link, ROOT_LENGTH, Range6, slot};
use crate::{NextHop, Shortage};
use bm_wire::prefix::Prefix;

/// This many ranges certainly fit into a tree of height LOW: leaves of a large tree have at least ten ranges before
/// those that have to be wide are split.
const PACKED_LOW: usize = RANGES / 2 * CHILDREN.pow(LOW);
/// Changes that a slot's tree always takes before it is rebuilt.
const PATIENCE_MIN: u32 = 1024;

impl Range6 {
    /// Brings the structure up to date after the route to `prefix` came, went or changed.
    pub(super) fn refresh(&mut self, prefix: Prefix<u128>) -> Result<(), Shortage> {
        if prefix.length() > ROOT_LENGTH && !self.writer.has_begun() {
            self.tend(slot(prefix.first()));
        }
        let planned =
            if prefix.length() > ROOT_LENGTH { self.plan_long(prefix) } else { self.plan_short(prefix) };
        self.finish(planned)
    }

    /// Brings one slot up to date after many of its routes changed.
    pub(super) fn refresh_slot(&mut self, slot: usize) -> Result<(), Shortage> {
        let planned = self.plan_slot(slot);
        self.finish(planned)
    }

    fn finish(&mut self, planned: Result<(), Shortage>) -> Result<(), Shortage> {
        match planned {
            Ok(()) => self.writer.carry_out(),
            Err(_) => self.writer.forget(),
        }
        planned
    }

    /// The tree of one root slot, according to the rib.
    pub(super) fn slot_tree(&mut self, slot: usize) -> Result<Word, Shortage> {
        self.patience[slot] = 0;
        self.writer.window_tree(&self.rib, Window::of_slot(slot))
    }

    /// A route that is not in the root alone.
    fn plan_long(&mut self, prefix: Prefix<u128>) -> Result<(), Shortage> {
        let slot = slot(prefix.first());
        let (mut link, mut window) = (Link::Root(slot), Window::of_slot(slot));
        let tree = self.writer.load(link);
        if !tree.is_tree() {
            let word = self.slot_tree(slot)?;
            self.writer.stores.push((link, word.0));
            return Ok(());
        }
        while window.is_past(prefix) {
            let key = *window.keys(prefix).start();
            let Some(below) = self.writer.find(self.writer.load(link), key) else { break };
            let all = window.prefix(key);
            // The key leads deeper, and still has to.
            if !self.writer.load(below).is_tree() || !self.rib.has_longer_within(all, all.length()) {
                break;
            }
            (link, window) = (below, window.behind(key));
        }
        let keys = window.keys(prefix);
        let fresh = self.writer.swept(&self.rib, window, &keys)?;
        self.writer.edit(link, window.height_min(), &keys, &fresh)
    }

    /// Counts a change of the slot. After as many as it has ranges, its tree is rebuilt, evenly filled and low.
    /// Without memory for that, it stays unchanged.
    fn tend(&mut self, slot: usize) {
        self.patience[slot] += 1;
        let tree = self.writer.load(Link::Root(slot));
        if !self.patience[slot].is_multiple_of(PATIENCE_MIN) || !tree.is_tree() {
            return;
        }
        let ranges = self.writer.collected(tree);
        // Splits may have made it higher than its ranges need.
        let is_high = tree.height() > LOW && ranges.len() < PACKED_LOW;
        if !is_high && (self.patience[slot] as usize) < ranges.len() {
            return;
        }
        self.patience[slot] = 0;
        match self.writer.tree(&ranges, LOW) {
            Ok(word) => {
                self.writer.drop_tree(tree, false);
                self.writer.stores.push((Link::Root(slot), word.0));
                self.writer.carry_out();
            }
            Err(_) => self.writer.forget(),
        }
    }

    /// A slot rebuilt as a whole.
    fn plan_slot(&mut self, slot: usize) -> Result<(), Shortage> {
        let link = Link::Root(slot);
        self.writer.drop_tree(self.writer.load(link), true);
        let word = self.slot_tree(slot)?;
        self.writer.stores.push((link, word.0));
        Ok(())
    }

    /// A route that owns whole root slots, and parts of those with longer routes.
    fn plan_short(&mut self, prefix: Prefix<u128>) -> Result<(), Shortage> {
        let hop = self.rib.get(prefix).or_else(|| self.rib.covering(prefix).map(|(_, hop)| hop));
        let hop = Word::hop(hop.unwrap_or(NextHop::NONE));
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        let mut own = |first: u128, last: u128| {
            let in_slot = (1u128 << (128 - ROOT_LENGTH)) - 1;
            let start = slot(first) + usize::from(first & in_slot != 0);
            let end = slot(last) + usize::from(last & in_slot == in_slot);
            parts.extend((slot(first) < start).then_some(slot(first)));
            parts.extend((end == slot(last) && parts.last() != Some(&end)).then_some(end));
            whole.extend(start..end);
        };
        let mut from = Some(prefix.first());
        for (longer, _) in self.rib.nearest_within(prefix) {
            if let Some(from) = from.filter(|from| *from < longer.first()) {
                own(from, longer.first() - 1);
            }
            from = longer.last().checked_add(1);
        }
        if let Some(from) = from.filter(|from| *from <= prefix.last()) {
            own(from, prefix.last());
        }
        parts.dedup();
        parts.into_iter().try_for_each(|slot| self.plan_slot(slot))?;
        for link in whole.into_iter().map(Link::Root) {
            self.writer.drop_tree(self.writer.load(link), true);
            self.writer.stores.push((link, hop.0));
        }
        Ok(())
    }
}
