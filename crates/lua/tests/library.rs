//! Runs each test in `tests/lua`: Lua programs that fail by an error and exit with status 43 if they are skipped.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use bm_lua::{NoNatives, Outcome, PAYLOAD, Program, ProgramSource, World};

fn run(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lua").join(name).with_extension("lua");
    let world = World::new(Arc::new(NoNatives), Vec::new(), PAYLOAD).unwrap();
    let program =
        Program { source: ProgramSource::File(path), arguments: Vec::new(), world, setup: None, workers: 1 };
    match program.run() {
        Ok(Outcome::Done | Outcome::Exit(0)) => {}
        Ok(Outcome::Exit(43)) => println!("{name}: skipped"),
        Ok(Outcome::Exit(status)) => panic!("{name}: exit status {status}"),
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn filters_agree_with_libpcap() {
    run("filter_libpcap");
}

#[test]
fn filters_are_the_same_as_instructions_of_bpf() {
    run("filter_bpf");
}

#[test]
fn core_lib_does_what_programs_expect() {
    run("core_lib");
}

#[test]
fn packets_are_compatible_with_apps_of_snabb() {
    run("packets");
}

#[test]
fn names_of_system_calls_are_left_to_programs() {
    run("names");
}

#[test]
fn the_reference_names_every_function() {
    run("reference");
}

#[test]
fn compiled_code_keeps_unsigned_numbers_unsigned() {
    run("compiled");
}
