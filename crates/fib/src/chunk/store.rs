//! Blocks of variable size in one flat array, each stored once, with a reference count.
//!
//! ```text
//! put(content) --> same content there? --yes--> count + 1 ----------> offset
//!                        `--no--> take words, fill, remember -----------^
//! release(offset) --> count - 1 --at 0--> out of reach --grace--> words are free again
//! ```
//!
//! A block never changes once it is filled. The order of a change is: put the new, link it with one store, release
//! the old; so readers find only complete blocks. Words that become free wait in [`Retired`].

use super::space::Space;
use crate::Shortage;
use crate::published::{Readers, Retired};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

const NIL: u32 = u32::MAX;
/// Words of holes for which moving blocks is never worthwhile.
const SLACK: usize = 4096;
/// Words that must be released before blocks are moved, even in a small table.
const EARNED: usize = 8192;

#[derive(Clone, Copy, Debug)]
struct Record {
    hash: u64,
    offset: u32,
    len: u32,
    count: u32,
    /// The next of the same bucket, or the next free record.
    next: u32,
}

/// The writer's side of an array of blocks.
#[derive(Debug)]
pub struct Store {
    space: Space,
    records: Vec<Record>,
    free: u32,
    buckets: Vec<u32>,
    /// The record of the block that starts at a word.
    at: Vec<u32>,
    /// Released, and not retired yet; then retired: offset and length.
    dead: Vec<(u32, u32)>,
    retired: Retired<(u32, u32)>,
    /// Words that are retired.
    waiting: usize,
    /// Words released since blocks were last moved: moving costs as much as the table is large, so it must be
    /// justified.
    released: usize,
    live: usize,
    blocks: usize,
}

impl Store {
    /// For blocks in words `start..limit`.
    pub fn new(start: u32, limit: u32, readers: &Readers) -> Self {
        Self {
            space: Space::new(start, limit),
            records: Vec::new(),
            free: NIL,
            buckets: vec![NIL; 1 << 10],
            at: Vec::new(),
            dead: Vec::new(),
            retired: Retired::new(readers),
            waiting: 0,
            released: 0,
            live: 0,
            blocks: 0,
        }
    }

    /// The position of `content`, with one more reference.
    pub fn put(&mut self, words: &[AtomicU64], content: &[u64]) -> Result<u32, Shortage> {
        let hash = hash(content);
        if let Some(same) = self.find(words, content, hash) {
            self.records[same as usize].count += 1;
            return Ok(self.records[same as usize].offset);
        }
        let len = content.len() as u32;
        let offset = self.take(len).ok_or(Shortage::Blocks)?;
        for (word, value) in words[offset as usize..].iter().zip(content) {
            word.store(*value, Relaxed);
        }
        self.remember(Record { hash, offset, len, count: 1, next: NIL });
        Ok(offset)
    }

    /// Removes a reference. The caller unlinks the block, if it has not, and then calls [`Self::retire`].
    pub fn release(&mut self, offset: u32) {
        let index = self.at[offset as usize];
        let record = &mut self.records[index as usize];
        record.count -= 1;
        if record.count > 0 {
            return;
        }
        let Record { hash, len, .. } = *record;
        self.unlink(index, hash);
        self.records[index as usize].next = self.free;
        self.free = index;
        self.live -= len as usize;
        self.blocks -= 1;
        self.released += len as usize;
        self.dead.push((offset, len));
    }

    /// To be called once new readers cannot find what was released: its grace period begins.
    pub fn retire(&mut self) {
        self.waiting += self.dead.iter().map(|(_, len)| *len as usize).sum::<usize>();
        self.retired.extend(self.dead.drain(..));
    }

    /// Frees the words whose grace period has ended.
    pub fn reclaim(&mut self) {
        for (offset, len) in self.retired.take_passed() {
            self.waiting -= len as usize;
            self.space.give(offset, len);
        }
    }

    /// Words in blocks that are linked.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Blocks that are linked.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Words up to the end of the highest block, including holes and what readers may still use.
    pub fn extent(&self) -> usize {
        self.space.top() as usize
    }

    /// Whether holes take more than a quarter of what the blocks take. Words that wait for readers are not holes.
    pub fn is_loose(&self) -> bool {
        self.released > self.live / 8 + EARNED
            && self.is_loose_at(self.extent() - self.waiting.min(self.extent()))
    }

    /// Whether holes would take more than a quarter of what the blocks take if the highest block ended at `top`.
    fn is_loose_at(&self, top: usize) -> bool {
        top > self.live + self.live / 4 + SLACK
    }

    /// Merges adjacent holes.
    pub fn join(&mut self) {
        self.space.join();
    }

    /// Moves the highest blocks down into holes, which must have been merged just before. If that gains little,
    /// because blocks are too long for the holes, it moves all to the top, so that the space they leave can be one
    /// hole the next time. The caller relinks references to them, and then retires the list.
    pub fn compact(&mut self, words: &[AtomicU64]) -> Moves {
        let goal = (self.live + self.live / 16) as u32;
        let mut all: Vec<u32> =
            (0..self.records.len() as u32).filter(|i| self.records[*i as usize].count > 0).collect();
        all.sort_unstable_by_key(|i| std::cmp::Reverse(self.records[*i as usize].offset));
        self.released = 0;
        let (mut moved, mut gained) = (Moves::default(), 0);
        let mut stay = Vec::new();
        for index in all {
            let Record { offset, len, .. } = self.records[index as usize];
            match if offset >= goal { self.space.take_below(offset, len) } else { None } {
                Some(place) => {
                    self.shift(words, index, place, &mut moved);
                    gained += len as usize;
                }
                None => stay.push(index),
            }
        }
        // If only few blocks were at the top, their gain says little. And while much waits for readers, each such
        // move would only add to it.
        let top = stay.first().map_or(0, |index| {
            let Record { offset, len, .. } = self.records[*index as usize];
            (offset + len) as usize
        });
        let is_settled = self.waiting <= self.live / 16;
        if gained < (self.extent() - self.live) / 8 && is_settled && self.is_loose_at(top) {
            for index in stay.into_iter().rev() {
                let place = self.space.take_above(self.records[index as usize].len);
                place.into_iter().for_each(|place| self.shift(words, index, place, &mut moved));
            }
        }
        moved.0.sort_unstable();
        moved
    }

    fn shift(&mut self, words: &[AtomicU64], index: u32, place: u32, moved: &mut Moves) {
        let Record { offset, len, .. } = self.records[index as usize];
        for i in 0..len as usize {
            words[place as usize + i].store(words[offset as usize + i].load(Relaxed), Relaxed);
        }
        self.records[index as usize].offset = place;
        self.note_place(place, index);
        moved.0.push((offset, place, len));
    }

    /// Gives the block at `offset` equivalent content: each word may be old or new. No other block may have that
    /// content.
    pub fn rewrite(&mut self, words: &[AtomicU64], offset: u32, content: impl Iterator<Item = u64>) {
        let content: Vec<u64> = content.collect();
        let (index, hash) = (self.at[offset as usize], hash(&content));
        let old = self.records[index as usize].hash;
        if old == hash {
            return;
        }
        for (word, value) in words[offset as usize..].iter().zip(&content) {
            word.store(*value, Release);
        }
        self.unlink(index, old);
        let bucket = self.bucket(hash);
        self.records[index as usize].hash = hash;
        self.records[index as usize].next = self.buckets[bucket];
        self.buckets[bucket] = index;
    }

    /// To be called once nothing refers to the old positions any more: their grace period begins.
    pub fn retire_moved(&mut self, moved: Moves) {
        self.dead.extend(moved.0.into_iter().map(|(old, _, len)| (old, len)));
        self.retire();
    }

    fn take(&mut self, len: u32) -> Option<u32> {
        self.space.take(len).or_else(|| {
            self.reclaim();
            self.space.join();
            self.space.take(len)
        })
    }

    fn find(&self, words: &[AtomicU64], content: &[u64], hash: u64) -> Option<u32> {
        let mut index = self.buckets[self.bucket(hash)];
        while index != NIL {
            let record = &self.records[index as usize];
            let mut stored = words[record.offset as usize..].iter().zip(content);
            if record.hash == hash
                && record.len as usize == content.len()
                && stored.all(|(word, value)| word.load(Relaxed) == *value)
            {
                return Some(index);
            }
            index = record.next;
        }
        None
    }

    fn remember(&mut self, record: Record) {
        if self.blocks >= self.buckets.len() {
            self.grow();
        }
        let index = if self.free == NIL {
            self.records.push(record);
            self.records.len() as u32 - 1
        } else {
            let index = self.free;
            self.free = self.records[index as usize].next;
            self.records[index as usize] = record;
            index
        };
        let bucket = self.bucket(record.hash);
        self.records[index as usize].next = self.buckets[bucket];
        self.buckets[bucket] = index;
        self.note_place(record.offset, index);
        self.live += record.len as usize;
        self.blocks += 1;
    }

    fn note_place(&mut self, offset: u32, index: u32) {
        if self.at.len() <= offset as usize {
            self.at.resize(offset as usize + 1, NIL);
        }
        self.at[offset as usize] = index;
    }

    fn unlink(&mut self, index: u32, hash: u64) {
        let next = self.records[index as usize].next;
        let bucket = self.bucket(hash);
        if self.buckets[bucket] == index {
            self.buckets[bucket] = next;
            return;
        }
        let mut before = self.buckets[bucket];
        while self.records[before as usize].next != index {
            before = self.records[before as usize].next;
        }
        self.records[before as usize].next = next;
    }

    fn grow(&mut self) {
        self.buckets = vec![NIL; self.buckets.len() * 4];
        for index in 0..self.records.len() {
            if self.records[index].count > 0 {
                let bucket = self.bucket(self.records[index].hash);
                self.records[index].next = self.buckets[bucket];
                self.buckets[bucket] = index as u32;
            }
        }
    }

    fn bucket(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.buckets.len() - 1)
    }
}

/// Moved blocks: old offset, new offset, length.
#[derive(Debug, Default)]
pub struct Moves(Vec<(u32, u32, u32)>);

impl Moves {
    /// Whether no block has moved.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The new position of what was at `offset`, if it moved.
    pub fn place(&self, offset: u32) -> Option<u32> {
        let index = self.0.binary_search_by_key(&offset, |(old, ..)| *old).ok()?;
        Some(self.0[index].1)
    }
}

fn hash(content: &[u64]) -> u64 {
    let mut hash = content.len() as u64;
    for word in content {
        hash = (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Few blocks hold up the top of a table that is low but for them: they move, and no other does. Until this
    /// was so, tables that had grown and shrunk moved all upwards again and again, until no room was left.
    #[test]
    fn few_high_blocks_move_alone() {
        let words: Vec<AtomicU64> = (0..1 << 17).map(|_| AtomicU64::new(0)).collect();
        let mut store = Store::new(1, 1 << 17, &Readers::new());
        let content = |i: u64| (0..10).map(|j| i << 32 | j).collect::<Vec<_>>();
        let mut places: Vec<u32> = (0..8000).map(|i| store.put(&words, &content(i)).unwrap()).collect();
        // A hole at the bottom, and all above the middle but the last twenty.
        (0..30).chain(4000..7980).for_each(|i| store.release(places[i]));
        store.retire();
        store.reclaim();
        assert!(store.is_loose());
        store.join();
        let moved = store.compact(&words);
        let went: Vec<_> = (0..8000).filter(|i| moved.place(places[*i]).is_some()).collect();
        assert_eq!(went, (7980..8000).collect::<Vec<_>>());
        places.iter_mut().for_each(|place| *place = moved.place(*place).unwrap_or(*place));
        store.retire_moved(moved);
        store.reclaim();
        store.join();
        assert!(store.extent() <= 40_001, "{}", store.extent());
        for i in (30..4000).chain(7980..8000) {
            assert_eq!(store.put(&words, &content(i as u64)), Ok(places[i]));
        }
    }

    /// Blocks with holes between them that are too short for any: they all go up, and then down.
    #[test]
    fn holes_that_fit_nothing_are_mended_too() {
        let words: Vec<AtomicU64> = (0..1 << 16).map(|_| AtomicU64::new(0)).collect();
        let mut store = Store::new(1, 1 << 16, &Readers::new());
        let content = |i: u64, len: usize| (0..len as u64).map(|j| i << 32 | j).collect::<Vec<_>>();
        let mut blocks = Vec::new();
        for i in 0..1500 {
            let thin = store.put(&words, &content(2 * i, 9)).unwrap();
            blocks.push((2 * i + 1, store.put(&words, &content(2 * i + 1, 10)).unwrap()));
            store.release(thin);
        }
        store.retire();
        store.reclaim();
        for _ in 0..3 {
            store.join();
            store.released += EARNED + store.live;
            if store.is_loose() {
                let moved = store.compact(&words);
                blocks.iter_mut().for_each(|(_, place)| *place = moved.place(*place).unwrap_or(*place));
                store.retire_moved(moved);
                store.reclaim();
            }
        }
        assert_eq!((store.live(), store.blocks()), (15_000, 1500));
        assert!(store.extent() < 16_000, "{}", store.extent());
        for (i, place) in blocks {
            let found = words[place as usize..][..10].iter().map(|word| word.load(Relaxed));
            assert!(found.eq(content(i, 10)));
            assert_eq!(store.put(&words, &content(i, 10)), Ok(place));
        }
    }
}
