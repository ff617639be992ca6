//! Dumps of nftables, XFRM, legacy iptables and traffic control, from which traffic for Linux only is derived.
//!
//! Checks: a dump is read or refused; reading it twice gives the same list; and the list is bounded.

use bm_firewall::Feature;
use bm_firewall::from_listing;

/// Most entries of a list.
const ENTRIES: usize = 1 << 14;

/// The first byte selects the kind, the rest is the dump.
pub fn run(bytes: &[u8]) {
    let Some((first, listing)) = bytes.split_first() else { return };
    let feature = match first % 4 {
        0 => Feature::Nftables,
        1 => Feature::Xfrm,
        2 => Feature::Iptables,
        _ => Feature::Shaping,
    };
    if let Ok(list) = from_listing(feature, listing) {
        assert!(list.len() <= ENTRIES, "{} entries", list.len());
        assert_eq!(from_listing(feature, listing).as_ref(), Ok(&list));
    }
}
