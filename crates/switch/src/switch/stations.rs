//! The stations of a switch: those that are given, those that an earlier daemon's switch had learnt, those that are
//! old.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Joined, Switch};
use crate::error::SwitchError;
use crate::layout::{STATION_STATIC, Station};
use crate::program::is_static;
use crate::settings::Address;
use crate::view::StationView;

impl Switch {
    /// Writes the given stations of a port.
    pub(super) fn place_statics(&self, port: &Joined) -> Result<(), SwitchError> {
        for one in self.settings.statics.iter().filter(|one| one.port == port.name) {
            let vlan = if one.vlan == 0 { port.settings.vlans.untagged() } else { one.vlan };
            let station = Station { slot: port.slot, flags: STATION_STATIC, seen_ns: now_ns() };
            self.programs.set_station(Address { mac: one.mac, vlan }, &station)?;
        }
        Ok(())
    }

    /// Copies what an earlier daemon's switch has learnt, once.
    pub(super) fn inherit(&mut self) {
        if self.inherited.is_empty() {
            return;
        }
        let slots = std::mem::take(&mut self.inherited);
        let Some(pinned) = self.left.iter().find(|pinned| pinned.is_ours()) else { return };
        let here = |slot| {
            self.joined.iter().any(|(ifindex, port)| port.slot == slot && slots.get(ifindex) == Some(&slot))
        };
        let stations = pinned.stations().unwrap_or_else(|error| {
            tracing::warn!(%error, "switch {}: stations are learned anew", self.settings.name);
            Vec::new()
        });
        for (address, station) in stations {
            if !is_static(&station) && here(station.slot) {
                // A smaller table takes what fits.
                let _full = self.programs.set_station(address, &station);
            }
        }
    }

    /// The stations that it knows, by VLAN and MAC.
    pub fn stations(&self) -> Vec<StationView> {
        let now = now_ns();
        let names = self.names();
        let view = |(address, station): (Address, Station)| {
            let port = names.get(&station.slot).filter(|_| !self.is_old(&station, now))?;
            let age = (!is_static(&station)).then(|| age(&station, now));
            Some(StationView { address, port: (*port).into(), age })
        };
        let mut stations: Vec<_> = self.known().into_iter().filter_map(view).collect();
        stations.sort_by_key(|station| (station.address.vlan, station.address.mac));
        stations
    }

    /// How many stations it knows.
    pub fn station_count(&self) -> usize {
        let now = now_ns();
        let names = self.names();
        let counts = |station: &Station| names.contains_key(&station.slot) && !self.is_old(station, now);
        self.known().iter().filter(|(_, station)| counts(station)).count()
    }

    /// Names of ports by slot.
    fn names(&self) -> BTreeMap<u32, &str> {
        self.joined.values().map(|port| (port.slot, port.name.as_str())).collect()
    }

    /// Whether a station has not been heard for too long, though nobody has taken it out yet.
    fn is_old(&self, station: &Station, now: u64) -> bool {
        let ageing = self.settings.ageing;
        !is_static(station) && !ageing.is_zero() && age(station, now) > ageing
    }

    /// Takes old stations out.
    pub(super) fn sweep(&self) {
        let now = now_ns();
        self.forget(|station| self.is_old(station, now));
    }

    /// All stations, old ones too; none, said in the log, where the kernel does not tell.
    pub(super) fn known(&self) -> Vec<(Address, Station)> {
        self.programs.stations().unwrap_or_else(|error| {
            tracing::warn!(%error, "switch {}", self.settings.name);
            Vec::new()
        })
    }

    /// Takes out the stations of which something holds.
    pub(super) fn forget(&self, which: impl Fn(&Station) -> bool) {
        for (address, _) in self.known().into_iter().filter(|(_, station)| which(station)) {
            self.programs.remove_station(address);
        }
    }
}

fn age(station: &Station, now_ns: u64) -> Duration {
    Duration::from_nanos(now_ns.saturating_sub(station.seen_ns))
}

/// The clock that the program reads.
pub(super) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
