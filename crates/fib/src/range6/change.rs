//! How a change of the rib reaches the nodes: the least part around it is made anew and linked.
//!
//! ```text
//! root slot -> node -> node -> node      1. go down as long as one range holds the whole prefix
//!                       ^       `- 2. make the ranges of this part anew, from the rib
//!                       `- 3. one store links them; if they overflow, the parent is made anew as
//!                             well, and linked one level higher
//! ```

use super::node::{HEIGHT_MAX, Range, WIDTH, Word};
use super::sweep::Window;
use super::{ROOT_LENGTH, Range6, slot};
use crate::{Lack, NextHop};
use bm_wire::prefix::Prefix;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Changes that a slot's tree always takes before it is made anew.
const PATIENCE_MIN: u32 = 256;

/// What names a part of the table.
#[derive(Clone, Copy, Debug)]
enum Link {
    Root(usize),
    Value { node: Word, place: usize },
}

/// A part of the table: what names it, and which keys it has.
#[derive(Clone, Copy, Debug)]
struct Part {
    link: Link,
    window: Window,
    keys: (u32, u32),
    /// Whether it is all of its window, so that it may grow in height.
    whole: bool,
}

impl Part {
    /// How high a tree may be linked here.
    fn height_max(&self) -> u32 {
        match self.link {
            Link::Value { node, .. } if !self.whole => node.height() - 1,
            _ => HEIGHT_MAX,
        }
    }

    /// `top` as it is linked here.
    fn linked(&self, top: Word) -> Word {
        if self.whole && matches!(self.link, Link::Value { .. }) { top.entering() } else { top }
    }
}

/// What a change comes to, once all nodes are made.
#[derive(Debug, Default)]
struct Plan {
    stores: Vec<(Link, Word)>,
    replaced: Vec<u32>,
}

impl Range6 {
    /// Brings the structure up to date after the route to `prefix` came, went or changed.
    pub(super) fn refresh(&mut self, prefix: Prefix<u128>) -> Result<(), Lack> {
        let plan =
            if prefix.length() > ROOT_LENGTH { self.plan_long(prefix) } else { self.plan_short(prefix) };
        let plan = plan.inspect_err(|_| self.nodes.give_back())?;
        self.nodes.commit();
        plan.stores.iter().for_each(|(link, word)| self.store(*link, *word));
        self.nodes.retire(plan.replaced);
        Ok(())
    }

    /// The tree of one root slot, by the rib.
    pub(super) fn slot_tree(&mut self, slot: usize) -> Result<Word, Lack> {
        let before = self.nodes.taken();
        let word = self.nodes.window_tree(&self.rib, Window::of_slot(slot))?;
        let ranges = (self.nodes.taken() - before) * WIDTH;
        self.patience.insert(slot, PATIENCE_MIN.max(ranges as u32));
        Ok(word)
    }

    /// A route that the root alone cannot tell.
    fn plan_long(&mut self, prefix: Prefix<u128>) -> Result<Plan, Lack> {
        let slot = slot(prefix.first());
        let patience = self.patience.entry(slot).or_insert(PATIENCE_MIN);
        *patience = patience.saturating_sub(1);
        let all = Prefix::containing(prefix.first(), ROOT_LENGTH).expect("20 is within 128");
        if *patience == 0 || !self.rib.has_longer_within(all, ROOT_LENGTH) {
            return self.plan_slots([slot]);
        }
        self.plan_part(self.descend(prefix))
    }

    /// A route that owns whole root slots, and parts of those with longer routes.
    fn plan_short(&mut self, prefix: Prefix<u128>) -> Result<Plan, Lack> {
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
        let mut plan = self.plan_slots(parts)?;
        for link in whole.into_iter().map(Link::Root) {
            self.nodes.below(self.load(link), &mut plan.replaced);
            plan.stores.push((link, hop));
        }
        Ok(plan)
    }

    /// These slots made anew, each as a whole.
    fn plan_slots(&mut self, slots: impl IntoIterator<Item = usize>) -> Result<Plan, Lack> {
        let mut plan = Plan::default();
        for link in slots.into_iter().map(Link::Root) {
            let Link::Root(slot) = link else { continue };
            self.nodes.below(self.load(link), &mut plan.replaced);
            plan.stores.push((link, self.slot_tree(slot)?));
        }
        Ok(plan)
    }

    /// The parts from the root slot down to the least that holds all of `prefix`.
    fn descend(&self, prefix: Prefix<u128>) -> Vec<Part> {
        let slot = slot(prefix.first());
        let (link, window) = (Link::Root(slot), Window::of_slot(slot));
        let mut path = vec![Part { link, window, keys: (0, u32::MAX), whole: true }];
        while let Some(part) = path.last().and_then(|part| self.step(part, prefix)) {
            path.push(part);
        }
        path
    }

    /// The part below `part` that holds all of `prefix` and may be made anew on its own.
    fn step(&self, part: &Part, prefix: Prefix<u128>) -> Option<Part> {
        let node = self.load(part.link);
        if !node.is_node() {
            return None;
        }
        let (first, last) = part.window.keys(prefix);
        let (place, end) = self.nodes.place(node, first, part.keys.1);
        let (value, link) = (self.nodes.at(node).value(place), Link::Value { node, place });
        if node.height() > 0 {
            let keys = (self.nodes.at(node).start(place), end);
            return (last <= end).then_some(Part { link, window: part.window, keys, whole: false });
        }
        // In a leaf, only a key that leads deeper, and still has to, is a part of its own.
        let deeper = part.window.is_past(prefix) && value.enters();
        let key = part.window.prefix(first);
        if !deeper || !self.rib.has_longer_within(key, key.length()) {
            return None;
        }
        Some(Part { link, window: part.window.behind(first), keys: (0, u32::MAX), whole: true })
    }

    /// Makes the last part of `path` anew; as long as it comes out in pieces, its parent as well.
    fn plan_part(&mut self, mut path: Vec<Part>) -> Result<Plan, Lack> {
        let mut plan = Plan::default();
        let mut part = path.pop().expect("a path starts at the root");
        self.nodes.below(self.load(part.link), &mut plan.replaced);
        let ranges = self.nodes.swept(&self.rib, part.window, part.keys)?;
        let mut tops = self.nodes.tree(ranges, part.height_max())?;
        // A whole window may grow until it has one top, so pieces have a parent on the path.
        while let (Link::Value { node, place }, 2..) = (part.link, tops.len()) {
            part = path.pop().expect("pieces have a parent");
            let around: Vec<Range> = self.nodes.ranges(node).collect();
            let ranges = [&around[..place], &tops, &around[place + 1..]].concat();
            plan.replaced.push(node.index() as u32);
            tops = self.nodes.stacked(&ranges, node.height(), part.height_max())?;
        }
        plan.stores.push((part.link, part.linked(tops[0].1)));
        Ok(plan)
    }

    fn load(&self, link: Link) -> Word {
        match link {
            Link::Root(slot) => Word(self.fib.root[slot].load(Acquire)),
            Link::Value { node, place } => self.nodes.at(node).value(place),
        }
    }

    fn store(&self, link: Link, word: Word) {
        match link {
            Link::Root(slot) => self.fib.root[slot].store(word.0, Release),
            Link::Value { node, place } => self.nodes.link(node, place, word),
        }
    }
}
