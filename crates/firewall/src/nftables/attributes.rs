//! Reading attributes of nftables' messages.

use bm_netlink::attribute::Attributes;
use bm_netlink::error::Malformed;

/// A number of nftables: four bytes in network order.
pub(super) fn number(value: &[u8]) -> Option<u32> {
    value.try_into().map(u32::from_be_bytes).ok()
}

/// The attributes asked for, in that order.
pub(super) fn some<const N: usize>(
    list: Attributes<'_>,
    kinds: [u16; N],
) -> Result<[Option<&[u8]>; N], Malformed> {
    let mut found = [None; N];
    for attribute in list {
        let (kind, value) = attribute?;
        if let Some(place) = kinds.iter().position(|&wanted| wanted == kind) {
            found[place] = Some(value);
        }
    }
    Ok(found)
}
