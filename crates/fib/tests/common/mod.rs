//! Shared by the tests: a plain trie as oracle, seeded random numbers, the real tables.
#![allow(dead_code, clippy::unwrap_used)] // each test uses only some items; helpers of tests are tests

pub mod agree;
pub mod shared;
pub mod stress;

use bm_fib::{Change, NextHop};
use bm_wire::prefix::{Address, Prefix};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::str::FromStr;

/// The simplest longest-prefix match: a trie with a node for each bit.
#[derive(Default)]
pub struct Plain {
    hop: Option<NextHop>,
    children: [Option<Box<Plain>>; 2],
}

impl Plain {
    pub fn apply<A: Address>(&mut self, change: &Change<A>) {
        let (prefix, hop) = match *change {
            Change::Set(prefix, hop) => (prefix, Some(hop)),
            Change::Remove(prefix) => (prefix, None),
        };
        let mut node = self;
        for bit in 0..prefix.length() {
            node = node.children[usize::from(prefix.first().bit(bit))].get_or_insert_default();
        }
        node.hop = hop;
    }

    pub fn lookup<A: Address>(&self, address: A) -> NextHop {
        let (mut node, mut found) = (self, self.hop);
        for bit in 0..A::WIDTH {
            match &node.children[usize::from(address.bit(bit))] {
                Some(child) => node = child,
                None => break,
            }
            found = node.hop.or(found);
        }
        found.unwrap_or(NextHop::NONE)
    }
}

/// Functions on addresses that only tests need.
pub trait Number: Address {
    fn number(bits: u128) -> Self;
    fn next(self) -> Self;
    fn before(self) -> Self;
    fn either(self, low: Self) -> Self {
        self.or(low)
    }
}

impl Number for u32 {
    fn number(bits: u128) -> Self {
        bits as u32
    }
    fn next(self) -> Self {
        self.wrapping_add(1)
    }
    fn before(self) -> Self {
        self.wrapping_sub(1)
    }
}

impl Number for u128 {
    fn number(bits: u128) -> Self {
        bits
    }
    fn next(self) -> Self {
        self.wrapping_add(1)
    }
    fn before(self) -> Self {
        self.wrapping_sub(1)
    }
}

/// splitmix64: the same seed, the same run.
#[derive(Clone)]
pub struct Seeded(pub u64);

impl Seeded {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn address<A: Number>(&mut self) -> A {
        A::number(u128::from(self.next()) << 64 | u128::from(self.next()))
    }

    /// Any address of the prefix.
    pub fn within<A: Number>(&mut self, prefix: Prefix<A>) -> A {
        prefix.first().either(self.address::<A>().and(A::mask(prefix.length()).not()))
    }

    /// Addresses in and around a prefix.
    pub fn around<A: Number>(&mut self, prefix: Prefix<A>) -> [A; 5] {
        let (first, last) = (prefix.first(), prefix.last());
        [first, last, first.before(), last.next(), self.within(prefix)]
    }
}

/// The real table of this name; `None`, with a message, if the folder with these tables does not exist.
pub fn real_table<A: Address>(name: &str) -> Option<Vec<(Prefix<A>, NextHop)>>
where
    Prefix<A>: FromStr<Err: std::fmt::Debug>,
{
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name);
    let Ok(file) = std::fs::File::open(&path) else {
        eprintln!("skipped: {name} is not there");
        return None;
    };
    let lines = BufReader::new(flate2::read::GzDecoder::new(file)).lines();
    let route = |line: String| {
        let (prefix, hop) = line.split_once(' ').unwrap();
        (prefix.parse().unwrap(), NextHop(hop.parse().unwrap()))
    };
    Some(lines.map(|line| route(line.unwrap())).collect())
}
