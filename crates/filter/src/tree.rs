//! The tree: words that refer to words, and finally to rules. `node.rs` says what is in a word.

use crate::grow::Grower;
use crate::key::Key;
use crate::node::{Cut, LEAF};
use crate::rule::Flat;
use std::fmt;

/// The maximum number of words.
pub const ROOM_WORDS: usize = 1 << 18;
/// The maximum number of flat rules.
pub const ROOM_RULES: usize = 1 << 14;

const PLACE: u32 = ROOM_WORDS as u32 - 1;
/// The most rules in a leaf, unless that needs too many cuts.
const LEAF_RULES: usize = 4;

/// More flat rules than there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany {
    /// Their number.
    pub rules: usize,
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "too many filter rules: {} of at most {ROOM_RULES} (a rule that accepts by port counts twice)",
            self.rules
        )
    }
}

impl std::error::Error for TooMany {}

/// Rules, and the tree to find the first that matches a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Nodes and lists.
    pub words: Vec<u32>,
    /// Where the search starts.
    pub root: u32,
    /// In their order; followed by those of claims, and then those for packets that only Linux may handle.
    pub rules: Vec<Flat>,
    /// Where the search among claims starts; `None` without claims.
    pub claims: Option<u32>,
    /// Where the search for packets that only Linux may handle starts; `None` if there are none.
    pub linux_only: Option<u32>,
    /// Whether a rule drops packets.
    pub drops: bool,
}

/// The limits of rules per leaf to try, until all rules are in one leaf.
fn leaves() -> impl Iterator<Item = usize> {
    std::iter::successors(Some(LEAF_RULES), |leaf| (*leaf <= ROOM_RULES).then_some(leaf * 4))
}

impl Default for Tree {
    /// The tree without rules: an empty list, so that a search ends there.
    fn default() -> Self {
        Self { words: vec![0], root: LEAF, rules: Vec::new(), claims: None, linux_only: None, drops: false }
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

    /// The same with claims, which are searched separately.
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
        let grown = |leaf| {
            let mut grower = Grower::new(&rules, Vec::new(), leaf, ROOM_WORDS);
            let (root, claims) = (grower.grow(0..of_rules)?, grower.grow(of_rules..all)?);
            Some((grower.into_words(), root, claims))
        };
        // With leaves that hold all rules it fits for certain.
        let (words, root, claims) = leaves().find_map(grown).ok_or(TooMany { rules: rules.len() })?;
        let claims = (all > of_rules).then_some(claims);
        Ok(Self { words, root, rules, claims, linux_only: None, drops })
    }

    /// The same rules and claims, with rules for packets that only Linux may handle, which are searched separately.
    /// The existing part is not rebuilt.
    ///
    /// # Errors
    /// If there are too many.
    pub fn with_linux_only(&self, linux_only: Vec<Flat>) -> Result<Self, TooMany> {
        let first = self.rules.len() as u32;
        let rules = [&self.rules[..], &linux_only].concat();
        if linux_only.is_empty() || rules.len() > ROOM_RULES {
            let none = Self { linux_only: None, ..self.clone() };
            return if linux_only.is_empty() { Ok(none) } else { Err(TooMany { rules: rules.len() }) };
        }
        let grown = |leaf| {
            let mut grower = Grower::new(&rules, self.words.clone(), leaf, ROOM_WORDS);
            let root = grower.grow(first..rules.len() as u32)?;
            Some((grower.into_words(), root))
        };
        let (words, root) = leaves().find_map(grown).ok_or(TooMany { rules: rules.len() })?;
        Ok(Self { words, rules, linux_only: Some(root), ..*self })
    }

    /// The first rule that matches.
    pub fn find(&self, key: &Key) -> Option<&Flat> {
        self.find_from(self.root, key)
    }

    /// The first claim that matches.
    pub fn find_claim(&self, key: &Key) -> Option<&Flat> {
        self.find_from(self.claims?, key)
    }

    /// Whether only Linux may handle a packet.
    pub fn is_linux_only(&self, key: &Key) -> bool {
        self.linux_only.is_some_and(|root| self.find_from(root, key).is_some())
    }

    fn find_from(&self, mut word: u32, key: &Key) -> Option<&Flat> {
        while word & LEAF == 0 {
            word = *self.words.get(((word & PLACE) + Cut::child(word, key)) as usize)?;
        }
        let place = (word & PLACE) as usize;
        let count = *self.words.get(place)? as usize;
        let list = self.words.get(place + 1..place + 1 + count)?;
        list.iter().filter_map(|rule| self.rules.get(*rule as usize)).find(|rule| rule.matches(key))
    }

    /// Cuts above the deepest leaf, and rules in the longest list: the maximum cost of a packet.
    pub fn worst(&self) -> (usize, usize) {
        self.worst_below(self.root)
    }

    fn worst_below(&self, word: u32) -> (usize, usize) {
        let place = (word & PLACE) as usize;
        if word & LEAF != 0 {
            return (0, self.words.get(place).map_or(0, |count| *count as usize));
        }
        let children = 2usize << (word >> 27 & 7);
        let below = self.words.get(place..place + children).unwrap_or_default();
        let worst = below.iter().map(|child| self.worst_below(*child));
        let (deep, long) = worst.fold((0, 0), |(deep, long), (d, l)| (deep.max(d), long.max(l)));
        (deep + 1, long)
    }
}
