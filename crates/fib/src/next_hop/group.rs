//! How a group's buckets are shared out: sums only.
//!
//! A member owns as many buckets as its weight entitles it to (largest remainder), and keeps those that it has. When
//! members come, go or change weight, only buckets that are in excess or whose owner left get a new owner, so a flow
//! moves only if it must (a resilient group).

use super::NextHop;
use std::collections::HashMap;

/// Fewest and most buckets of a group, as log2.
const COUNT_LOG2_MIN: u32 = 8;
const COUNT_LOG2_MAX: u32 = 16;

/// A member and its weight.
pub type Member = (NextHop, u32);

/// Members with weights above 0, each once. Order is kept.
pub fn merged(members: &[Member]) -> Vec<Member> {
    let mut merged: Vec<Member> = Vec::with_capacity(members.len());
    let mut places = HashMap::new();
    for &(hop, weight) in members.iter().filter(|(_, weight)| *weight > 0) {
        let place = *places.entry(hop).or_insert(merged.len());
        match merged.get_mut(place) {
            Some((_, sum)) => *sum = sum.saturating_add(weight),
            None => merged.push((hop, weight)),
        }
    }
    merged
}

/// log2 of the fewest buckets with which every member's share is within 1 % of its weight's, or of the most that a
/// group may have.
pub(crate) fn count_log2(members: &[Member]) -> u32 {
    let total: u64 = members.iter().map(|(_, weight)| u64::from(*weight)).sum();
    for order in COUNT_LOG2_MIN..COUNT_LOG2_MAX {
        let count = 1u64 << order;
        let shares = shares(members, count, |_| 0);
        let are_close = shares.iter().zip(members).all(|(share, (_, weight))| {
            let due = u64::from(*weight) * count;
            (share * total).abs_diff(due) * 100 <= due
        });
        if are_close {
            return order;
        }
    }
    COUNT_LOG2_MAX
}

/// How many of `count` buckets each member should have: whole parts, then one each to the largest remainders; among
/// equal ones first to those that have more now, so that no bucket moves because of a tie.
fn shares(members: &[Member], count: u64, held: impl Fn(NextHop) -> u64) -> Vec<u64> {
    let total: u64 = members.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let mut shares: Vec<u64> = members.iter().map(|(_, weight)| u64::from(*weight) * count / total).collect();
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|&i| {
        let (hop, weight) = members[i];
        std::cmp::Reverse((u64::from(weight) * count % total, held(hop)))
    });
    let left = count - shares.iter().sum::<u64>();
    order.iter().take(left as usize).for_each(|&i| shares[i] += 1);
    shares
}

/// Distributes `buckets` to `members` according to their weights, moving as few as possible. Owners that are not
/// members ([`NextHop::NONE`] at first) lose theirs. Returns each change: a position and its new owner.
pub(crate) fn reassigned(buckets: &[NextHop], members: &[Member]) -> Vec<(usize, NextHop)> {
    let mut held: HashMap<NextHop, u64> = HashMap::new();
    buckets.iter().for_each(|owner| *held.entry(*owner).or_default() += 1);
    let shares = shares(members, buckets.len() as u64, |hop| held.get(&hop).copied().unwrap_or(0));
    let mut room: HashMap<NextHop, u64> =
        members.iter().zip(&shares).map(|((hop, _), share)| (*hop, *share)).collect();

    // Each owner keeps its first buckets up to its share; the rest are free.
    let free: Vec<usize> = (0..buckets.len())
        .filter(|&place| match room.get_mut(&buckets[place]) {
            Some(room) if *room > 0 => {
                *room -= 1;
                false
            }
            _ => true,
        })
        .collect();
    let takers = members.iter().flat_map(|(hop, _)| std::iter::repeat_n(*hop, room[hop] as usize));
    free.into_iter().zip(takers).collect()
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(members: &[Member]) -> Vec<NextHop> {
        let mut buckets = vec![NextHop::NONE; 1 << count_log2(members)];
        apply(&mut buckets, members);
        buckets
    }

    fn apply(buckets: &mut [NextHop], members: &[Member]) -> usize {
        let changes = reassigned(buckets, members);
        changes.iter().for_each(|&(place, hop)| buckets[place] = hop);
        changes.len()
    }

    fn count(buckets: &[NextHop], hop: NextHop) -> usize {
        buckets.iter().filter(|owner| **owner == hop).count()
    }

    #[test]
    fn equal_members_share_within_one_percent() {
        for n in 1..=128 {
            let members: Vec<Member> = (1..=n).map(|hop| (NextHop(hop), 1)).collect();
            let buckets = filled(&members);
            let due = buckets.len() as f64 / f64::from(n);
            for (hop, _) in &members {
                let share = count(&buckets, *hop) as f64;
                assert!((share - due).abs() <= due / 100.0, "{n} members: {share} of {due}");
            }
        }
    }

    #[test]
    fn two_members_need_no_more_than_the_fewest() {
        assert_eq!(count_log2(&[(NextHop(1), 1), (NextHop(2), 1)]), COUNT_LOG2_MIN);
        assert_eq!(count_log2(&[(NextHop(1), 1), (NextHop(2), 255)]), COUNT_LOG2_MIN);
    }

    #[test]
    fn a_member_that_leaves_moves_only_its_own() {
        let members = [(NextHop(1), 1), (NextHop(2), 1), (NextHop(3), 1), (NextHop(4), 1)];
        let mut buckets = filled(&members);
        let before = buckets.clone();
        let moved = apply(&mut buckets, &members[..3]);
        assert_eq!(moved, before.len() / 4);
        for (was, is) in before.iter().zip(&buckets) {
            assert!(was == is || *was == NextHop(4));
        }
        // And it gets back no more than its share, from whoever it may be.
        assert_eq!(apply(&mut buckets, &members), before.len() / 4);
    }

    #[test]
    fn merges_and_skips() {
        let members = [(NextHop(2), 1), (NextHop(1), 0), (NextHop(2), 3), (NextHop(3), 1)];
        assert_eq!(merged(&members), [(NextHop(2), 4), (NextHop(3), 1)]);
    }

    proptest! {
        /// Every change moves exactly the buckets that it must, and each member ends with its share.
        #[test]
        fn moves_no_bucket_for_nothing(
            steps in prop::collection::vec(prop::collection::vec(0u32..20, 1..12), 1..8)
        ) {
            let mut buckets = vec![NextHop::NONE; 256];
            for weights in steps {
                let members: Vec<Member> =
                    merged(&weights.iter().enumerate().map(|(i, w)| (NextHop(i as u32 + 1), *w)).collect::<Vec<_>>());
                prop_assume!(!members.is_empty());
                let before = buckets.clone();
                let moved = apply(&mut buckets, &members);
                let total: u32 = members.iter().map(|(_, w)| w).sum();
                let mut gained = 0;
                for (hop, weight) in &members {
                    let share = count(&buckets, *hop);
                    let due = f64::from(*weight) * 256.0 / f64::from(total);
                    prop_assert!((share as f64 - due).abs() < 1.0);
                    gained += share.saturating_sub(count(&before, *hop));
                }
                prop_assert_eq!(moved, gained);
            }
        }
    }
}
