//! Tests what happens to changes that could not be applied.

use super::*;
use crate::compile::{Memory, Options};
use bm_fib::Source;
use bm_fib::memory::{OutOfMemory, Part};
use bm_fib::published::Readers;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory that can run out.
#[derive(Default)]
struct Scarce(AtomicBool);

impl Memory for Scarce {
    fn source(&self, _part: Part) -> Result<Source, OutOfMemory> {
        if self.0.load(Ordering::Relaxed) { Err(OutOfMemory { bytes: 0 }) } else { Ok(Source::anonymous()) }
    }
}

#[test]
fn failed_updates_are_repeated_by_the_next_request() {
    let (memory, readers) = (Arc::new(Scarce::default()), Readers::new());
    let compiler = Compiler::new_in(&readers, Options::default(), memory.clone()).unwrap();
    let leases = Leases::new(compiler.lease(), None);
    let mut control = Control::open(
        &Config::default(),
        compiler,
        Vec::new(),
        None,
        FirewallState::default(),
        FlowUse::default(),
        leases,
    )
    .unwrap();
    type Next = fn(&mut Control) -> Result<(), Error>;
    let all: [Next; 4] = [
        |control| control.apply(&[]),
        |control| control.set_ports(Vec::new(), &Config::default()),
        |control| control.reconfigure(&Config::default()),
        // Without further changes, it is tried again after a while.
        |control| {
            control.retry_at = control.retry_at.and(Some(Instant::now()));
            control.step()
        },
    ];
    for next in all {
        memory.0.store(true, Ordering::Relaxed);
        control.apply(&[Change::Everything]).unwrap_err();
        next(&mut control).unwrap_err();
        assert!(control.retry_at.is_some());
        memory.0.store(false, Ordering::Relaxed);
        next(&mut control).unwrap();
        assert!(control.retry_at.is_none());
    }
}
