//! Many changes at once: sorted first, so that each starts where the previous one ended.
//!
//! ```text
//! path:  0/0 - 10/8 - 10.1/16         the nodes above the last change, topmost first
//! next:  10.1.2/24  continues from 10.1/16;  11/8  continues from 0/0
//! ```
//!
//! A whole table in random order takes a cache miss at each node from the top down; in order it takes hardly any, and
//! the nodes are stored in the order in which a walk visits them.

use super::{FORK, NIL, ROOT, Rib};
use crate::memory::advise_huge;
use crate::{Change, NextHop};
use bm_wire::prefix::{Address, Prefix};

/// Fewer items than this are not worth sorting.
const SORTED_MIN: usize = 16;
/// Fewer items than this are sorted without counting them by their first bits.
const COUNTED_MIN: usize = 1 << 14;

/// The previous route of a prefix.
pub(crate) type Before<A> = (Prefix<A>, Option<NextHop>);

/// The way from the root to the last change.
struct Path(Vec<u32>);

impl Path {
    fn new() -> Self {
        Self(vec![ROOT])
    }

    /// Goes back up to the lowest node that covers `prefix`, and returns it.
    fn above<A: Address>(&mut self, rib: &Rib<A>, prefix: Prefix<A>) -> u32 {
        while let Some(at) = self.0.pop_if(|at| !rib.covers(*at, prefix)) {
            debug_assert_ne!(at, ROOT, "the root covers everything");
        }
        *self.0.last().unwrap_or(&ROOT)
    }
}

impl<A: Address> Rib<A> {
    /// Carries out `changes`, as if in their order; returns the previous route of each prefix that is now different,
    /// in order of prefix if there were many.
    pub(crate) fn apply(&mut self, changes: &[Change<A>]) -> Vec<Before<A>> {
        let changes = changes.iter().map(|change| match *change {
            Change::Set(prefix, hop) => (prefix, Some(hop)),
            Change::Remove(prefix) => (prefix, None),
        });
        if changes.len() < SORTED_MIN {
            return self.follow(changes);
        }
        let mut changes: Vec<Before<A>> = changes.collect();
        sort(&mut changes);
        // Of several changes to one prefix only the last counts.
        changes.dedup_by(|next, before| {
            let same = next.0 == before.0;
            if same {
                before.1 = next.1;
            }
            same
        });
        self.follow(changes.into_iter())
    }

    /// Reverts [`Self::apply`].
    pub(crate) fn take_back(&mut self, before: Vec<Before<A>>) {
        self.follow(before.into_iter().rev());
    }

    /// Sets or removes each, starting from where the previous one ended.
    fn follow(&mut self, changes: impl Iterator<Item = Before<A>>) -> Vec<Before<A>> {
        let (mut path, mut before) = (Path::new(), Vec::with_capacity(changes.size_hint().0));
        for (prefix, hop) in changes {
            let old = match hop {
                Some(hop) => self.insert_from(&mut path, prefix, hop),
                None => self.remove_from(&mut path, prefix),
            };
            if old != hop {
                before.push((prefix, old));
            }
        }
        before
    }

    fn insert_from(&mut self, path: &mut Path, prefix: Prefix<A>, hop: NextHop) -> Option<NextHop> {
        assert_ne!(hop.0, FORK, "no next-hop table has so many");
        let mut at = path.above(self, prefix);
        loop {
            let node = self.nodes[at as usize];
            if node.length == prefix.length() {
                self.nodes[at as usize].hop = hop.0;
                self.len += usize::from(node.hop == FORK);
                return node.route();
            }
            let side = usize::from(prefix.first().bit(node.length));
            let below = node.children[side];
            if below != NIL && self.covers(below, prefix) {
                at = below;
                path.0.push(at);
                continue;
            }
            at = self.put_above(below, prefix, hop);
            let above = path.0.last().copied().unwrap_or(ROOT);
            self.nodes[above as usize].children[side] = at;
            self.len += 1;
            path.0.push(at);
            return None;
        }
    }

    fn remove_from(&mut self, path: &mut Path, prefix: Prefix<A>) -> Option<NextHop> {
        let mut at = path.above(self, prefix);
        while self.node(at).length < prefix.length() {
            at = self.child(at, prefix.first());
            if at == NIL || !self.covers(at, prefix) {
                return None;
            }
            path.0.push(at);
        }
        let removed = self.node(at).route()?;
        self.nodes[at as usize].hop = FORK;
        self.len -= 1;
        if at != ROOT {
            // Both this node and the one above may be removed, so the path ends above them.
            path.0.pop();
            let above = path.0.last().copied().unwrap_or(ROOT);
            self.prune(at, above);
            if above != ROOT {
                path.0.pop();
                self.prune(above, path.0.last().copied().unwrap_or(ROOT));
            }
        }
        Some(removed)
    }

    /// Room for this many more routes, in huge pages if they are many.
    fn reserve(&mut self, routes: usize) {
        self.nodes.reserve(2 * routes);
        advise_huge(&self.nodes);
    }
}

impl<A: Address> Extend<(Prefix<A>, NextHop)> for Rib<A> {
    /// Routes in order are inserted as they come; from the first out of order on they are sorted.
    fn extend<I: IntoIterator<Item = (Prefix<A>, NextHop)>>(&mut self, routes: I) {
        let mut routes = routes.into_iter();
        self.reserve(routes.size_hint().0);
        let (mut path, mut last) = (Path::new(), Prefix::default());
        while let Some((prefix, hop)) = routes.next() {
            if prefix < last {
                let mut rest = Vec::with_capacity(routes.size_hint().0 + 1);
                advise_huge(&rest);
                rest.push((prefix, hop));
                rest.extend(routes);
                sort(&mut rest);
                rest.into_iter().for_each(|(prefix, hop)| _ = self.insert_from(&mut path, prefix, hop));
                return;
            }
            last = prefix;
            self.insert_from(&mut path, prefix, hop);
        }
    }
}

/// Sorts by prefix; equal prefixes stay in their order.
fn sort<A: Address, T: Copy>(items: &mut Vec<(Prefix<A>, T)>) {
    if items.len() < COUNTED_MIN {
        return items.sort_by_key(|(prefix, _)| *prefix);
    }
    // One pass by the first 16 bits, then each of these small groups by itself, in the cache.
    let head = |item: &(Prefix<A>, T)| usize::from(item.0.first().head());
    let mut starts = vec![0u32; (1 << 16) + 1];
    items.iter().for_each(|item| starts[head(item) + 1] += 1);
    (1..starts.len()).for_each(|i| starts[i] += starts[i - 1]);
    let mut next = starts.clone();
    let mut sorted = Vec::with_capacity(items.len());
    advise_huge(&sorted);
    sorted.resize(items.len(), items[0]);
    for item in items.iter() {
        let place = &mut next[head(item)];
        sorted[*place as usize] = *item;
        *place += 1;
    }
    for ends in starts.windows(2) {
        sorted[ends[0] as usize..ends[1] as usize].sort_by_key(|(prefix, _)| *prefix);
    }
    *items = sorted;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prefixes in no order, several with the same first 16 bits, many of them several times.
    fn items<A: Address>(count: usize, prefix: impl Fn(u64) -> Prefix<A>) -> Vec<(Prefix<A>, usize)> {
        let scattered = |index: usize| (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        (0..count).map(|index| (prefix(scattered(index)), index)).collect()
    }

    fn assert_sorts<A: Address>(items: &[(Prefix<A>, usize)]) {
        let mut expected = items.to_vec();
        expected.sort_by_key(|(prefix, _)| *prefix);
        assert_ne!(expected, items);
        let mut sorted = items.to_vec();
        sort(&mut sorted);
        assert!(sorted == expected, "{} items", items.len());
    }

    #[test]
    fn sorts_few_and_many_and_keeps_the_order_of_equal_prefixes() {
        for count in [COUNTED_MIN - 1, COUNTED_MIN, 3 * COUNTED_MIN] {
            // In 64 groups, the first and the last among them.
            let of = |bits: u64| {
                let group = (bits % 64) as u32 * 0xffff / 63;
                Prefix::containing(group << 16 | (bits >> 8) as u32 & 0xffff, 17 + (bits >> 32) as u8 % 8)
            };
            assert_sorts(&items(count, |bits| of(bits).expect("a length of IPv4")));
            let of = |bits: u64| Prefix::containing(u128::from(bits) << 80 | 1, 32 + (bits >> 40) as u8 % 20);
            assert_sorts(&items(count, |bits| of(bits).expect("a length of IPv6")));
        }
    }
}
