//! Header views over bytes: check once, then read freely.
//!
//! A view exists only if the header is complete, so its accessors cannot fail. This crate knows no devices, tables or
//! frames; everything is computed over byte slices, with values in host order.
//!
//! ```text
//!   frame ─► ethernet ─► ipv4 ─┬─► udp, tcp        parse: bytes -> view, or Malformed
//!               └──────► ipv6 ─┴─► icmp, icmpv6    get:   view.ttl(), view.source() ...
//!                                                  emit:  meaning -> a caller's buffer, or NoRoom
//!
//!   checksum  sums and their shortcuts       flow  which packets belong together, as one number
//!   prefix    an address and a length        offload  checksums left to a network card
//! ```
//!
//! Addresses are numbers in host order (`u32`, `u128`), as in `prefix` and the tables; the standard library's
//! `Ipv4Addr::from` prints them. Layers do not check each other: `ipv4` reads no port. Absent on purpose: allocation,
//! reassembly, and anything that needs a table or a clock.

#![forbid(unsafe_code)]

mod bytes;
pub mod checksum;
pub mod ethernet;
pub mod family;
pub mod flow;
pub mod icmp;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod malformed;
pub mod offload;
pub mod prefix;
pub mod reverse_path;
pub mod tcp;
pub mod udp;

pub use ethernet::{Mac, Vlan};
pub use family::Family;
pub use malformed::{Malformed, NoRoom};
pub use reverse_path::ReversePath;

/// Protocol numbers, as in IPv4's protocol field and IPv6's next header.
pub mod protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// IPv4 in IP.
    pub const IPV4: u8 = 4;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    /// IPv6 in IP.
    pub const IPV6: u8 = 41;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    pub const GRE: u8 = 47;
    /// IPsec ESP.
    pub const ESP: u8 = 50;
    /// IPsec AH.
    pub const AUTHENTICATION: u8 = 51;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6: nothing follows.
    pub const NO_NEXT: u8 = 59;
    /// IPv6 destination options.
    pub const DESTINATION_OPTIONS: u8 = 60;
    pub(crate) const DCCP: u8 = 33;
    pub const SCTP: u8 = 132;
    pub(crate) const UDP_LITE: u8 = 136;

    /// Whether headers of a protocol begin with two ports.
    #[inline(always)]
    pub fn has_ports(protocol: u8) -> bool {
        matches!(protocol, TCP | UDP | DCCP | SCTP | UDP_LITE)
    }
}

/// Compiles the example in the README, so that it stays correct.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
