//! The nftables tables that filter packets that the daemon does not get: creates, checks and removes them.
//!
//! They are created after ports have followed their interfaces, and again if somebody flushes the ruleset. They stay when
//! the daemon is killed: `brickmoon up` or `brickmoon stop` removes them.

use std::time::{Duration, Instant};

use bm_control::config::{Config, Device, Fail};
use bm_control::driver::OfPort;
use bm_control::nftables::{self, Has, PortNow};
use bm_netlink::nft::{Family, Nft, Table};

use super::{Daemon, lock};
use crate::daemon::presence::Presence;
use crate::daemon::running::PortInfo;

/// Time after which a table that the kernel rejected is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The tables that were created last.
#[derive(Default)]
pub(super) struct Held {
    nft: Option<Nft>,
    /// Their name; empty before the first check.
    name: String,
    tables: Vec<Table>,
    /// Families whose table could not be created or removed, with the time and the reason.
    refused: Vec<(Family, Instant, String)>,
}

impl Held {
    /// Creates these tables, and removes others of this name.
    fn put(&mut self, name: &str, wanted: Vec<Table>) {
        let begins = self.name.is_empty();
        name.clone_into(&mut self.name);
        for family in nftables::FAMILIES {
            let of = |tables: &[Table]| tables.iter().find(|table| table.family == family).cloned();
            let (before, wanted) = (of(&self.tables), of(&wanted));
            let was_refused = self.refused.iter().any(|(refused, ..)| *refused == family);
            let is_there = |table: &Table| !is_missing(&mut self.nft, table);
            if !begins && !was_refused && before == wanted && before.as_ref().is_none_or(is_there) {
                continue;
            }
            // Before the first check there may be one that a killed daemon has left.
            let done = self.exchange(family, wanted.as_ref());
            self.tables.retain(|table| table.family != family);
            self.refused.retain(|(refused, ..)| *refused != family);
            match done {
                Ok(()) => self.tables.extend(wanted),
                Err(why) => self.refused.push((family, Instant::now(), why)),
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
        let is_due = self.refused.iter().any(|(_, at, _)| at.elapsed() > AGAIN);
        let Self { nft, tables, .. } = self;
        is_due || tables.iter().any(|table| is_missing(nft, table))
    }

    /// Whether nftables filters the packets of a port that does not have its interface.
    fn filters(&self, port: &str) -> bool {
        let mut netdev = self.tables.iter().filter(|table| table.family == Family::Netdev);
        netdev.any(|table| table.chains.iter().any(|chain| chain.name == port))
    }

    /// The note for `status` on tables that could not be created.
    pub fn trouble(&self) -> Option<String> {
        let (_, _, why) = self.refused.first()?;
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

/// Whether a port has its interface.
fn has(info: &PortInfo, control: Option<&OfPort>) -> Has {
    // The interface may disappear before its port is updated.
    let denied = || bm_fastpath::ifindex(&info.name).map_or(Has::Nothing, Has::Denied);
    match (&info.presence, control) {
        (Presence::Missing, _) => Has::Nothing,
        (Presence::Here { .. }, Some(of_port)) if of_port.interfaces.is_empty() => denied(),
        (Presence::Here { ifindex, .. }, _) => {
            Has::Interface { ifindex: *ifindex, workers: !info.path.in_kernel }
        }
        (Presence::Refused { .. }, _) => denied(),
    }
}

fn is_closed(config: &Config) -> bool {
    config.filters_drop() && config.filter.fail == Fail::Closed
}

impl Daemon {
    /// Creates the tables for ports that the daemon does not filter, and logs which filters apply where.
    pub(super) fn follow_filters(&self) {
        // Read once for both; later changes are handled in the next call.
        let of_control = self.driver.handle().interfaces().unwrap_or_default();
        self.hold_filters(&of_control);
        self.say_unfiltered(&of_control);
    }

    fn hold_filters(&self, of_control: &[OfPort]) {
        let setup = self.setup();
        let config = &setup.config;
        let name = nftables::name(&config.daemon.socket);
        if !is_closed(config) {
            lock(&self.held).put(&name, Vec::new());
            return;
        }
        // While workers are being restarted, the tables stay.
        let Some(ports) = self.ports_now(config, of_control) else { return };
        let tables = nftables::tables(config, &name, &ports);
        let mut held = lock(&self.held);
        let before = held.trouble();
        held.put(&name, tables);
        if let Some(why) = held.trouble().filter(|why| before.as_ref() != Some(why)) {
            tracing::error!("{why}");
        }
    }

    fn ports_now(&self, config: &Config, of_control: &[OfPort]) -> Option<Vec<PortNow>> {
        let running = lock(&self.running);
        let infos = running.as_ref()?.ports.iter().zip(&config.ports).enumerate();
        let interfaces = infos.filter(|(_, (_, port))| matches!(port.device, Device::Xdp(_)));
        let now = |(index, (info, _)): (usize, (&PortInfo, _))| PortNow {
            name: info.name.clone(),
            index,
            has: has(info, of_control.get(index)),
        };
        Some(interfaces.map(now).collect())
    }

    /// What nftables does for a port that does not have its interface; `None` if nothing.
    pub(super) fn held_by_nftables(&self, index: usize, name: &str) -> Option<String> {
        let setup = self.setup();
        let held = lock(&self.held);
        let table = is_closed(&setup.config) && held.filters(name);
        table.then(|| match nftables::inexact(&setup.config, index) {
            None => format!("nftables filters packets that arrive there (table netdev {})", held.name),
            Some(why) => format!(
                "nftables drops all packets that Linux would forward from there (table netdev {}), because {why}",
                held.name
            ),
        })
    }
}
