//! Fuzz targets: for any bytes, nothing may panic, and the result must have certain properties.
//!
//! ```text
//! corpus/NAME/* ─┬─► tests/targets.rs   any toolchain: the corpus, and seeded mutations of it       (make test)
//!                └─► libFuzzer          nightly: mutations guided by coverage                       (make fuzz)
//!                          both call ─► a target's function
//! ```
//!
//! A [`Target`] is a function that takes bytes and panics if something is wrong. The page of each target's module lists
//! what it checks. README.md says how to run targets and how to add one.

pub mod input;
pub mod mutate;
pub mod replay;
mod targets;

/// A function that takes bytes and panics if something is wrong.
pub struct Target {
    /// Its name, which is also that of its corpus.
    pub name: &'static str,
    /// Runs the target on some bytes.
    pub run: fn(&[u8]),
    /// The reason why it cannot run here, if there is one.
    pub missing: fn() -> Option<&'static str>,
}

/// All targets.
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
    Target { name: "ipsec", run: targets::ipsec::run, missing: nothing },
    Target { name: "xfrm", run: targets::xfrm::run, missing: nothing },
    Target { name: "xdp", run: targets::xdp::run, missing: targets::xdp::missing },
];

fn nothing() -> Option<&'static str> {
    None
}

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
