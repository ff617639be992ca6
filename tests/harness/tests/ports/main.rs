//! Ports and workers, and the programs in Lua on them.
//!
//! Each module is a suite, which `make test PROGRAMS=NAME` runs by itself; tests/README.md says what each checks.

mod apps;
mod cards;
mod claims;
mod dpdk;
mod hooks;
mod lua;
mod queues;
mod taps;
mod workers;
