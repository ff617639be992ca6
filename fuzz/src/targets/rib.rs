//! Routing tables in files: MRT dumps and lines of text, plain or compressed.
//!
//! Checks: a file is read, or refused with a position; the routes are sorted, and no prefix appears twice.

use super::capture::in_file;

/// Reads a file.
pub fn run(bytes: &[u8]) {
    in_file(bytes, |path| match bm_testbed::rib::read(&[path]) {
        Ok(rib) => {
            assert!(!rib.table.ipv4.is_empty() || !rib.table.ipv6.is_empty(), "a table without a route");
            assert!(rib.table.ipv4.is_sorted_by(|a, b| a.prefix < b.prefix), "IPv4 routes out of order");
            assert!(rib.table.ipv6.is_sorted_by(|a, b| a.prefix < b.prefix), "IPv6 routes out of order");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    });
}
