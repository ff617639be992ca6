//! Runs a target under libFuzzer: `BM_FUZZ_TARGET` names it, the arguments are libFuzzer's options (tools/fuzz).

#![no_main]

use std::sync::LazyLock;

use bm_fuzz::{TARGETS, Target};

static TARGET: LazyLock<&'static Target> = LazyLock::new(|| {
    let name = std::env::var("BM_FUZZ_TARGET").unwrap_or_default();
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    bm_fuzz::target(&name)
        .unwrap_or_else(|| panic!("BM_FUZZ_TARGET={name} is not one of {}", names.join(", ")))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
