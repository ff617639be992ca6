//! Routing tables in files: MRT dumps and lines of text, as they are or compressed.
//!
//! Held: a file is read, or refused with a place; what is read is sorted, and has no prefix twice.

use super::capture::in_file;

/// Tries a file.
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
