//! ESP: gateways, a peer, and IKE daemons.
//!
//! Each module is a suite, which `make test PROGRAMS=NAME` runs by itself; tests/README.md says what each checks.

mod esp_peer;
mod ipsec;
mod ipsec_interfaces;
mod kernel_ipsec;
mod strongswan;
