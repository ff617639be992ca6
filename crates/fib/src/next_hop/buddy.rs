//! Ranges whose lengths are powers of two, within one row: split on demand, merged when both halves are free. Only
//! the writer of next hops uses it; it never accesses the row itself.

use std::collections::BTreeSet;

/// Which parts of the row are in use.
#[derive(Debug)]
pub(crate) struct Buddy {
    /// Starts of free ranges by the log2 of their length.
    free: Vec<BTreeSet<u32>>,
}

impl Buddy {
    /// A free row of `1 << length_log2`.
    pub fn new(length_log2: u32) -> Self {
        let mut free = vec![BTreeSet::new(); length_log2 as usize + 1];
        free[length_log2 as usize].insert(0);
        Self { free }
    }

    /// Takes a range of `1 << order`, the lowest that fits.
    pub fn take(&mut self, order: u32) -> Option<u32> {
        let orders = order as usize..self.free.len();
        let mut from = orders.clone().find(|&order| !self.free[order].is_empty())?;
        let start = self.free[from].pop_first()?;
        while from > order as usize {
            from -= 1;
            self.free[from].insert(start + (1 << from));
        }
        Some(start)
    }

    /// Frees what `take` returned.
    pub fn give(&mut self, mut start: u32, order: u32) {
        let mut order = order as usize;
        while order + 1 < self.free.len() && self.free[order].remove(&(start ^ 1 << order)) {
            start &= !(1 << order);
            order += 1;
        }
        let fresh = self.free[order].insert(start);
        debug_assert!(fresh, "range {start} of 2^{order} was free already");
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn splits_and_joins() {
        let mut row = Buddy::new(4);
        let (a, b, c) = (row.take(2).unwrap(), row.take(0).unwrap(), row.take(3).unwrap());
        assert_eq!((a, b, c), (0, 4, 8));
        assert_eq!(row.take(2), None);
        row.give(b, 0);
        assert_eq!(row.take(2), Some(4));
        row.give(4, 2);
        row.give(c, 3);
        row.give(a, 2);
        assert_eq!(row.take(4), Some(0));
    }
}
