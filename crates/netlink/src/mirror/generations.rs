//! Distinguishes a link from an earlier one with the same index.
//!
//! A link that is deleted and created again, or moved to another namespace and back, may keep its index. Whatever was
//! attached to it (a program, a socket) must be attached again, which the link itself does not show.

use std::collections::BTreeMap;

/// When each link appeared, as a count of all that have.
#[derive(Debug, Default)]
pub(super) struct Generations {
    of: BTreeMap<u32, u64>,
    count: u64,
}

impl Generations {
    /// A link is there; it counts as new only if it was not there before.
    pub fn appeared(&mut self, ifindex: u32) {
        self.of.entry(ifindex).or_insert_with(|| {
            self.count += 1;
            self.count
        });
    }

    pub fn gone(&mut self, ifindex: u32) {
        self.of.remove(&ifindex);
    }

    /// These are the links after a comparison with the kernel.
    pub fn settle<'a>(&mut self, links: impl Iterator<Item = &'a u32> + Clone) {
        let there: std::collections::BTreeSet<u32> = links.copied().collect();
        self.of.retain(|ifindex, _| there.contains(ifindex));
        there.into_iter().for_each(|ifindex| self.appeared(ifindex));
    }

    pub fn get(&self, ifindex: u32) -> Option<u64> {
        self.of.get(&ifindex).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recreated_link_has_a_new_generation() {
        let mut generations = Generations::default();
        generations.appeared(7);
        let first = generations.get(7);
        generations.appeared(7);
        assert_eq!(generations.get(7), first, "told again, it is the same");
        generations.gone(7);
        assert_eq!(generations.get(7), None);
        generations.appeared(7);
        assert!(generations.get(7).is_some_and(|generation| Some(generation) != first));
    }

    #[test]
    fn a_comparison_keeps_known_generations() {
        let mut generations = Generations::default();
        generations.appeared(1);
        generations.appeared(2);
        let second = generations.get(2);
        generations.settle([2, 3].iter());
        assert_eq!((generations.get(1), generations.get(2)), (None, second));
        assert!(generations.get(3) > second);
    }
}
