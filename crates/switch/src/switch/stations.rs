//! The stations of a switch: those that are given, those that an earlier daemon's switch had learnt, those that are
//! old.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use super::Switch;
use crate::error::SwitchError;
use crate::layout::{OWN_PLACES, STATION_STATIC, Station};
use crate::program::is_static;
use crate::settings::Address;
use crate::view::StationView;

impl Switch {
    /// Writes the given stations of a port.
    pub(super) fn place_statics(&self, ifindex: u32) -> Result<(), SwitchError> {
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

    /// Forgets the addresses of the given stations of a port.
    pub(super) fn unbind(&self, name: &str, slot: u32) {
        for one in self.settings.statics.iter().filter(|one| one.port == name) {
            for address in &one.addresses {
                // Taking away what is there cannot fail.
                let _gone = self.programs.bind(slot, one.mac, *address, false);
            }
        }
    }

    fn place_static(&self, address: Address, slot: u32) -> Result<(), SwitchError> {
        let station = Station { slot, flags: STATION_STATIC, seen_ns: now_ns(), ..Station::default() };
        self.programs.set_station(address, &station)
    }

    /// Gives the switch's own interface its place: nobody else becomes the station of its MAC, which may change.
    pub(super) fn place_own(&mut self) {
        let Some((interface, name)) = self.settings.interface.clone().zip(self.settings.own_port()) else {
            return;
        };
        let Some(port) = self.joined.values().find(|port| port.name == name) else { return };
        let own = match self.asker.mac(&interface) {
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
                self.programs.remove_station(Address { mac, vlan });
            }
            let placed = own.map(|(mac, slot)| self.place_static(Address { mac, vlan }, slot));
            if let Some(Err(error)) = placed {
                tracing::warn!(%error, "switch {} cannot store the MAC address of {interface}", self.settings.name);
            }
        }
        self.own = own;
    }

    /// Copies what an earlier daemon's switch has learnt, once.
    pub(super) fn inherit(&mut self) {
        if self.inherited.is_empty() {
            return;
        }
        let slots = std::mem::take(&mut self.inherited);
        let Some(pinned) = self.left.iter().find(|pinned| pinned.is_ours()) else { return };
        // Places that each port that is still there has, and how many are taken.
        let ports = self.joined.iter().filter(|(ifindex, port)| slots.get(ifindex) == Some(&port.slot));
        let mut places: BTreeMap<u32, (u32, u32)> =
            ports.map(|(_, port)| (port.slot, (port.settings.fdb_max_learned, 0))).collect();
        let mut stations = pinned.stations().unwrap_or_else(|error| {
            tracing::warn!(%error, "switch {}: cannot take over the learned MAC addresses; learning them again", self.settings.name);
            Vec::new()
        });
        // Where there is less room than before, those heard last stay.
        stations.sort_by_key(|(_, station)| Reverse(station.seen_ns));
        let mut shared = 0;
        for (address, station) in stations.into_iter().filter(|(_, station)| !is_static(station)) {
            let Some((limit, place)) = places.get_mut(&station.slot) else { continue };
            let shares = *place >= OWN_PLACES;
            if place == limit || (shares && shared == self.settings.table) {
                continue;
            }
            let station = Station { place: *place, ..station };
            if self.programs.set_learned(address, &station).is_ok() {
                *place += 1;
                shared += u32::from(shares);
            }
        }
        if let Err(error) = self.programs.set_shared(u64::from(shared)) {
            tracing::warn!(%error, "switch {}", self.settings.name);
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

    /// Takes out the stations of which something holds, and counts the others.
    pub(super) fn forget(&self, which: impl Fn(&Station) -> bool) {
        let forgotten = self.programs.stations().and_then(|stations| {
            let mut shared = 0;
            for (address, station) in stations {
                if which(&station) {
                    self.programs.remove_station(address);
                } else {
                    shared += u64::from(!is_static(&station) && station.place >= OWN_PLACES);
                }
            }
            self.programs.set_shared(shared)
        });
        if let Err(error) = forgotten {
            tracing::warn!(%error, "switch {}", self.settings.name);
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
