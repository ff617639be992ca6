//! Builds a tree: at each node, chooses the cut that leaves the fewest rules together.
//!
//! A node stands for all packets whose key has certain values in certain bits; a child for those with a few more bits
//! fixed. A rule goes to each child in which it could match some packet, so bits may be cut in any order and from any
//! field.

use crate::key::{DESTINATION, FAMILY, PORTS, PROTOCOL, SOURCE};
use crate::node::{Cut, DEPTH, LEAF};
use crate::rule::Flat;
use std::collections::HashMap;
use std::ops::Range;

/// A field that may be cut: where it is in the key.
#[derive(Clone, Copy)]
struct Field {
    word: usize,
    low: u32,
    width: u32,
}

const fn field(word: usize, low: u32, width: u32) -> Field {
    Field { word, low, width }
}

/// Family, words of the addresses, ports, protocol.
const FIELDS: [Field; 12] = [
    field(FAMILY, 0, 1),
    field(SOURCE, 0, 32),
    field(DESTINATION, 0, 32),
    field(PORTS, 0, 16),
    field(PORTS, 16, 16),
    field(PROTOCOL, 0, 8),
    field(SOURCE + 1, 0, 32),
    field(DESTINATION + 1, 0, 32),
    field(SOURCE + 2, 0, 32),
    field(DESTINATION + 2, 0, 32),
    field(SOURCE + 3, 0, 32),
    field(DESTINATION + 3, 0, 32),
];

/// The values of each field that a rule matches: least and greatest.
type Wanted = [(u32, u32); FIELDS.len()];

fn wanted(rule: &Flat) -> Wanted {
    let address = |side, at| {
        let (address, mask) = rule.word(side, at);
        (address, address | !mask)
    };
    let [from, to, least, greatest] = rule.ports.map(u32::from);
    let [first, last] = rule.protocol.map(u32::from);
    [
        rule.families(),
        address(0, 0),
        address(1, 0),
        (least, greatest),
        (from, to),
        (first, last),
        address(0, 1),
        address(1, 1),
        address(0, 2),
        address(1, 2),
        address(0, 3),
        address(1, 3),
    ]
}

/// The packets that a node stands for: known bits of each field, and their values.
#[derive(Clone, Copy, Default)]
struct Region([(u32, u32); FIELDS.len()]);

impl Region {
    fn admits(&self, wanted: &Wanted) -> bool {
        self.0.iter().zip(wanted).all(|(known, wanted)| meets(*wanted, *known))
    }

    /// Whether every packet of the region matches.
    fn is_within(&self, wanted: &Wanted) -> bool {
        FIELDS.iter().enumerate().all(|(index, field)| {
            let (mask, value) = self.0[index];
            let (least, greatest) = wanted[index];
            let all = u32::MAX >> (32 - field.width);
            least <= value && (value | (!mask & all)) <= greatest
        })
    }

    fn child(&self, field: usize, cut: Cut, value: u32) -> Self {
        let shift = cut.shift - FIELDS[field].low;
        let mut child = *self;
        child.0[field].0 |= (cut.children() as u32 - 1) << shift;
        child.0[field].1 |= value << shift;
        child
    }
}

/// Whether some number from `least` to `greatest` has `value` in the bits of `mask`.
fn meets((least, greatest): (u32, u32), (mask, value): (u32, u32)) -> bool {
    // The least such number that is not below `least`: equal down to some bit, then greater.
    let near = least & !mask | value;
    let Some(top) = (near ^ least).checked_ilog2() else { return true };
    let below = |bit: u32| (1u32 << bit) - 1;
    if near >> top & 1 == 1 {
        return near & !(below(top) & !mask) <= greatest;
    }
    let free = !mask & !least & !below(top) & !(1 << top);
    if free == 0 {
        return false;
    }
    let bit = free.trailing_zeros();
    let high = least & !below(bit) | 1 << bit;
    high & !mask | value & (below(bit) | mask) <= greatest
}

/// The tree built so far.
pub(crate) struct Grower<'r> {
    rules: &'r [Flat],
    wanted: Vec<Wanted>,
    words: Vec<u32>,
    leaves: HashMap<Vec<u32>, u32>,
    leaf_rules: usize,
    room: usize,
}

impl<'r> Grower<'r> {
    /// New nodes are added after `words`, which stay unchanged; leaves have at most `leaf_rules` rules if cuts can
    /// achieve that.
    pub fn new(rules: &'r [Flat], words: Vec<u32>, leaf_rules: usize, room: usize) -> Self {
        let (wanted, leaves) = (rules.iter().map(wanted).collect(), HashMap::new());
        Self { rules, wanted, words, leaves, leaf_rules, room }
    }

    /// The root of a tree of some of the rules; `None` if there is no room for it.
    pub fn grow(&mut self, rules: Range<u32>) -> Option<u32> {
        self.node(rules.collect(), Region::default(), 0)
    }

    pub fn into_words(self) -> Vec<u32> {
        self.words
    }

    fn node(&mut self, mut rules: Vec<u32>, region: Region, depth: usize) -> Option<u32> {
        // Rules after one that always matches are never reached.
        let covers = |rule: &u32| {
            !self.rules[*rule as usize].asks_more() && region.is_within(&self.wanted[*rule as usize])
        };
        if let Some(last) = rules.iter().position(covers) {
            rules.truncate(last + 1);
        }
        let best =
            if rules.len() > self.leaf_rules && depth < DEPTH { self.best(&rules, region) } else { None };
        let Some((field, cut)) = best else { return self.leaf(rules) };
        let place = self.words.len();
        if place + cut.children() > self.room {
            return None;
        }
        self.words.resize(place + cut.children(), 0);
        for value in 0..cut.children() {
            let region = region.child(field, cut, value as u32);
            let admitted = rules.iter().copied().filter(|rule| region.admits(&self.wanted[*rule as usize]));
            let admitted = admitted.collect();
            self.words[place + value] = self.node(admitted, region, depth + 1)?;
        }
        Some(cut.encode(place))
    }

    fn leaf(&mut self, rules: Vec<u32>) -> Option<u32> {
        if let Some(known) = self.leaves.get(&rules) {
            return Some(*known);
        }
        let place = self.words.len();
        if place + 1 + rules.len() > self.room {
            return None;
        }
        self.words.push(rules.len() as u32);
        self.words.extend_from_slice(&rules);
        let word = LEAF | place as u32;
        self.leaves.insert(rules, word);
        Some(word)
    }

    /// The cut with the smallest largest child; `None` if every cut leaves all rules together.
    fn best(&self, rules: &[u32], region: Region) -> Option<(usize, Cut)> {
        // As many children as would make them leaves if the rules were distributed evenly.
        let bits = (rules.len().div_ceil(self.leaf_rules.max(1)).max(2) as u32).ilog2().clamp(1, 8);
        let mut best: Option<((usize, usize), usize, Cut)> = None;
        for bits in [bits, bits.div_ceil(2)] {
            for (index, field) in FIELDS.iter().enumerate() {
                if self.is_alike(rules, index) {
                    continue;
                }
                let bits = bits.min(field.width);
                for shift in 0..=field.width - bits {
                    let fresh = region.0[index].0 >> shift & ((1 << bits) - 1) == 0;
                    let cut = Cut { word: field.word, shift: shift + field.low, bits };
                    let Some(score) = fresh.then(|| self.score(rules, index, shift, bits)).flatten() else {
                        continue;
                    };
                    if best.as_ref().is_none_or(|(other, ..)| score < *other) {
                        best = Some((score, index, cut));
                    }
                }
            }
        }
        best.map(|(_, index, cut)| (index, cut))
    }

    /// Whether all rules match the same values of a field.
    fn is_alike(&self, rules: &[u32], field: usize) -> bool {
        let of = |rule: &u32| self.wanted[*rule as usize][field];
        rules.iter().all(|rule| of(rule) == of(&rules[0]))
    }

    /// Rules in the largest child of a cut, and in all; `None` if it does not help, or copies too many.
    fn score(&self, rules: &[u32], field: usize, shift: u32, bits: u32) -> Option<(usize, usize)> {
        let children = 1usize << bits;
        let mut change = [0i32; (1 << 8) + 1];
        for rule in rules {
            let (least, greatest) = self.wanted[*rule as usize][field];
            let (first, last) = (u64::from(least) >> shift, u64::from(greatest) >> shift);
            let (mut from, mut to) = (first as usize & (children - 1), last as usize & (children - 1));
            if first >> bits != last >> bits {
                (from, to) = (0, children - 1);
            }
            change[from] += 1;
            change[to + 1] -= 1;
        }
        let (mut fullest, mut all, mut now) = (0, 0, 0);
        for step in &change[..children] {
            now += step;
            fullest = fullest.max(now as usize);
            all += now as usize;
        }
        (fullest < rules.len() && all <= 4 * rules.len() + children).then_some((fullest, all))
    }
}

#[cfg(test)]
mod tests;
