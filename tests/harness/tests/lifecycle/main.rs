//! The daemon from its start to its end: what it survives, and what changes while it runs.
//!
//! Each module is a suite, which `make test PROGRAMS=NAME` runs by itself; tests/README.md says what each checks.

mod advice;
mod attach;
mod auto;
mod carrier;
mod exhaustion;
mod faults;
mod hangs;
mod kept;
mod lifecycle;
mod loss;
mod port_states;
mod privileges;
mod reload;
mod returning;
mod soak;
mod stale;
mod suspended;
