//! Reading attributes of nftables' messages.

use bm_netlink::attribute::Attributes;
use bm_netlink::error::Malformed;
use bm_netlink::message::Raw;

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

/// Fixed part of a message: `struct nfgenmsg`.
const HEADER: usize = 4;

/// The attributes of a message.
pub(super) fn attributes<'a>(raw: &Raw<'a>) -> Attributes<'a> {
    Attributes::after_header(raw.body, HEADER)
}

/// The family that a message is about.
pub(super) fn family(raw: &Raw<'_>) -> u8 {
    raw.body.first().copied().unwrap_or_default()
}
