//! Listings of nftables, XFRM, legacy iptables and traffic control: what in them only Linux may handle.
//!
//! Held: a listing is read or refused; what is read comes out the same twice, in a list that is bounded.

use bm_netlink::Feature;
use bm_netlink::linux_only::from_listing;

/// Entries that a list may have.
const ENTRIES: usize = 1 << 14;

/// The first byte says of what, the rest is the listing.
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
