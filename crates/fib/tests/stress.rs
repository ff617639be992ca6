//! Readers look up addresses while the writer changes the table: every result must have been correct at some time
//! during the lookup.

mod common;

use bm_fib::{Chunk17, Dir18, Dir24_8, Range6};
use common::stress::stress;

#[test]
fn dir24_8_under_churn() {
    // Each host route is in a slot of its own, covered by a /20.
    stress::<Dir24_8>(0x0a00_0001, 12, 20);
}

#[test]
fn dir18_under_churn() {
    // Four host routes in each slot of the root, under a /20 or a /24 each.
    stress::<Dir18>(0x0a00_0001, 12, 20);
    stress::<Dir18>(0x0a00_0001, 12, 24);
}

#[test]
fn range6_under_churn() {
    // Adjacent host routes in one /64, so that they share nodes, each covered by a /112.
    stress::<Range6>(0x2001_0db8 << 96 | 1, 16, 112);
}

#[test]
fn range6_under_churn_of_short_routes() {
    stress::<Range6>(0x2001_0000 << 96 | 1, 100, 28);
}

#[test]
fn chunk17_under_churn() {
    // Many host routes per slot, so that blocks are deep and large.
    stress::<Chunk17>(0x0a00_0001, 12, 20);
}
