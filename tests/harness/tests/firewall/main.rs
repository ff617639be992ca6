//! What packets are refused: filters of brickmoon, and rules of Linux.
//!
//! Each module is a suite, which `make test PROGRAMS=NAME` runs by itself; tests/README.md says what each checks.

mod closed;
mod filters;
mod flows;
mod flows_end;
mod linux_only;
mod rules_in_time;
mod rules_on_ports;
mod rulesets;
mod setups;
