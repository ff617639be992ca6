//! Every /24 that IPv4 has, 2^24 routes: what fits is found, what does not is refused with a reason, and nothing else
//! changes.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

use bm_fib::published::Readers;
use bm_fib::{BuildFib, Change, Chunk17, Dir18, NextHop, Shortage};
use bm_wire::prefix::Prefix;

/// Routes of a /24 each.
const ROUTES: u32 = 1 << 24;
/// As many as control changes at a time.
const BATCH: u32 = 1 << 12;
/// Refused routes after which a table counts as full.
const REFUSED: usize = 1000;
/// Where everything else goes.
const DEFAULT: NextHop = NextHop(1);

fn prefix(number: u32) -> Prefix<u32> {
    Prefix::containing(number << 8, 24).unwrap()
}

/// A mixture of the number's bits, so that no two blocks of a table are equal and can share their memory.
fn hop(number: u32) -> NextHop {
    let mixed = (number ^ number >> 15).wrapping_mul(0x85eb_ca6b);
    NextHop(2 + ((mixed ^ mixed >> 13).wrapping_mul(0xc2b2_ae35) >> 20))
}

/// Adds a batch of routes; those that are refused are skipped, as control does.
fn add(table: &mut impl BuildFib<Address = u32>, numbers: std::ops::Range<u32>, refused: &mut Vec<u32>) {
    let changes: Vec<_> = numbers.clone().map(|number| Change::Set(prefix(number), hop(number))).collect();
    let mut at = 0;
    while let Err(full) = table.apply(&changes[at..]) {
        at += full.applied;
        let number = numbers.start + at as u32;
        assert_eq!(full.prefix, prefix(number));
        assert!(matches!(full.shortage, Shortage::Blocks | Shortage::Memory), "{full}");
        refused.push(number);
        at += 1;
    }
}

fn every_24<B: BuildFib<Address = u32>>(name: &str) {
    let readers = Readers::new();
    let mut reader = readers.register();
    let mut table = B::build([(Prefix::default(), DEFAULT)], &readers).unwrap();
    let empty = table.memory_bytes();
    let (mut next, mut refused) = (0, Vec::new());
    while next < ROUTES && refused.len() < REFUSED {
        add(&mut table, next..next + BATCH, &mut refused);
        next += BATCH;
        reader.quiescent();
    }
    println!("{name}: {next} routes, {} refused, {} MiB", refused.len(), table.memory_bytes() >> 20);
    assert!(refused.len() >= REFUSED || next == ROUTES);
    assert!(next > 1_000_000, "not even a full table of the Internet fits");
    let fib = table.reader();
    let mut skipped = refused.iter().peekable();
    for number in 0..next {
        let expected =
            if skipped.next_if(|refused| **refused == number).is_some() { DEFAULT } else { hop(number) };
        for address in [number << 8, number << 8 | 0xff] {
            assert_eq!(fib.lookup(address), expected, "{}", prefix(number));
        }
    }
    assert_eq!(table.rib().len(), next as usize - refused.len() + 1);
    // What is removed makes room for what was refused.
    for first in (0..next).step_by(BATCH as usize) {
        let changes: Vec<_> = (first..first + BATCH).map(|number| Change::Remove(prefix(number))).collect();
        table.apply(&changes).unwrap();
        reader.quiescent();
    }
    table.reclaim();
    let mut late = Vec::new();
    for number in refused {
        add(&mut table, number..number + 1, &mut late);
        assert_eq!((fib.lookup(number << 8), late.len()), (hop(number), 0), "{}", prefix(number));
    }
    assert_eq!(fib.lookup(0x0101_0101), DEFAULT);
    println!("{name}: {empty} bytes when empty, {} at the end", table.memory_bytes());
}

#[test]
fn dir18_takes_or_refuses_every_24() {
    every_24::<Dir18>("dir18");
}

#[test]
fn chunk17_takes_or_refuses_every_24() {
    every_24::<Chunk17>("chunk17");
}
