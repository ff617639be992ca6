use super::table::{Shape, Table};
use super::*;
use crate::published::Readers;
use crate::{BuildFib, Change, Dir24_8, Shortage, TableFull};
use bm_wire::prefix::Prefix;
use std::collections::HashSet;

fn p(text: &str) -> Prefix<u32> {
    text.parse().unwrap()
}

fn build(routes: &[(&str, u32)], readers: &Readers) -> Chunk17 {
    Chunk17::build(routes.iter().map(|(prefix, hop)| (p(prefix), NextHop(*hop))), readers).unwrap()
}

/// As a program elsewhere reads it, by the contract alone: bytes, no words.
fn by_the_contract(fib: &Chunk17Fib, address: u32) -> u32 {
    let byte = |at: usize| (fib.words[at / 8].load(Relaxed) >> (at % 8 * 8)) as u8;
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| byte(at + i)));
    let half = |at: usize| u32::from(u16::from_le_bytes([byte(2 * at), byte(2 * at + 1)]));
    let up_to = |at: usize, bit: u32| (long(at) & (2u64 << bit).wrapping_sub(1)).count_ones() as usize;
    let find = |block: usize, key: u32| {
        let first = if key < 64 { up_to(block, key) } else { long(block).count_ones() as usize };
        half(block / 2 + 7 + first + if key < 64 { 0 } else { up_to(block + 8, key - 64) })
    };
    let find_wide = |block: usize, key: u32| {
        let word = (key / 64) as usize;
        half(block / 2 + 17 + usize::from(byte(block + 32 + word)) + up_to(block + 8 * word, key % 64))
    };
    let entry = fib.root[(address >> 15) as usize].load(Relaxed);
    let (offset, key) = ((entry & 0x3f_ffff) as usize * 8, address >> 8 & 0x7f);
    match entry >> 30 {
        0 => entry,
        2 => find(offset, key),
        3 if long(offset + 8 * (key / 64) as usize) >> (key % 64) & 1 == 0 => find(offset + 16, key),
        _ => find_wide(offset + 8 * find(offset + 16, key) as usize, address & 0xff),
    }
}

#[test]
fn the_contract_and_the_lookups_agree() {
    let routes = [
        ("0.0.0.0/0", 65_535),
        ("10.0.0.0/8", 2),
        ("10.1.0.0/16", 0),
        ("10.1.64.0/18", 4),
        ("10.1.255.0/24", 5),
        ("10.2.3.128/25", 6),
        ("10.2.4.0/32", 7),
        ("10.2.255.255/32", 8),
    ];
    let table = build(&routes, &Readers::new());
    let entry = |slot: usize| table.fib().root[slot].load(Relaxed) >> 30;
    let slots = [0, 0x0a00 << 1, 0x0a01 << 1, 0x0a01 << 1 | 1, 0x0a02 << 1, 0x0a02 << 1 | 1];
    assert_eq!(slots.map(entry), [0, 0, 2, 2, 3, 3]);
    for address in (0x0a00_ff00..0x0a03_0100).chain([0, u32::MAX]) {
        let expected = table.rib().longest_match(address).map_or(0, |(_, hop)| hop.0);
        assert_eq!(by_the_contract(table.fib(), address), expected, "{address:#x}");
        assert_eq!(table.fib().lookup(address).0, expected, "{address:#x}");
    }
}

#[test]
fn names_65_536_next_hops_and_no_more() {
    let readers = Readers::new();
    let mut table = build(&[("10.0.0.0/24", 65_535)], &readers);
    let hop = NextHop(65_536);
    let changes = [Change::Set(p("10.0.1.0/24"), NextHop(1)), Change::Set(p("10.0.0.0/24"), hop)];
    let full = TableFull { prefix: p("10.0.0.0/24"), applied: 1, shortage: Shortage::NextHop(hop) };
    assert_eq!(table.apply(&changes), Err(full));
    assert_eq!(table.fib().lookup(0x0a00_0001), NextHop(65_535));
    assert_eq!(table.fib().lookup(0x0a00_0101), NextHop(1));
    assert_eq!(table.rib().len(), 2);
    let refused = Chunk17::build([(p("0.0.0.0/0"), hop)], &readers);
    assert_eq!(refused.map(drop), Err(TableFull { prefix: p("0.0.0.0/0"), applied: 0, ..full }));
}

#[test]
fn equal_blocks_are_one() {
    let one = build(&[("10.0.0.0/24", 1)], &Readers::new()).memory_bytes();
    let two = build(&[("10.0.0.0/24", 1), ("10.1.0.0/24", 1)], &Readers::new());
    assert_eq!(two.memory_bytes(), one);
    let other = build(&[("10.0.0.0/24", 1), ("10.1.0.0/24", 2)], &Readers::new());
    assert!(other.memory_bytes() > one);
}

#[test]
fn a_change_that_does_not_fit_leaves_the_table_as_it_was() {
    let readers = Readers::new();
    let mut reader = readers.register();
    let mut table = build(&[("0.0.0.0/0", 9)], &readers);
    // Every /24 of a /16 its own next hop, and other ones in each: two blocks of 34 words that none shares.
    let slot = |slot: u32| {
        let route = move |third: u32| {
            let prefix = Prefix::containing(slot << 16 | third << 8, 24).unwrap();
            Change::Set(prefix, NextHop((3 * slot + 5 * third * third) & 0xffff))
        };
        (0..256).map(route).collect::<Vec<_>>()
    };
    let filled =
        (0..0x10000).find(|i| {
            let full = table.apply(&slot(*i)).err();
            assert!(full.is_none_or(
                |full| full.shortage == Shortage::Blocks && i << 16 == full.prefix.first() & !0xffff
            ));
            full.is_some()
        });
    let filled = filled.unwrap();
    assert!(filled > 0x7000, "{filled:#x} slots fit");
    let rib: Rib = table.rib().clone();
    assert_eq!(table.apply(&slot(filled + 1)).unwrap_err().shortage, Shortage::Blocks);
    for (prefix, _) in rib.iter() {
        let expected = table.rib().longest_match(prefix.first()).map(|(_, hop)| hop);
        assert_eq!(Some(table.fib().lookup(prefix.first())), expected, "{prefix}");
    }
    reader.quiescent();
    table.apply(&[Change::Remove(p("0.0.0.0/0"))]).unwrap();
}

type Rib = crate::rib::Rib<u32>;

/// Every block that a slot names lies alone in its words.
fn assert_apart<F: Shape>(table: &Table<F>) {
    let root = F::root(table.fib()).iter().map(|entry| entry.load(Relaxed));
    let blocks: HashSet<u32> = root.filter_map(F::offset).collect();
    assert_eq!(blocks.len(), table.blocks());
}

/// Random updates of a made-up table, whose more-specifics come and go: holes must not add up.
#[test]
fn a_million_updates_leave_few_holes() {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) as u32
    };
    let mut change = || {
        let longest = if next() % 16 == 0 { 32 } else { 24 };
        let length = [17, 20, 22, 23, 24, 24, 24, longest][next() as usize % 8];
        // Slots as different as real ones are: few full, most nearly empty.
        let slot = (next() % 4096 * (next() % 4096)) >> 12;
        let prefix = Prefix::containing(slot << 16 | next() & 0xffff, length).unwrap();
        if next() % 5 < 2 { Change::Remove(prefix) } else { Change::Set(prefix, NextHop(next() % 1000)) }
    };
    let readers = Readers::new();
    let mut reader = readers.register();
    let (mut table, mut plain) =
        (Chunk17::build([], &readers).unwrap(), Dir24_8::build([], &readers).unwrap());
    let mut most = 0f64;
    for _ in 0..1000 {
        let changes: Vec<_> = (0..1000).map(|_| change()).collect();
        table.apply(&changes).unwrap();
        plain.apply(&changes).unwrap();
        reader.quiescent();
        most = most.max(table.extent_bytes() as f64 / (table.live_bytes() + (64 << 10)) as f64);
    }
    assert!(most < 3.0, "{most} times what is linked");
    table.apply(&[]).unwrap();
    let (held, live) = (table.extent_bytes(), table.live_bytes());
    assert!((live..2 * live + (64 << 10)).contains(&held), "{held} bytes hold {live}");
    assert_apart(&table);
    let plain = plain.reader();
    for address in (0..0x1000_0000u32).step_by(61) {
        assert_eq!(table.fib().lookup(address), plain.lookup(address), "{address:#x}");
    }
}
