//! Tables, as the kernel lists them.

use super::TableName;
use super::attributes::{attributes, family, number, some};
use bm_netlink::attribute;
use bm_netlink::error::Malformed;
use bm_netlink::message::Raw;
use std::collections::BTreeMap;

/// Name, flags, handle (`NFTA_TABLE_*`).
const ATTRIBUTES: [u16; 3] = [1, 2, 4];
/// A table whose chains are all switched off.
const DORMANT: u32 = 1;
/// A table that the kernel removes, or releases, when the process that made it ends.
const OWNER: u32 = 2;

/// Tables by name.
pub(super) type Tables = BTreeMap<TableName, Table>;

/// What is known of a table besides its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    flags: u32,
    /// A number that the kernel gives to no other table, not even to one with this name later.
    pub handle: u64,
}

impl Table {
    pub(super) fn is_dormant(&self) -> bool {
        self.flags & DORMANT != 0
    }

    /// Whether it goes away with the process that made it.
    pub(super) fn has_owner(&self) -> bool {
        self.flags & OWNER != 0
    }
}

/// A table in a message.
pub(super) fn table(raw: &Raw<'_>) -> Result<Option<(TableName, Table)>, Malformed> {
    let [name, flags, handle] = some(attributes(raw), ATTRIBUTES)?;
    let Some(name) = name else { return Ok(None) };
    let name = TableName { family: family(raw), name: attribute::text(name) };
    let flags = flags.and_then(number).unwrap_or_default();
    let handle = handle.and_then(|value| value.try_into().ok()).map_or(0, u64::from_be_bytes);
    Ok(Some((name, Table { flags, handle })))
}
