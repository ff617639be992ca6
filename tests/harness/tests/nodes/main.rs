//! Several machines or guests: the cluster, and the switch.
//!
//! Each module is a suite, which `make test PROGRAMS=NAME` runs by itself; tests/README.md says what each checks.

mod cluster;
mod switch;
