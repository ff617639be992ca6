//! With the feature `dpdk`: compiles the shim against the DPDK that pkg-config finds, and links both.

use std::process::exit;

const SOURCES: [&str; 3] = ["c/eal.c", "c/device.c", "c/queue.c"];

fn main() {
    for file in SOURCES.iter().chain(&["c/shim.h", "c/pool.h"]) {
        println!("cargo:rerun-if-changed={file}");
    }
    if std::env::var_os("CARGO_FEATURE_DPDK").is_none() {
        return;
    }
    // 22.11 is the oldest with the interfaces that the shim uses.
    let found = pkg_config::Config::new().atleast_version("22.11").cargo_metadata(false).probe("libdpdk");
    let library = found.unwrap_or_else(|error| {
        eprintln!("the feature `dpdk` needs DPDK 22.11 or newer, and pkg-config says:\n{error}");
        eprintln!(
            "On Debian: apt-get install libdpdk-dev pkg-config. Everything else builds without this feature."
        );
        exit(1);
    });
    let mut build = cc::Build::new();
    build.files(SOURCES).includes(&library.include_paths).opt_level(3);
    build.flag("-Wall").flag("-Wextra").flag("-include").flag("rte_config.h");
    // Some of DPDK's inline functions are kept from use until they are stable; those that are used here are in 22.11.
    build.define("ALLOW_EXPERIMENTAL_API", None).define("_GNU_SOURCE", None);
    // What DPDK's headers need at least (SSE4.2), as its own pkg-config file says.
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        build.flag("-march=corei7");
    }
    build.compile("bm_dpdk");
    library.link_paths.iter().for_each(|path| println!("cargo:rustc-link-search=native={}", path.display()));
    // Which of DPDK's libraries has a function differs between its versions, so all of them are named. The linker keeps
    // those from which something is used (`--as-needed`); drivers are loaded by the EAL.
    for name in &library.libs {
        println!("cargo:rustc-link-lib=dylib={name}");
    }
}
