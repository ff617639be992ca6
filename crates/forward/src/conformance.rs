//! The checks of groups A to E that a router owes its packets, each by its number: frames in, frames out.
//!
//! Everything goes through a [`Lab`]: ports, links, router, slow path, accounts. Numbers in test names are those of
//! the list of checks; where Linux differs from the RFC, the crate's README says which behaviour was chosen, and the
//! test checks that.

mod errors;
mod filtered;
mod forwarding;
mod fragments;
mod frames;
mod neighbors;
mod random;
mod trial;
mod version_six;

use crate::testing::Lab;

/// Two networks, left and right of the router, with a host on each, and a router on the right through which most of
/// the world is reached.
const LINES: &str = "
    interface left 0 02:00:00:00:00:01 192.0.2.1/24 2001:db8:1::1/64 fe80::1/64
    interface right 1 02:00:00:00:00:02 198.51.100.1/24 2001:db8:2::1/64 fe80::2/64
    interface narrow 2 02:00:00:00:00:03 mtu 1300 203.0.113.1/24 2001:db8:3::1/64
    neighbor 192.0.2.9 left 02:00:00:00:01:09
    neighbor 2001:db8:1::9 left 02:00:00:00:01:09
    neighbor 198.51.100.7 right 02:00:00:00:02:07
    neighbor 2001:db8:2::7 right 02:00:00:00:02:07
    neighbor 203.0.113.5 narrow 02:00:00:00:03:05
    neighbor 2001:db8:3::5 narrow 02:00:00:00:03:05
    route 8.0.0.0/8 via 198.51.100.7 right
    route 9.0.0.0/8 via 203.0.113.5 narrow
    route 2001:db8:8::/48 via 2001:db8:2::7 right
    route 2001:db8:9::/48 via 2001:db8:3::5 narrow
";

/// Ports of [`LINES`].
const LEFT: usize = 0;
const RIGHT: usize = 1;
const NARROW: usize = 2;

fn lab() -> Lab {
    Lab::new(LINES)
}
