//! Few rules as bit vectors, for IPv4 packets on the plain path: each packet takes the same few steps.
//!
//! ```text
//! bytes of a field ─► trie ─► a vector with a bit for each rule that this value satisfies ──┐
//! ... the same for each field that some rule restricts ... ─────────────────────────────────┼─► AND ─► lowest bit
//! interface ─► the rules that apply to it ──────────────────────────────────────────────────┘
//! ```
//!
//! Lakshman and Stiliadis, "High-Speed Policy-based Packet Forwarding Using Efficient Multi-dimensional Range Matching"
//! (SIGCOMM 1998), with tries instead of their binary search. A packet costs as many loads as the fields have bytes that
//! matter, whatever the rules are; but each rule costs a bit in each vector, so larger sets are left to the tree.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod field;

#[cfg(target_arch = "x86_64")]
pub use avx2::{FIRST_WORD, Words};

use crate::key::{Kind, TOGETHER};
use crate::rule::{Flat, UNMATCHED};
use field::{FIELDS, Field, Fields};

/// The bytes of a packet that are compared: an IPv4 header without options, and the first four bytes behind it.
pub type Header = [u8; 24];

/// Bits in a word of a vector.
const BITS: usize = u64::BITS as usize;
/// The most words of a vector.
const WORDS: usize = 8;
/// The bit of a rule that drops, beside its counter.
const DROPS: u16 = 1 << 15;

/// Rules as bit vectors. They find the same as the tree for every IPv4 packet without options that is no fragment and whose
/// transport header is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vectors {
    /// The fields, in the shortest vectors that have a bit for each rule.
    sized: SizedRules,
    /// For each interface that a rule names: its rules, and the rules for all interfaces.
    interfaces: Vec<(u16, [u64; WORDS])>,
    /// The rules for all interfaces.
    any_interface: [u64; WORDS],
}

/// The rules in vectors of four or of eight words.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SizedRules {
    Four(Rules<4>),
    Eight(Rules<WORDS>),
}

/// The rules in vectors of `W` words.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rules<const W: usize> {
    fields: Vec<Field<W>>,
    /// The rules for packets that only Linux may handle.
    linux_only: [u64; W],
    /// Counters of the other rules with [`DROPS`], by their bit.
    outcomes: Vec<u16>,
}

/// The vectors as they apply to one interface.
#[derive(Clone, Copy, Debug)]
pub struct VectorsOn<'v> {
    vectors: &'v Vectors,
    interface: [u64; WORDS],
}

/// What was found for eight packets, with a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matches {
    /// The first rule that matches drops the packet.
    pub drops: u8,
    /// No rule matches.
    pub unmatched: u8,
    /// Only Linux may handle the packet.
    pub linux_only: u8,
    /// The counters of the first rules that match, or [`UNMATCHED`].
    pub counters: [u16; TOGETHER],
}

impl Matches {
    /// No rule matches any packet.
    const NONE: Self = Self { drops: 0, unmatched: u8::MAX, linux_only: 0, counters: [UNMATCHED; TOGETHER] };
}

impl Vectors {
    /// The vectors for these rules; `None` if they are too many, or would need much memory.
    pub(crate) fn of(rules: &[Flat], linux_only: &[Flat]) -> Option<Self> {
        let mut listed: Vec<&Flat> = rules.iter().filter(|rule| applies(rule)).collect();
        let first = listed.len();
        listed.extend(linux_only.iter().filter(|rule| applies(rule)));
        let sized = match listed.len() {
            0 => return None,
            1..=256 => SizedRules::Four(Rules::of(&listed, first)?),
            257..=512 => SizedRules::Eight(Rules::of(&listed, first)?),
            _ => return None,
        };
        let mut named: Vec<u16> = listed.iter().filter_map(|rule| rule.only_interface()).collect();
        named.sort_unstable();
        named.dedup();
        let interfaces = named
            .into_iter()
            .map(|interface| (interface, vector_of(&listed, |rule| rule.is_on(Some(interface)))));
        let interfaces = interfaces.collect();
        Some(Self { sized, interfaces, any_interface: vector_of(&listed, |rule| rule.is_on(None)) })
    }

    /// The vectors for packets that arrive on an interface.
    pub fn on(&self, interface: u16) -> VectorsOn<'_> {
        let known = self.interfaces.binary_search_by_key(&interface, |(interface, _)| *interface);
        let rules = known.map_or(&self.any_interface, |at| &self.interfaces[at].1);
        VectorsOn { vectors: self, interface: *rules }
    }
}

impl VectorsOn<'_> {
    /// What is found for each of eight packets.
    #[inline]
    pub fn find_each(&self, headers: [&Header; TOGETHER]) -> Matches {
        match &self.vectors.sized {
            SizedRules::Four(rules) => rules.find_each(first(&self.interface), headers),
            SizedRules::Eight(rules) => rules.find_each(self.interface, headers),
        }
    }
}

/// Whether a rule can match an IPv4 packet whose transport header is complete.
fn applies(rule: &Flat) -> bool {
    rule.kinds & (Kind::Ports as u8 | Kind::None as u8) != 0
}

/// The first words of a vector.
#[inline(always)]
fn first<const W: usize>(vector: &[u64; WORDS]) -> [u64; W] {
    std::array::from_fn(|word| vector[word])
}

/// A vector of the rules for which a condition holds.
fn vector_of<const W: usize>(rules: &[&Flat], is_one: impl Fn(&Flat) -> bool) -> [u64; W] {
    let mut vector = [0; W];
    for (number, _) in rules.iter().enumerate().filter(|(_, rule)| is_one(rule)) {
        set(&mut vector, number);
    }
    vector
}

fn set(vector: &mut [u64], number: usize) {
    vector[number / BITS] |= 1 << (number % BITS);
}

impl<const W: usize> Rules<W> {
    /// From number `linux_only` on, rules are those for packets that only Linux may handle.
    fn of(rules: &[&Flat], linux_only: usize) -> Option<Self> {
        let mut fields = Fields::new(rules);
        for place in FIELDS {
            fields.add(place)?;
        }
        let mut last = [0; W];
        (linux_only..rules.len()).for_each(|number| set(&mut last, number));
        let mut outcomes: Vec<u16> = rules
            .iter()
            .map(|rule| if rule.drops == 0 { rule.counter } else { rule.counter | DROPS })
            .collect();
        outcomes.resize(W * BITS, UNMATCHED);
        Some(Self { fields: fields.list, linux_only: last, outcomes })
    }

    #[inline(always)]
    fn find_each(&self, interface: [u64; W], headers: [&Header; TOGETHER]) -> Matches {
        let mut matching = [interface; TOGETHER];
        for field in &self.fields {
            field.narrow(&headers, &mut matching);
        }
        self.meaning(&matching)
    }

    /// What it means that packets match these rules.
    #[inline(always)]
    fn meaning(&self, matching: &[[u64; W]; TOGETHER]) -> Matches {
        if matching.iter().flatten().fold(0, |any, word| any | word) == 0 {
            return Matches::NONE;
        }
        let mut found = Matches::default();
        let (linux_only, outcomes) = (self.linux_only, &self.outcomes[..]);
        for (lane, matching) in matching.iter().enumerate() {
            let (mut only_linux, mut lowest) = (0, W * BITS);
            for word in (0..W).rev() {
                only_linux |= matching[word] & linux_only[word];
                let rules = matching[word] & !linux_only[word];
                let number = word * BITS + rules.trailing_zeros() as usize;
                lowest = if rules == 0 { lowest } else { number };
            }
            let outcome = outcomes.get(lowest).copied().unwrap_or(UNMATCHED);
            found.counters[lane] = outcome & !DROPS;
            found.drops |= u8::from(outcome & DROPS != 0) << lane;
            found.unmatched |= u8::from(lowest == W * BITS) << lane;
            found.linux_only |= u8::from(only_linux != 0) << lane;
        }
        found
    }
}

#[cfg(test)]
mod tests;
