//! Forwarding: packets in, packets out, beside Linux.
//!
//! Each module is a suite, which `make test PROGRAMS=NAME` runs by itself; tests/README.md says what each checks.

mod accounts;
mod differential;
mod fragments;
mod frr;
mod host_path;
mod hosts;
mod mixed;
mod model;
mod multipath;
mod neighbors;
mod netns;
mod rate_limits;
mod settings;
mod sums;
mod veth;
