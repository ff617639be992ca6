//! Changes of prefixes as routing protocols make them, and changes that undo them.

use bm_fib::{Change, NextHop};
use bm_testbed::random::{Random, Seed};
use bm_testbed::tables::Route;
use bm_wire::prefix::Prefix;
use std::collections::HashSet;

use super::contender::hop_of;
use super::family::Family;

/// Changes to a table and changes that undo them. Each prefix is changed at most once, so after both the table is as
/// before.
pub struct Churn<A: Family> {
    /// A third of them removes routes, a third gives routes another next hop, a third adds more specific prefixes.
    pub there: Vec<Change<A>>,
    /// The changes that undo them, in reverse order.
    pub back: Vec<Change<A>>,
}

impl<A: Family> Churn<A> {
    /// About `count` changes to random routes of the table.
    pub fn new(routes: &[Route<A>], next_hops: u16, count: usize, seed: Seed) -> Self {
        let (mut random, mut churn) = (Random::new(seed), Self { there: Vec::new(), back: Vec::new() });
        let mut touched = HashSet::new();
        let known: HashSet<Prefix<A>> = routes.iter().map(|route| route.prefix).collect();
        let count = count.min(routes.len());
        for turn in 0..count {
            let route = &routes[random.below(routes.len())];
            let old = hop_of(route);
            let new = NextHop(old.0 % u32::from(next_hops) + 1);
            let below = more_specific(route.prefix, &mut random).filter(|below| !known.contains(below));
            let (change, undo) = match (turn % 3, below) {
                (0, _) => (Change::Remove(route.prefix), Change::Set(route.prefix, old)),
                (1, Some(below)) => (Change::Set(below, new), Change::Remove(below)),
                _ => (Change::Set(route.prefix, new), Change::Set(route.prefix, old)),
            };
            if touched.insert(change.prefix()) {
                churn.there.push(change);
                churn.back.push(undo);
            }
        }
        churn.back.reverse();
        churn
    }
}

/// One or two bits longer, within the lengths that networks announce.
fn more_specific<A: Family>(prefix: Prefix<A>, random: &mut Random) -> Option<Prefix<A>> {
    let length = prefix.length() + 1 + random.below(2) as u8;
    let host = A::mask(prefix.length()).not();
    let within = prefix.first().or(A::any(random).and(host));
    if length > A::LONGEST { None } else { Prefix::containing(within, length) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_testbed::tables::{TableOptions, generate};
    use std::collections::BTreeMap;

    #[test]
    fn undoing_updates_restores_the_table() {
        let table = generate(&TableOptions { ipv4: 5_000, ipv6: 0, ..TableOptions::default() }).unwrap();
        let churn = Churn::new(&table.ipv4, 16, 3_000, Seed(1));
        assert!(churn.there.len() > 2_000 && churn.there.len() == churn.back.len());
        let whole: BTreeMap<_, _> = table.ipv4.iter().map(|route| (route.prefix, hop_of(route))).collect();
        let mut routes = whole.clone();
        let mut carry_out = |changes: &[Change<u32>]| {
            for change in changes {
                match *change {
                    Change::Set(prefix, hop) => routes.insert(prefix, hop),
                    Change::Remove(prefix) => routes.remove(&prefix),
                };
            }
            routes.clone()
        };
        assert_ne!(carry_out(&churn.there), whole);
        assert_eq!(carry_out(&churn.back), whole);
    }
}
