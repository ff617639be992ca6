//! Which words of a flat array are in use. Holes are kept by length, so allocating and freeing is a push and a pop;
//! adjacent holes are merged only now and then, all at once.
//!
//! ```text
//! 0 [ block ][ hole ][ block ][ block ][ hole ][ block ] top ............ limit
//!               |                         |
//! holes[3] ----'      holes[7] ----------'       holes[0]: all longer ones
//! ```

/// Holes shorter than this have a list for each length.
const LISTS: usize = 128;

/// The words of one array.
#[derive(Debug)]
pub struct Space {
    top: u32,
    limit: u32,
    /// By length: where holes are. List 0 is not used.
    lists: Vec<Vec<u32>>,
    /// A bit for each list that has a hole.
    filled: u128,
    /// Longer holes: offset and length.
    long: Vec<(u32, u32)>,
}

impl Space {
    /// Words `start..limit`, all free.
    pub fn new(start: u32, limit: u32) -> Self {
        Self { top: start, limit, lists: vec![Vec::new(); LISTS], filled: 0, long: Vec::new() }
    }

    /// One more than the highest word in use.
    pub fn top(&self) -> u32 {
        self.top
    }

    /// Allocates `len` words: in a hole of just that length, or a longer one, or above `top`.
    pub fn take(&mut self, len: u32) -> Option<u32> {
        self.take_below(self.top, len).or_else(|| self.take_above(len))
    }

    /// Allocates `len` words above `top`.
    pub fn take_above(&mut self, len: u32) -> Option<u32> {
        (len <= self.limit - self.top).then(|| {
            self.top += len;
            self.top - len
        })
    }

    /// Allocates `len` words in a hole entirely below `offset`. Only the next hole in its list is checked; after
    /// [`Self::join`] that is the lowest.
    pub fn take_below(&mut self, offset: u32, len: u32) -> Option<u32> {
        let mut lists = if (len as usize) < LISTS { self.filled >> len << len } else { 0 };
        while lists != 0 {
            let hole_len = lists.trailing_zeros();
            lists &= lists - 1;
            let list = &mut self.lists[hole_len as usize];
            if let Some(hole) = list.pop_if(|hole| *hole + len <= offset) {
                self.filled ^= u128::from(list.is_empty()) << hole_len;
                self.give(hole + len, hole_len - len);
                return Some(hole);
            }
        }
        let place = self.long.iter().rposition(|(hole, have)| *have >= len && hole + len <= offset)?;
        let (hole, have) = self.long[place];
        self.long[place] = (hole + len, have - len);
        if have - len < LISTS as u32 {
            self.long.remove(place);
            self.give(hole + len, have - len);
        }
        Some(hole)
    }

    /// Frees words.
    pub fn give(&mut self, offset: u32, len: u32) {
        if offset + len == self.top {
            self.top = offset;
        } else if len as usize >= LISTS {
            self.long.push((offset, len));
        } else if len > 0 {
            self.lists[len as usize].push(offset);
            self.filled |= 1 << len;
        }
    }

    /// Merges adjacent holes, and lowers `top` below those that reach it.
    pub fn join(&mut self) {
        let mut holes = std::mem::take(&mut self.long);
        for (len, list) in self.lists.iter_mut().enumerate() {
            holes.extend(list.drain(..).map(|offset| (offset, len as u32)));
        }
        self.filled = 0;
        // The highest first, so that the lowest of each length is used next.
        holes.sort_unstable_by_key(|(offset, _)| std::cmp::Reverse(*offset));
        let mut holes = holes.into_iter().peekable();
        while let Some((mut offset, mut len)) = holes.next() {
            while let Some((below, more)) = holes.next_if(|(below, more)| below + more == offset) {
                (offset, len) = (below, len + more);
            }
            self.give(offset, len);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn holes_join_and_the_top_falls() {
        let mut space = Space::new(1, 100);
        let blocks: Vec<_> = (0..9).map(|_| space.take(10).unwrap()).collect();
        assert_eq!((space.top(), space.take(10)), (91, None));
        for block in [1, 3, 2, 5] {
            space.give(blocks[block], 10);
        }
        assert_eq!(space.take(25), None);
        space.join();
        assert_eq!(space.take(25), Some(blocks[1]));
        assert_eq!(space.take_below(blocks[3], 6), None);
        assert_eq!(space.take_below(blocks[4], 5), Some(36));
        assert_eq!(space.take_below(blocks[4], 5), None);
        for (offset, len) in [(36, 5), (11, 25), (1, 10), (81, 10), (71, 10), (61, 10), (41, 10)] {
            space.give(offset, len);
        }
        space.join();
        assert_eq!((space.top(), space.filled, space.long.len()), (1, 0, 0));
    }

    #[test]
    fn long_holes_are_cut() {
        let mut space = Space::new(1, 5000);
        let (long, _end) = (space.take(1000).unwrap(), space.take(1).unwrap());
        space.give(long, 1000);
        assert_eq!(space.take(900), Some(1));
        assert_eq!(space.take(60), Some(901));
        assert_eq!(space.take(300), Some(1002));
        assert_eq!(space.take(40), Some(961));
        assert_eq!(space.filled, 0);
    }
}
