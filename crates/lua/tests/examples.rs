//! Runs the `test.lua` of each program in `examples/lua`.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use bm_lua::{NoNatives, PAYLOAD, Program, ProgramSource, World};

fn run(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/lua").join(name).join("test.lua");
    let world = World::new(Arc::new(NoNatives), Vec::new(), PAYLOAD).unwrap();
    let program =
        Program { source: ProgramSource::File(path), arguments: Vec::new(), world, setup: None, workers: 1 };
    if let Err(error) = program.run() {
        panic!("{name}: {error}");
    }
}

#[test]
fn firewall_lets_replies_in() {
    run("firewall");
}

#[test]
fn generator_keeps_its_rate() {
    run("generator");
}

#[test]
fn replay_keeps_order_and_time() {
    run("replay");
}

#[test]
fn ttl_guard_passes_only_neighbors() {
    run("ttl-guard");
}

#[test]
fn switch_learns_mac_addresses() {
    run("switch");
}
