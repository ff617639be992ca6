//! Nodes: who owns which, and how ranges become a tree of them.
//!
//! A change takes nodes, fills them, and either commits (they are linked) or gives them back, so that
//! a table that is full stays as it was.

use super::node::{HEIGHT_MAX, Node, Range, WIDTH, Word};
use super::sweep::{self, Window};
use super::{NODES, Range6Fib};
use crate::Lack;
use crate::published::{Readers, Retired};
use crate::rib::Rib;
use std::sync::Arc;

/// The writer's account of all nodes.
#[derive(Debug)]
pub struct Nodes {
    fib: Arc<Range6Fib>,
    /// How many ranges each node ever used holds.
    counts: Vec<u8>,
    free: Vec<u32>,
    retired: Retired<u32>,
    /// Taken by the change under way.
    taken: Vec<u32>,
}

impl Nodes {
    pub fn new(fib: Arc<Range6Fib>, readers: &Readers) -> Self {
        let retired = Retired::new(readers);
        Self { fib, counts: Vec::new(), free: Vec::new(), retired, taken: Vec::new() }
    }

    /// How many nodes were ever in use at once.
    pub fn ever_used(&self) -> usize {
        self.counts.len()
    }

    /// How many nodes the change under way has taken.
    pub fn taken(&self) -> usize {
        self.taken.len()
    }

    pub fn at(&self, word: Word) -> &Node {
        &self.fib.nodes[word.index()]
    }

    pub fn count(&self, word: Word) -> usize {
        usize::from(self.counts[word.index()])
    }

    /// The ranges of a node.
    pub fn ranges(&self, word: Word) -> impl Iterator<Item = Range> + '_ {
        let node = self.at(word);
        (0..self.count(word)).map(|i| (node.start(i), node.value(i)))
    }

    /// The place in the node of the range that holds `key`, and that range's last key, if the node
    /// itself ends at `last`.
    pub fn place(&self, word: Word, key: u32, last: u32) -> (usize, u32) {
        let (node, count) = (self.at(word), self.count(word));
        let next = (1..count).find(|&i| node.start(i) > key).unwrap_or(count);
        (next - 1, if next < count { node.start(next) - 1 } else { last })
    }

    /// Links what was filled before in a node that readers may be in.
    pub fn link(&self, node: Word, place: usize, word: Word) {
        // The greatest key finds the last of the unused places, so they follow the last one in use.
        let end = if place + 1 == self.count(node) { WIDTH } else { place + 1 };
        (place..end).for_each(|place| self.at(node).set_value(place, word));
    }

    /// All nodes from `word` down, those of deeper windows included.
    pub fn below(&self, word: Word, found: &mut Vec<u32>) {
        if word.is_node() {
            found.push(word.index() as u32);
            self.ranges(word).for_each(|(_, value)| self.below(value, found));
        }
    }

    /// What was taken since the last commit is linked now.
    pub fn commit(&mut self) {
        self.taken.clear();
    }

    /// What was taken since the last commit was for nothing.
    pub fn give_back(&mut self) {
        self.free.append(&mut self.taken);
    }

    /// These are out of reach.
    pub fn retire(&mut self, nodes: impl IntoIterator<Item = u32>) {
        self.retired.extend(nodes);
    }

    pub fn reclaim(&mut self) {
        self.free.extend(self.retired.take_passed());
    }

    /// As if every node were in use.
    #[cfg(test)]
    pub fn exhaust(&mut self) {
        self.free.clear();
        self.counts.resize(NODES, 0);
    }

    fn take(&mut self, ranges: &[Range]) -> Result<u32, Lack> {
        if self.free.is_empty() {
            self.reclaim();
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.counts.len() < NODES => {
                self.counts.push(0);
                (self.counts.len() - 1) as u32
            }
            None => return Err(Lack::Blocks),
        };
        self.taken.push(index);
        self.counts[index as usize] = ranges.len() as u8;
        self.fib.nodes[index as usize].fill(ranges);
        Ok(index)
    }

    /// One level of nodes over `ranges`, evenly filled.
    pub fn level(&mut self, ranges: &[Range], height: u32) -> Result<Vec<Range>, Lack> {
        let nodes = ranges.len().div_ceil(WIDTH);
        (0..nodes)
            .map(|i| {
                let part = &ranges[ranges.len() * i / nodes..ranges.len() * (i + 1) / nodes];
                Ok((part[0].0, Word::node(self.take(part)?, height)))
            })
            .collect()
    }

    /// A tree over `ranges`: its top, or several tops where one would be higher than `height_max`.
    /// A single next hop needs no node.
    pub fn tree(&mut self, ranges: Vec<Range>, height_max: u32) -> Result<Vec<Range>, Lack> {
        if let [(_, word)] = ranges[..]
            && !word.is_node()
        {
            return Ok(ranges);
        }
        self.stacked(&ranges, 0, height_max)
    }

    /// Levels of nodes over `ranges`, from `height` up, until there is one top or no more height.
    pub fn stacked(&mut self, ranges: &[Range], height: u32, height_max: u32) -> Result<Vec<Range>, Lack> {
        let mut tops = self.level(ranges, height)?;
        for height in height + 1..=height_max {
            if tops.len() == 1 {
                break;
            }
            tops = self.level(&tops, height)?;
        }
        Ok(tops)
    }

    /// The ranges that `keys` of `window` have by the rib, with trees for deeper windows.
    pub fn swept(&mut self, rib: &Rib<u128>, window: Window, keys: (u32, u32)) -> Result<Vec<Range>, Lack> {
        sweep::ranges(rib, window, keys, |deeper| Ok(self.window_tree(rib, deeper)?.entering()))
    }

    /// A tree for a whole window.
    pub fn window_tree(&mut self, rib: &Rib<u128>, window: Window) -> Result<Word, Lack> {
        let ranges = self.swept(rib, window, (0, u32::MAX))?;
        let tops = self.tree(ranges, HEIGHT_MAX)?;
        // 16^8 ranges at most: as many as a window has keys.
        Ok(tops[0].1)
    }
}
