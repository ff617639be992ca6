//! The nftables tables that filter packets that the daemon does not get: creates, checks and removes them.
//!
//! One more table, which the kernel removes as soon as the daemon is dead, marks packets that the daemon hands to Linux. The
//! others drop some that have no mark, so the marks come first and are removed last.

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
    owned: OwnedTable,
    /// The version of the IPsec policies in them.
    pub policies: u64,
}

/// The table that marks packets, as long as its socket is open.
#[derive(Default)]
struct OwnedTable {
    /// OpenPorts for the first table, so that nothing is opened for filters that do not need it.
    nft: Option<Nft>,
    table: Option<Table>,
    refused: Option<RefusedTable>,
    /// Whether the kernel has accepted such a table before.
    is_possible: bool,
}

/// A table that the kernel rejected.
struct RefusedTable {
    family: Family,
    at: Instant,
    why: String,
}

impl OwnedTable {
    /// Creates this table, unless it is there; an error from before is kept.
    fn put(&mut self, wanted: &Table) -> Result<(), String> {
        let Self { nft, table, .. } = self;
        if table.as_ref() == Some(wanted) && !is_missing(nft, wanted) {
            return Ok(());
        }
        if nft.is_none() {
            *nft = Nft::open_to_own().map_err(|error| error.to_string())?;
        }
        let Some(open) = nft else { return Err("this kernel has no nftables".into()) };
        // The old table stays if the new one is rejected: closing the socket would remove it.
        open.put(wanted).map_err(|error| error.to_string())?;
        (*table, self.is_possible) = (Some(wanted.clone()), true);
        Ok(())
    }

    /// Removes the table: what workers hand to Linux counts as seen by nobody then.
    fn remove(&mut self) {
        // The kernel removes it with the socket.
        (self.nft, self.table, self.refused) = (None, None, None);
    }
}

impl FilterTables {
    /// Creates the table that marks packets, or says why the tables must do without it. `None` if the attempt failed
    /// because of something that changes: then all tables stay as they are until the next one.
    pub fn mark(&mut self, wanted: Option<&Table>) -> Option<bool> {
        let Some(wanted) = wanted else { return Some(true) };
        let done = self.owned.put(wanted);
        let is_possible = done.is_ok() || self.owned.is_possible;
        let now = Instant::now();
        self.owned.refused = done.err().map(|why| RefusedTable { family: wanted.family, at: now, why });
        (self.owned.refused.is_none() || !is_possible).then_some(is_possible)
    }

    /// Removes the table that marks packets, before the steering programs are detached.
    pub fn unmark(&mut self) {
        self.owned.remove();
    }

    /// Creates these tables, and removes others of this name.
    pub fn put(&mut self, name: &str, wanted: Vec<Table>) {
        let begins = self.name.is_empty();
        name.clone_into(&mut self.name);
        for family in nftables::FAMILIES {
            let before = self.tables.iter().find(|table| table.family == family).cloned();
            let wanted = wanted.iter().find(|table| table.family == family).cloned();
            let was_refused = self.refused.iter().any(|refused| refused.family == family);
            if !begins
                && !was_refused
                && before == wanted
                && before.as_ref().is_none_or(|table| !is_missing(&mut self.nft, table))
            {
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
        let mut refused = self.refused.iter().chain(&self.owned.refused);
        let is_due = refused.any(|refused| refused.at.elapsed() > AGAIN);
        let Self { nft, tables, owned, .. } = self;
        is_due || tables.iter().chain(&owned.table).any(|table| is_missing(nft, table))
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
        if let Some(refused) = self.refused.first() {
            return Some(format!(
                "[filter] and inbound policies of [ipsec] do not fail closed: {}",
                refused.why
            ));
        }
        let why = &self.owned.refused.as_ref()?.why;
        Some(format!(
            "[filter] and inbound policies of [ipsec] do not hold on ports of workers while no worker receives: {why}"
        ))
    }

    /// Removes all tables but these, which stay after the end of the daemon.
    pub fn end(&mut self, kept: Vec<Table>) {
        if !self.tables.is_empty() {
            let name = self.name.clone();
            self.put(&name, kept);
        }
        self.owned.remove();
        if let Some(why) = self.trouble() {
            tracing::error!("{why}");
        }
    }
}

/// Whether a table has been removed from the kernel.
fn is_missing(nft: &mut Option<Nft>, table: &Table) -> bool {
    nft.as_mut().is_some_and(|nft| !nft.is_there(table.family, &table.name).unwrap_or(true))
}
