//! ESP: gateways, a peer, and IKE daemons.
//!
//! Each module with tests is a suite, which `make test PROGRAMS=NAME` runs by itself; tests/README.md says what each checks.

mod esp_peer;
mod gateways;
mod ipsec;
mod ipsec_interfaces;
mod kernel_ipsec;
mod strongswan;
