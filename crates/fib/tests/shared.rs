//! A table is built in a memfd and read through a second mapping: both must agree, also after updates.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod common;

use bm_fib::memory::memfd;
use bm_fib::published::Readers;
use bm_fib::{
    BuildFib, Chunk17, Chunk17Fib, Dir18, Dir18Fib, Dir24_8, Dir24_8Fib, Range6, Range6Fib, SharedFib, Source,
};
use common::shared::shared;

#[test]
fn dir24_8_in_a_memfd() {
    shared::<Dir24_8, Dir24_8Fib>();
}

#[test]
fn chunk17_in_a_memfd() {
    shared::<Chunk17, Chunk17Fib>();
}

#[test]
fn dir18_in_a_memfd() {
    shared::<Dir18, Dir18Fib>();
}

#[test]
fn range6_in_a_memfd() {
    shared::<Range6, Range6Fib>();
}

#[test]
fn a_reader_refuses_a_table_of_another_structure() {
    let file = memfd(c"table").unwrap();
    Range6::build_in([], &Readers::new(), &Source::shared(&file).unwrap()).unwrap();
    assert!(Dir24_8Fib::attach(&Source::attached(&file).unwrap()).is_err());
}
