//! Builds a tree: at each node, chooses the cut that leaves the fewest rules together.
//!
//! A node stands for all packets whose key has certain values in certain bits; a child for those with a few more bits
//! fixed. A rule goes to each child in which it could match some packet, so bits may be cut in any order and from any
//! field.

use crate::key::{DESTINATION, FAMILY, IPV6_SHIFT, KIND, Kind, PORTS, PROTOCOL, SOURCE};
use crate::node::{Cut, DEPTH, FORK, LEAF, TREES, worst};
use crate::rule::{Flat, SIDES};
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::ops::Range;

/// The most rules in a leaf, if cuts and room allow; and in a leaf of a fork, where a packet is in a leaf of each tree.
const LEAF_RULES: usize = 4;
const LEAF_RULES_OF_FORK: usize = 1;
/// A tree of this cost or less is cheap enough: several trees are not tried.
const CHEAP: usize = 8;
/// Words of a tree of few rules, and for each rule of one of many.
const WORDS: usize = 1 << 14;
const WORDS_PER_RULE: usize = 8;
/// How many children a cut may copy a rule to, on average.
const COPIES: usize = 16;

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

/// Family, words of the addresses, ports, protocol, and whether the packet is a later fragment of either family.
const FIELDS: [Field; 14] = [
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
    field(KIND, Kind::Later as u32 >> 1, 1),
    field(KIND, (Kind::Later as u32 >> 1) + IPV6_SHIFT, 1),
];

/// The range of values of each field that a rule matches: least and greatest.
type FieldRanges = [(u32, u32); FIELDS.len()];

fn field_ranges(rule: &Flat) -> FieldRanges {
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
        rule.later(0),
        rule.later(IPV6_SHIFT),
    ]
}

/// The packets that a node stands for: known bits of each field, and their values.
#[derive(Clone, Copy, Default)]
struct Region([(u32, u32); FIELDS.len()]);

impl Region {
    fn admits(&self, ranges: &FieldRanges) -> bool {
        self.0.iter().zip(ranges).all(|(bits, range)| meets(*range, *bits))
    }

    /// Whether every packet of the region matches.
    fn is_within(&self, ranges: &FieldRanges) -> bool {
        FIELDS.iter().enumerate().all(|(index, field)| {
            let (mask, value) = self.0[index];
            let (least, greatest) = ranges[index];
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

/// Whether some number of a range has given bits: a mask, and the value there.
fn meets(range: (u32, u32), bits: (u32, u32)) -> bool {
    let ((least, greatest), (mask, value)) = (range, bits);
    // The least such number that is not below `least`: equal down to some bit, then greater.
    let near = least & !mask | value;
    let Some(top) = (near ^ least).checked_ilog2() else { return true };
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

/// All bits below a bit.
fn below(bit: u32) -> u32 {
    (1 << bit) - 1
}

/// The tree built so far.
pub(crate) struct Grower<'r> {
    rules: &'r [Flat],
    /// For each rule.
    ranges: Vec<FieldRanges>,
    words: Vec<u32>,
    leaves: HashMap<Vec<u32>, u32>,
    /// The most rules in a leaf, if cuts and room allow.
    leaf_rules: usize,
}

/// A node without a word yet.
struct PendingNode {
    rules: Vec<u32>,
    region: Region,
    depth: usize,
    /// Where its word belongs.
    place: usize,
}

impl PendingNode {
    /// The words of a leaf with all of its rules.
    fn words(&self) -> usize {
        1 + self.rules.len()
    }
}

/// Rules that are specific about the same fields, a bit for each.
struct Group {
    sides: usize,
    rules: Vec<u32>,
}

impl Group {
    /// About how many copies of rules a tree of both needs.
    fn overlap(&self, other: &Self) -> usize {
        let (a, b) = (self.rules.len(), other.rules.len());
        if self.sides & other.sides == 0 { a * b } else { a + b }
    }

    fn merge(&mut self, other: Self) {
        let both = self.sides & other.sides;
        let larger = if self.rules.len() >= other.rules.len() { self.sides } else { other.sides };
        self.sides = if both == 0 { larger } else { both };
        self.rules.extend(other.rules);
        self.rules.sort_unstable();
    }
}

impl<'r> Grower<'r> {
    /// New nodes are added after `words`, which stay unchanged.
    pub fn new(rules: &'r [Flat], words: Vec<u32>) -> Self {
        Self {
            rules,
            ranges: rules.iter().map(field_ranges).collect(),
            words,
            leaves: HashMap::new(),
            leaf_rules: LEAF_RULES,
        }
    }

    /// The root of a tree of some of the rules, within `room` words in all; `None` if these are too few for lists.
    pub fn grow(&mut self, rules: Range<u32>, room: usize) -> Option<u32> {
        let rules = self.distinct(rules);
        let start = self.words.len();
        if rules.is_empty() {
            return (start < room).then(|| self.leaf(rules));
        }
        // More would take long to build, and would not fit the caches of a core.
        let room = room.min(start + rules.len() + (WORDS_PER_RULE * rules.len()).max(WORDS));
        let single = self.trees(vec![rules.clone()], room)?;
        let cost = self.cost(single);
        if cost <= CHEAP {
            return Some(single);
        }
        let words = self.words.split_off(start);
        let leaves = std::mem::take(&mut self.leaves);
        self.leaf_rules = LEAF_RULES_OF_FORK;
        let fork = self.trees(self.groups(rules), room).filter(|fork| self.cost(*fork) < cost);
        self.leaf_rules = LEAF_RULES;
        if fork.is_none() {
            self.words.truncate(start);
            self.words.extend(words);
            self.leaves = leaves;
        }
        fork.or(Some(single))
    }

    /// The maximum cost of a packet below a root, in cuts: comparing a rule takes about as long as two.
    fn cost(&self, root: u32) -> usize {
        let (cuts, rules) = worst(&self.words, root);
        cuts + 2 * rules
    }

    /// The root of one tree for each group of rules.
    ///
    /// The node with the most rules is cut first: if the room is used up, no leaf is much longer than the others.
    fn trees(&mut self, groups: Vec<Vec<u32>>, room: usize) -> Option<u32> {
        let (first, count) = (self.words.len() + 1, groups.len());
        self.words.push(count as u32);
        self.words.resize(first + count, 0);
        let places = first..first + count;
        let roots = groups.into_iter().zip(places);
        let mut pending: Vec<Option<PendingNode>> =
            roots.map(|(rules, place)| Some(self.pending_node(rules, Region::default(), 0, place))).collect();
        // Words for the lists of all pending nodes.
        let mut reserved = pending.iter().flatten().map(PendingNode::words).sum::<usize>();
        if self.words.len() + reserved > room {
            return None;
        }
        let lengths = pending.iter().map(|node| node.as_ref().map_or(0, |node| node.rules.len()));
        let mut longest: BinaryHeap<(usize, usize)> = lengths.zip(0..).collect();
        while let Some(node) = longest.pop().and_then(|(_, index)| pending.get_mut(index)?.take()) {
            reserved -= node.words();
            let children = self.cut(&node).filter(|(_, children)| {
                let lists: usize = children.iter().map(PendingNode::words).sum();
                self.words.len() + reserved + children.len() + lists <= room
            });
            let Some((word, children)) = children else {
                self.words[node.place] = self.leaf(node.rules);
                continue;
            };
            self.words[node.place] = word;
            self.words.resize(self.words.len() + children.len(), 0);
            for child in children {
                reserved += child.words();
                longest.push((child.rules.len(), pending.len()));
                pending.push(Some(child));
            }
        }
        Some(if count == 1 { self.words[first] } else { FORK | (first as u32 - 1) })
    }

    /// The rules without those that equal an earlier one: rules that accept by port share theirs for later
    /// fragments.
    fn distinct(&self, rules: Range<u32>) -> Vec<u32> {
        let mut known = HashSet::new();
        rules
            .filter(|rule| known.insert(Flat { counter: 0, drops: 0, ..self.rules[*rule as usize] }))
            .collect()
    }

    /// The rules by the fields that they are specific about, in at most [`TREES`] groups.
    ///
    /// A rule about sources and one about ports overlap, so in one tree each leaf would have some of both: either many
    /// rules, or many leaves.
    fn groups(&self, rules: Vec<u32>) -> Vec<Vec<u32>> {
        let mut groups: Vec<Group> =
            (0..1 << SIDES).map(|sides| Group { sides, rules: Vec::new() }).collect();
        rules.into_iter().for_each(|rule| groups[self.rules[rule as usize].specifics()].rules.push(rule));
        groups.retain(|group| !group.rules.is_empty());
        while groups.len() > TREES {
            let pairs = (1..groups.len()).flat_map(|other| (0..other).map(move |one| (one, other)));
            let Some((one, other)) = pairs.min_by_key(|&(one, other)| groups[one].overlap(&groups[other]))
            else {
                break;
            };
            let merged = groups.remove(other);
            groups[one].merge(merged);
        }
        groups.into_iter().map(|group| group.rules).collect()
    }

    pub(crate) fn into_words(self) -> Vec<u32> {
        self.words
    }

    fn pending_node(&self, mut rules: Vec<u32>, region: Region, depth: usize, place: usize) -> PendingNode {
        // Rules after one that always matches are never reached.
        let always_matches = rules.iter().position(|rule| {
            !self.rules[*rule as usize].compares_more() && region.is_within(&self.ranges[*rule as usize])
        });
        if let Some(last) = always_matches {
            rules.truncate(last + 1);
        }
        PendingNode { rules, region, depth, place }
    }

    /// The word of an inner node, and its children, whose words come next; `None` if it should be a leaf.
    fn cut(&self, node: &PendingNode) -> Option<(u32, Vec<PendingNode>)> {
        let PendingNode { rules, region, depth, .. } = node;
        if rules.len() <= self.leaf_rules || *depth == DEPTH {
            return None;
        }
        let (field, cut) = self.best(rules, *region)?;
        let first = self.words.len();
        let children = (0..cut.children()).map(|value| {
            let region = region.child(field, cut, value as u32);
            let rules = rules.iter().copied();
            let admitted = rules.filter(|rule| region.admits(&self.ranges[*rule as usize])).collect();
            self.pending_node(admitted, region, depth + 1, first + value)
        });
        Some((cut.encode(first), children.collect()))
    }

    fn leaf(&mut self, rules: Vec<u32>) -> u32 {
        if let Some(known) = self.leaves.get(&rules) {
            return *known;
        }
        let word = LEAF | self.words.len() as u32;
        self.words.push(rules.len() as u32);
        self.words.extend_from_slice(&rules);
        self.leaves.insert(rules, word);
        word
    }

    /// The cut with the smallest largest child; `None` if every cut leaves all rules together.
    fn best(&self, rules: &[u32], region: Region) -> Option<(usize, Cut)> {
        // As many children as would make them leaves if the rules were distributed evenly.
        let bits = (rules.len().div_ceil(self.leaf_rules).max(2) as u32).ilog2().clamp(1, 8);
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
        let mut ranges = rules.iter().map(|rule| self.ranges[*rule as usize][field]);
        let first = ranges.next();
        ranges.all(|range| Some(range) == first)
    }

    /// Rules in the largest child of a cut, and in all; `None` if it does not help, or copies too many.
    fn score(&self, rules: &[u32], field: usize, shift: u32, bits: u32) -> Option<(usize, usize)> {
        let children = 1usize << bits;
        let mut change = [0i32; (1 << 8) + 1];
        for rule in rules {
            let (least, greatest) = self.ranges[*rule as usize][field];
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
        (fullest < rules.len() && all <= COPIES * rules.len() + children).then_some((fullest, all))
    }
}

#[cfg(test)]
mod tests;
