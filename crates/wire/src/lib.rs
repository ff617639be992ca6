//! Header views over bytes: check once, then read freely.
//!
//! A view proves by its existence that the header is whole, so its accessors cannot fail. Nothing here
//! knows a device, a table or a frame; everything is sums over byte slices, in host order outside.
//!
//! ```text
//!   frame ─► ethernet ─► ipv4 ─┬─► udp, tcp        parse: bytes -> view, or Malformed
//!               │        ipv6 ─┼─► icmp, icmpv6    get:   view.ttl(), view.source() ...
//!               └─► arp        └─► ndp             emit:  meaning -> a caller's buffer, or NoRoom
//!
//!   checksum  sums and their shortcuts       flow  which packets belong together, as one number
//!   prefix    an address and a length
//! ```
//!
//! Addresses are numbers in host order (`u32`, `u128`), as `prefix` and the tables have them; the standard
//! library's `Ipv4Addr::from` shows them. Layers do not check each other: `ipv4` reads no port.
//! Absent on purpose: allocation, reassembly, and anything that needs a table or a clock.

#![forbid(unsafe_code)]

pub mod arp;
mod bytes;
pub mod checksum;
pub mod ethernet;
pub mod flow;
pub mod icmp;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod malformed;
pub mod ndp;
pub mod prefix;
pub mod tcp;
pub mod udp;

pub use ethernet::Mac;
pub use malformed::{Malformed, NoRoom};

/// Protocol numbers, as IPv4's protocol field and IPv6's next header have them.
pub mod protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// IPv4 in IP.
    pub const IPV4: u8 = 4;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 in IP.
    pub const IPV6: u8 = 41;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// GRE.
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
}

/// Compiles the example of the README, so that it stays true.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
