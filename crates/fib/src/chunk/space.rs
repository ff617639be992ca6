//! Which words of a flat array are taken: the best fitting hole first, holes that touch become one.
//!
//! ```text
//! 0 [ block ][ hole ][ block ][ block ][ hole ][ block ] top ............ limit
//! ```
//!
//! `top` falls again when what lies right below it is given back.

use std::collections::{BTreeMap, BTreeSet};

/// The words of one array.
#[derive(Debug)]
pub struct Space {
    top: u32,
    limit: u32,
    by_offset: BTreeMap<u32, u32>,
    by_len: BTreeSet<(u32, u32)>,
}

impl Space {
    /// Words `start..limit`, all free.
    pub fn new(start: u32, limit: u32) -> Self {
        Self { top: start, limit, by_offset: BTreeMap::new(), by_len: BTreeSet::new() }
    }

    /// One past the highest word that is taken.
    pub fn top(&self) -> u32 {
        self.top
    }

    /// Words above `top`: so much surely fits, in however many blocks.
    pub fn headroom(&self) -> u32 {
        self.limit - self.top
    }

    /// `len` words, in the smallest hole that holds them or above `top`.
    pub fn take(&mut self, len: u32) -> Option<u32> {
        if let Some((hole_len, offset)) = self.by_len.range((len, 0)..).next().copied() {
            self.take_hole(offset, hole_len, len);
            return Some(offset);
        }
        (len <= self.headroom()).then(|| {
            self.top += len;
            self.top - len
        })
    }

    /// `len` words in a hole that lies wholly below `offset`: for what is to move down.
    pub fn take_below(&mut self, offset: u32, len: u32) -> Option<u32> {
        let (hole_len, hole) = *self.by_len.range((len, 0)..).find(|(_, hole)| hole + len <= offset)?;
        self.take_hole(hole, hole_len, len);
        Some(hole)
    }

    /// Gives words back.
    pub fn give(&mut self, offset: u32, len: u32) {
        let (mut first, mut end) = (offset, offset + len);
        if let Some((before, before_len)) = self.by_offset.range(..offset).next_back().map(|(o, l)| (*o, *l))
            && before + before_len == offset
        {
            self.forget(before, before_len);
            first = before;
        }
        if let Some(behind_len) = self.by_offset.get(&end).copied() {
            self.forget(end, behind_len);
            end += behind_len;
        }
        if end == self.top {
            self.top = first;
        } else {
            self.note(first, end - first);
        }
    }

    fn take_hole(&mut self, offset: u32, hole_len: u32, len: u32) {
        self.forget(offset, hole_len);
        if hole_len > len {
            self.note(offset + len, hole_len - len);
        }
    }

    fn note(&mut self, offset: u32, len: u32) {
        self.by_offset.insert(offset, len);
        self.by_len.insert((len, offset));
    }

    fn forget(&mut self, offset: u32, len: u32) {
        self.by_offset.remove(&offset);
        self.by_len.remove(&(len, offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_join_and_the_top_falls() {
        let mut space = Space::new(1, 100);
        let blocks: Vec<_> = (0..9).map(|_| space.take(10).unwrap()).collect();
        assert_eq!((space.top(), space.take(10)), (91, None));
        for block in [1, 3, 2] {
            space.give(blocks[block], 10);
        }
        assert_eq!(space.by_offset.len(), 1);
        assert_eq!(space.take(25), Some(blocks[1]));
        assert_eq!(space.take_below(blocks[3], 6), None);
        assert_eq!(space.take_below(blocks[4], 5), Some(36));
        for (offset, len) in [(36, 5), (11, 25), (1, 10), (81, 10), (71, 10), (61, 10), (51, 10), (41, 10)] {
            space.give(offset, len);
        }
        assert_eq!((space.top(), space.by_offset.len(), space.by_len.len()), (1, 0, 0));
    }
}
