//! The nftables tables that filter packets that the daemon does not get: creates, checks and removes them.

use std::time::{Duration, Instant};

use bm_control::nftables;
use bm_netlink::nft::{Family, Nft, Table};

/// Time after which a table that the kernel rejected is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The tables that were created last.
#[derive(Default)]
pub struct FilterTables {
    nft: Option<Nft>,
    /// Their name; empty before the first check.
    name: String,
    tables: Vec<Table>,
    /// Families whose table could not be created or removed.
    refused: Vec<RefusedTable>,
}

/// A table that the kernel rejected.
struct RefusedTable {
    family: Family,
    at: Instant,
    why: String,
}

impl FilterTables {
    /// Creates these tables, and removes others of this name.
    pub fn put(&mut self, name: &str, wanted: Vec<Table>) {
        let begins = self.name.is_empty();
        name.clone_into(&mut self.name);
        for family in nftables::FAMILIES {
            let of = |tables: &[Table]| tables.iter().find(|table| table.family == family).cloned();
            let (before, wanted) = (of(&self.tables), of(&wanted));
            let was_refused = self.refused.iter().any(|refused| refused.family == family);
            let is_there = |table: &Table| !is_missing(&mut self.nft, table);
            if !begins && !was_refused && before == wanted && before.as_ref().is_none_or(is_there) {
                continue;
            }
            // Before the first check there may be one that a killed daemon has left.
            let done = self.exchange(family, wanted.as_ref());
            self.tables.retain(|table| table.family != family);
            self.refused.retain(|refused| refused.family != family);
            match done {
                Ok(()) => self.tables.extend(wanted),
                Err(why) => self.refused.push(RefusedTable { family, at: Instant::now(), why }),
            }
        }
    }

    fn exchange(&mut self, family: Family, wanted: Option<&Table>) -> Result<(), String> {
        if self.nft.is_none() {
            self.nft = Nft::open().map_err(|error| error.to_string())?;
        }
        let done = match (&mut self.nft, wanted) {
            (Some(nft), Some(table)) => nft.put(table),
            (Some(nft), None) => nft.remove(family, &self.name),
            (None, Some(_)) => return Err("this kernel has no nftables".into()),
            (None, None) => Ok(()),
        };
        done.map_err(|error| {
            // Open a new socket: the rest of this answer must not precede the next one.
            self.nft = None;
            error.to_string()
        })
    }

    /// Whether a table has been removed, or a rejected one is due for another try.
    pub fn is_to_be_put(&mut self) -> bool {
        let is_due = self.refused.iter().any(|refused| refused.at.elapsed() > AGAIN);
        let Self { nft, tables, .. } = self;
        is_due || tables.iter().any(|table| is_missing(nft, table))
    }

    /// The name of the tables.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether nftables filters the packets of a port that does not have its interface.
    pub fn filters(&self, port: &str) -> bool {
        let mut netdev = self.tables.iter().filter(|table| table.family == Family::Netdev);
        netdev.any(|table| table.chains.iter().any(|chain| chain.name == port))
    }

    /// The note for `status` on tables that could not be created.
    pub fn trouble(&self) -> Option<String> {
        let why = &self.refused.first()?.why;
        Some(format!("[filter] does not fail closed: {why}"))
    }

    /// Removes all tables.
    pub fn remove(&mut self) {
        if !self.tables.is_empty() {
            let name = self.name.clone();
            self.put(&name, Vec::new());
        }
        if let Some(why) = self.trouble() {
            tracing::error!("{why}");
        }
    }
}

/// Whether a table has been removed from the kernel.
fn is_missing(nft: &mut Option<Nft>, table: &Table) -> bool {
    nft.as_mut().is_some_and(|nft| !nft.is_there(table.family, &table.name).unwrap_or(true))
}
