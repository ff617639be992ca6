//! What users see: counters, captures, the client, the pages of guides.
//!
//! Each module is a suite, which `make test PROGRAMS=NAME` runs by itself; tests/README.md says what each checks.

mod capture;
mod client;
mod export;
mod guides;
mod observe;
mod top;
