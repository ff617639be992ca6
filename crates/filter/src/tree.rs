//! The tree: words that refer to words, and finally to rules. `node.rs` says what is in a word.

use crate::grow::Grower;
use crate::key::{Key, TOGETHER};
use crate::node::{Cut, LEAF, ROOM_WORDS, list, place, roots, worst};
use crate::rule::{Flat, ROOM_RULES};
use crate::vectors::Vectors;
use std::sync::Arc;

/// The number of no rule.
const NONE: u32 = u32::MAX;

/// Words for the trees of the rules, and for those and the claims: a set of the largest size leaves room for the lists of
/// the others.
const RULES_WORDS: usize = ROOM_WORDS / 2;
const CLAIMS_WORDS: usize = ROOM_WORDS / 4 * 3;

/// More flat rules than there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "too many filter rules: {} of at most {ROOM_RULES} (a rule that accepts by port counts twice, or three \
     times if it is for both address families)",
    .rules
)]
pub struct TooMany {
    /// Their number.
    pub rules: usize,
}

/// Rules, and the tree to find the first that matches a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Nodes and lists.
    pub words: Vec<u32>,
    /// Where the search starts.
    pub root: u32,
    /// The rules in their order, then claims, then rules for packets that only Linux may handle.
    pub rules: Vec<Flat>,
    /// Where the search among claims starts; `None` without claims.
    pub claims: Option<u32>,
    /// Where the search for packets that only Linux may handle starts; `None` if there are none.
    pub linux_only: Option<u32>,
    /// Whether a rule drops packets.
    pub drops: bool,
    /// The rules without claims as bit vectors, if they are few enough.
    pub vectors: Option<Arc<Vectors>>,
    /// How many of the rules are neither claims nor for packets that only Linux may handle.
    ordinary: usize,
}

impl Default for Tree {
    /// The tree without rules: an empty list, so that a search ends there.
    fn default() -> Self {
        Self {
            words: vec![0],
            root: LEAF,
            rules: Vec::new(),
            claims: None,
            linux_only: None,
            drops: false,
            vectors: None,
            ordinary: 0,
        }
    }
}

impl Tree {
    /// The tree for these rules.
    ///
    /// # Errors
    /// If there are too many.
    pub fn grow(rules: Vec<Flat>) -> Result<Self, TooMany> {
        Self::grow_with(rules, Vec::new())
    }

    /// The tree for these rules and for claims, which are searched separately.
    ///
    /// # Errors
    /// If there are too many.
    pub fn grow_with(mut rules: Vec<Flat>, claims: Vec<Flat>) -> Result<Self, TooMany> {
        let of_rules = rules.len() as u32;
        let drops = rules.iter().any(|rule| rule.drops != 0);
        rules.extend(claims);
        let all = rules.len() as u32;
        if rules.len() > ROOM_RULES {
            return Err(TooMany { rules: rules.len() });
        }
        let mut grower = Grower::new(&rules, Vec::new());
        let too_many = TooMany { rules: rules.len() };
        let root = grower.grow(0..of_rules, RULES_WORDS).ok_or(too_many)?;
        let claims = grower.grow(of_rules..all, CLAIMS_WORDS).ok_or(too_many)?;
        let words = grower.into_words();
        let claims = (all > of_rules).then_some(claims);
        let ordinary = of_rules as usize;
        let vectors = Vectors::of(&rules[..ordinary], &[]).map(Arc::new);
        Ok(Self { words, root, rules, claims, linux_only: None, drops, vectors, ordinary })
    }

    /// A copy of the tree with rules for packets that only Linux may handle, which are searched separately. The existing
    /// part is not rebuilt.
    ///
    /// # Errors
    /// If there are too many.
    pub fn with_linux_only(&self, linux_only: Vec<Flat>) -> Result<Self, TooMany> {
        let first = self.rules.len() as u32;
        let rules = [&self.rules[..], &linux_only].concat();
        if rules.len() > ROOM_RULES {
            return Err(TooMany { rules: rules.len() });
        }
        let vectors = Vectors::of(&self.rules[..self.ordinary], &linux_only).map(Arc::new);
        if linux_only.is_empty() {
            return Ok(Self { linux_only: None, vectors, ..self.clone() });
        }
        let mut grower = Grower::new(&rules, self.words.clone());
        let root =
            grower.grow(first..rules.len() as u32, ROOM_WORDS).ok_or(TooMany { rules: rules.len() })?;
        let words = grower.into_words();
        Ok(Self { words, rules, linux_only: Some(root), vectors, ..*self })
    }

    /// The first rule that matches.
    pub fn find(&self, key: &Key) -> Option<&Flat> {
        self.rule(self.number_of(self.root, key))
    }

    /// The first claim that matches.
    pub fn find_claim(&self, key: &Key) -> Option<&Flat> {
        self.rule(self.number_of(self.claims?, key))
    }

    /// Whether only Linux may handle a packet.
    pub fn is_linux_only(&self, key: &Key) -> bool {
        self.linux_only.is_some_and(|root| self.number_of(root, key) != NONE)
    }

    /// The first rule that matches each of eight packets, which are all IPv4 or all IPv6.
    pub fn find_each(&self, keys: &[Key; TOGETHER]) -> [Option<&Flat>; TOGETHER] {
        self.numbers_of(self.root, keys).map(|number| self.rule(number))
    }

    /// A bit for each of eight such packets that only Linux may handle.
    pub fn are_linux_only(&self, keys: &[Key; TOGETHER]) -> u8 {
        let Some(root) = self.linux_only else { return 0 };
        let numbers = self.numbers_of(root, keys);
        numbers.iter().enumerate().fold(0, |bits, (lane, number)| bits | u8::from(*number != NONE) << lane)
    }

    #[inline(always)]
    fn rule(&self, number: u32) -> Option<&Flat> {
        self.rules.get(number as usize)
    }

    /// The number of the first rule that matches, or [`NONE`].
    fn number_of(&self, root: u32, key: &Key) -> u32 {
        let mut number = NONE;
        for root in roots(&self.words, &root) {
            let mut word = *root;
            while word & LEAF == 0 {
                word =
                    self.words.get(place(word) + Cut::child(word, key) as usize).map_or(LEAF, |word| *word);
            }
            number = number.min(self.first_in_leaf(word, |rule| rule.matches(key)));
        }
        number
    }

    /// [`number_of`](Self::number_of) for eight packets.
    #[inline]
    fn numbers_of(&self, root: u32, keys: &[Key; TOGETHER]) -> [u32; TOGETHER] {
        let mut numbers = [NONE; TOGETHER];
        for root in roots(&self.words, &root) {
            let leaves = self.leaves_of(*root, keys);
            if keys[0].is_ipv6() {
                for lane in 0..TOGETHER {
                    let first = self.first_in_leaf(leaves[lane], |rule| rule.matches_ipv6(&keys[lane]));
                    numbers[lane] = numbers[lane].min(first);
                }
            } else {
                for lane in 0..TOGETHER {
                    let first = self.first_in_leaf(leaves[lane], |rule| rule.matches_ipv4(&keys[lane]));
                    numbers[lane] = numbers[lane].min(first);
                }
            }
        }
        numbers
    }

    /// The words of the leaves of eight packets below a root. All packets go down one level at a time, so that no branch
    /// depends on where a single packet's leaf is, and loads of several packets are under way.
    #[inline(always)]
    fn leaves_of(&self, root: u32, keys: &[Key; TOGETHER]) -> [u32; TOGETHER] {
        let (mut words, mut all) = ([root; TOGETHER], root);
        while all & LEAF == 0 {
            all = LEAF;
            for (word, key) in words.iter_mut().zip(keys) {
                let child = place(*word) + Cut::child(*word, key) as usize;
                // What is read for a leaf is not used. In a tree that was grown here every inner node has its children.
                let below = self.words.get(child).copied().unwrap_or(LEAF);
                *word = if *word & LEAF == 0 { below } else { *word };
                all &= *word;
            }
        }
        words
    }

    #[inline(always)]
    fn first_in_leaf(&self, word: u32, matches: impl Fn(&Flat) -> bool) -> u32 {
        let mut numbers = list(&self.words, word).iter();
        let first = numbers.find(|number| self.rules.get(**number as usize).is_some_and(&matches));
        first.map_or(NONE, |number| *number)
    }

    /// The maximum cost of a packet: cuts above the deepest leaf, and rules in the longest list, each added up over the
    /// trees of a fork.
    pub fn worst(&self) -> (usize, usize) {
        worst(&self.words, self.root)
    }
}
