//! DXR against a plain trie, under churn, and through a second mapping: the tests of bm-fib's own structures.

#[path = "../../fib/tests/common/mod.rs"]
mod common;

use bm_eval::bench::lookup::dxr::{Dxr, DxrFib};
use common::agree::{changes, check, churn};
use common::shared::shared;
use common::stress::stress;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn d16r_on_nested_tables(changes in changes::<u32>(&[16, 20, 24, 28, 32], 60), seed: u64) {
        check::<Dxr<16, 0>>(&changes, seed);
    }

    #[test]
    fn d18r_on_nested_tables(changes in changes::<u32>(&[16, 18, 24, 28, 32], 60), seed: u64) {
        check::<Dxr<18, 0>>(&changes, seed);
    }

    #[test]
    fn d20r_on_nested_tables(changes in changes::<u32>(&[16, 20, 24, 28, 32], 60), seed: u64) {
        check::<Dxr<20, 0>>(&changes, seed);
    }

    #[test]
    fn d16x4r_on_nested_tables(changes in changes::<u32>(&[16, 20, 24, 28, 32], 60), seed: u64) {
        check::<Dxr<16, 4>>(&changes, seed);
    }

    #[test]
    fn d14x6r_on_nested_tables(changes in changes::<u32>(&[14, 20, 24, 28, 32], 60), seed: u64) {
        check::<Dxr<14, 6>>(&changes, seed);
    }

    #[test]
    fn d15x1r_on_nested_tables(changes in changes::<u32>(&[15, 16, 24, 28, 32], 60), seed: u64) {
        check::<Dxr<15, 1>>(&changes, seed);
    }
}

#[test]
fn d18r_on_the_real_table() {
    churn::<Dxr<18, 0>>("rib4-full.txt.gz", 100_000, 100);
}

#[test]
fn d16x4r_on_the_real_table() {
    churn::<Dxr<16, 4>>("rib4-full.txt.gz", 100_000, 100);
}

#[test]
fn d18r_under_churn() {
    // Four host routes per slot.
    stress::<Dxr<18, 0>>(0x0a00_0001, 12, 20);
}

#[test]
fn d16x4r_under_churn() {
    // The slots of one extension are added and removed one by one.
    stress::<Dxr<16, 4>>(0x0a00_0001, 12, 20);
}

#[test]
fn dxr_in_a_memfd() {
    shared::<Dxr<16, 4>, DxrFib<16, 4>>();
}
