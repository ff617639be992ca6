//! Compares the structures with a plain trie, on random nested tables and on real ones, with random updates.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod common;

use bm_fib::{Chunk17, Dir18, Dir24_8, Range6};
use common::agree::{changes, check, churn};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn dir24_8_on_nested_tables(changes in changes::<u32>(&[8, 16, 24, 28, 32], 40), seed: u64) {
        check::<Dir24_8>(&changes, seed);
    }

    #[test]
    fn chunk17_on_nested_tables(changes in changes::<u32>(&[8, 16, 20, 24, 28, 32], 60), seed: u64) {
        check::<Chunk17>(&changes, seed);
    }

    #[test]
    fn dir18_on_nested_tables(changes in changes::<u32>(&[8, 18, 24, 26, 32], 60), seed: u64) {
        check::<Dir18>(&changes, seed);
    }

    #[test]
    fn range6_on_nested_tables(changes in changes::<u128>(&[8, 16, 32, 48, 64, 80, 96, 112, 128], 120), seed: u64) {
        check::<Range6>(&changes, seed);
    }

    /// Dense enough for nodes to split and merge.
    #[test]
    fn range6_on_dense_tables(changes in changes::<u128>(&[42, 44, 46, 48, 50, 64], 400), seed: u64) {
        check::<Range6>(&changes, seed);
    }
}

#[test]
fn dir24_8_on_the_real_table() {
    churn::<Dir24_8>("rib4-full.txt.gz", 100_000, 100);
}

#[test]
fn dir18_on_the_real_table() {
    churn::<Dir18>("rib4-full.txt.gz", 100_000, 100);
}

#[test]
fn range6_on_the_real_table() {
    churn::<Range6>("rib6-full.txt.gz", 100_000, 100);
}

#[test]
fn range6_in_bulk_on_the_real_table() {
    churn::<Range6>("rib6-full.txt.gz", 120_000, 10_000);
}

#[test]
fn chunk17_on_the_real_table() {
    churn::<Chunk17>("rib4-full.txt.gz", 100_000, 100);
}
