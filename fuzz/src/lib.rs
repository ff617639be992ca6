//! Fuzz targets: whatever bytes come in, nothing panics, and what must hold of the result holds.
//!
//! ```text
//! corpus/NAME/* ─┬─► tests/targets.rs   any toolchain: the corpus, and mutations of it by a seed   (make test)
//!                └─► libFuzzer          nightly: mutations led by coverage                          (make fuzz)
//!                          both call ─► a target's function
//! ```
//!
//! A [`Target`] is a function that takes bytes and panics if something is wrong. Each states what it holds the code to
//! in its own module. README.md says how they are run, and how a target is added.

pub mod input;
pub mod mutate;
pub mod replay;
mod targets;

/// Bytes go in; it panics if something is wrong.
pub struct Target {
    /// Its name, also that of its corpus.
    pub name: &'static str,
    /// Tries some bytes.
    pub run: fn(&[u8]),
    /// Why it cannot run here, if it cannot.
    pub missing: fn() -> Option<&'static str>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "router", run: targets::router::run, missing: nothing },
    Target { name: "netlink", run: targets::netlink::run, missing: nothing },
    Target { name: "linux_only", run: targets::linux_only::run, missing: nothing },
    Target { name: "config", run: targets::config::run, missing: nothing },
    Target { name: "filter", run: targets::filter::run, missing: nothing },
    Target { name: "http", run: targets::http::run, missing: nothing },
    Target { name: "rib", run: targets::rib::run, missing: nothing },
    Target { name: "capture", run: targets::capture::run, missing: nothing },
    Target { name: "lua_packets", run: targets::lua::packets, missing: nothing },
    Target { name: "lua_filter", run: targets::lua::filter, missing: nothing },
    Target { name: "xdp", run: targets::xdp::run, missing: targets::xdp::missing },
];

fn nothing() -> Option<&'static str> {
    None
}

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
