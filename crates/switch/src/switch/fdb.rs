//! The MAC address table of a switch: static entries, entries copied from an earlier daemon's switch, and expired
//! entries.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::Switch;
use crate::layout::{FDB_STATIC, FdbEntry, RESERVED_MACS};
use crate::pins;
use crate::program::is_static;
use crate::settings::Address;
use crate::view::FdbEntryView;

/// Room for the learned addresses of a port.
struct Room {
    learned_max: u32,
    used: u32,
}

impl Switch {
    /// Writes the static entries of a port.
    pub(super) fn place_statics(&self, ifindex: u32) -> Result<(), bm_bpf::Error> {
        let Some(port) = self.joined.get(&ifindex) else { return Ok(()) };
        for one in self.settings.statics.iter().filter(|one| one.port == port.name) {
            let vlan = if one.vlan == 0 { port.settings.vlans.untagged() } else { one.vlan };
            self.place_static(Address { mac: one.mac, vlan }, port.slot)?;
            for address in &one.addresses {
                self.programs.bind(port.slot, one.mac, *address, true)?;
            }
        }
        Ok(())
    }

    /// Removes the allowed IP addresses of the static entries of a port.
    pub(super) fn unbind(&self, name: &str, slot: u32) {
        for one in self.settings.statics.iter().filter(|one| one.port == name) {
            for address in &one.addresses {
                // Removing an existing entry cannot fail.
                let _gone = self.programs.bind(slot, one.mac, *address, false);
            }
        }
    }

    fn place_static(&self, address: Address, slot: u32) -> Result<(), bm_bpf::Error> {
        let entry = FdbEntry { slot, flags: FDB_STATIC, seen_ns: now_ns(), ..FdbEntry::default() };
        self.programs.set_fdb_entry(address, &entry)
    }

    /// Adds a static entry for the switch's own interface, so that no other port can claim its MAC address, which may
    /// change.
    pub(super) fn place_own(&mut self) {
        let Some((interface, name)) = self.settings.interface.clone().zip(self.settings.own_port()) else {
            return;
        };
        let Some(port) = self.joined.values().find(|port| port.name == name) else { return };
        let own = match self.interfaces.mac(&interface) {
            Ok(mac) => Some((mac, port.slot)),
            Err(error) => {
                tracing::warn!(%error, "the MAC address of {interface} cannot be read, so switch {} does not protect it", self.settings.name);
                return;
            }
        };
        if self.own == own {
            return;
        }
        for vlan in port.settings.vlans.all() {
            if let Some((mac, _)) = self.own {
                self.programs.remove_fdb_entry(Address { mac, vlan });
            }
            let placed = own.map(|(mac, slot)| self.place_static(Address { mac, vlan }, slot));
            if let Some(Err(error)) = placed {
                tracing::warn!(%error, "switch {} cannot store the MAC address of {interface}", self.settings.name);
            }
        }
        self.own = own;
    }

    /// Copies the addresses that an earlier daemon's switch has learned, once.
    pub(super) fn take_over_fdb(&mut self) {
        if self.inherited.is_empty() {
            return;
        }
        let slots = std::mem::take(&mut self.inherited);
        let Some(pinned) = self.left.iter().find(|pinned| pins::is_ours(pinned)) else { return };
        let ports = self.joined.iter().filter(|(ifindex, port)| slots.get(ifindex) == Some(&port.slot));
        let mut rooms: BTreeMap<u32, Room> = ports
            .map(|(_, port)| (port.slot, Room { learned_max: port.settings.fdb_max_learned, used: 0 }))
            .collect();
        let mut fdb = pins::fdb(pinned).unwrap_or_else(|error| {
            tracing::warn!(%error, "switch {}: cannot take over the learned MAC addresses; they are learned again", self.settings.name);
            Vec::new()
        });
        // If there is less room than before, the addresses seen last are kept.
        fdb.sort_by_key(|(_, entry)| Reverse(entry.seen_ns));
        let mut shared = 0;
        for (address, entry) in fdb.into_iter().filter(|(_, entry)| !is_static(entry)) {
            let Some(room) = rooms.get_mut(&entry.slot) else { continue };
            let shares = room.used >= RESERVED_MACS;
            if room.used == room.learned_max || (shares && shared == self.settings.table) {
                continue;
            }
            let entry = FdbEntry { index: room.used, ..entry };
            if self.programs.set_learned(address, &entry).is_ok() {
                room.used += 1;
                shared += u32::from(shares);
            }
        }
        if let Err(error) = self.programs.set_shared(u64::from(shared)) {
            tracing::warn!(%error, "switch {}", self.settings.name);
        }
    }

    /// The known MAC addresses, by VLAN and address.
    pub fn fdb(&self) -> Vec<FdbEntryView> {
        let now = now_ns();
        let names = self.names();
        let mut fdb: Vec<_> = self
            .known()
            .into_iter()
            .filter_map(|(address, entry)| {
                let port = names.get(&entry.slot).filter(|_| !self.is_expired(&entry, now))?;
                let age = (!is_static(&entry)).then(|| age(&entry, now));
                Some(FdbEntryView { address, port: (*port).into(), age })
            })
            .collect();
        fdb.sort_by_key(|entry| (entry.address.vlan, entry.address.mac));
        fdb
    }

    /// The number of known MAC addresses.
    pub fn fdb_count(&self) -> usize {
        let now = now_ns();
        let names = self.names();
        let known = self.known();
        let valid =
            known.iter().filter(|(_, entry)| names.contains_key(&entry.slot) && !self.is_expired(entry, now));
        valid.count()
    }

    /// Names of ports by slot.
    fn names(&self) -> BTreeMap<u32, &str> {
        self.joined.values().map(|port| (port.slot, port.name.as_str())).collect()
    }

    /// Whether an entry has expired, even if it has not been removed yet.
    fn is_expired(&self, entry: &FdbEntry, now: u64) -> bool {
        let ageing = self.settings.ageing;
        !is_static(entry) && !ageing.is_zero() && age(entry, now) > ageing
    }

    /// Removes expired entries.
    pub(super) fn sweep(&self) {
        let now = now_ns();
        self.forget(|entry| self.is_expired(entry, now));
    }

    /// All entries, including expired ones; if the kernel cannot be read, none, and this is logged.
    pub(super) fn known(&self) -> Vec<(Address, FdbEntry)> {
        self.programs.fdb().unwrap_or_else(|error| {
            tracing::warn!(%error, "switch {}", self.settings.name);
            Vec::new()
        })
    }

    /// Removes the entries that match, and counts the others.
    pub(super) fn forget(&self, which: impl Fn(&FdbEntry) -> bool) {
        let forgotten = self.programs.fdb().and_then(|fdb| {
            let mut shared = 0;
            for (address, entry) in fdb {
                if which(&entry) {
                    self.programs.remove_fdb_entry(address);
                } else {
                    shared += u64::from(!is_static(&entry) && entry.index >= RESERVED_MACS);
                }
            }
            self.programs.set_shared(shared)
        });
        if let Err(error) = forgotten {
            tracing::warn!(%error, "switch {}", self.settings.name);
        }
    }
}

fn age(entry: &FdbEntry, now_ns: u64) -> Duration {
    Duration::from_nanos(now_ns.saturating_sub(entry.seen_ns))
}

/// The clock that the program reads.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
