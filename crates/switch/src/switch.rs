//! A switch: which interfaces are its ports now, and what the programs know about them.
//!
//! ```text
//! interfaces of Linux ─► reconcile ─► join: entry, maps of devices, then the program on the interface
//!                                └──► leave: the program off, then out of the maps, its MAC addresses forgotten
//! ```
//!
//! A port is in all maps before the program is attached to it, so no frame sees an incomplete entry. Where an earlier
//! daemon's programs are attached, all ports and their learned addresses are copied into the new maps before the
//! first link is updated.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bm_bpf::{PinnedLink, Pins, xdp};
use bm_netlink::link;
use bm_sys::{Flag, Interfaces};
use libbpf_rs::Link;

use crate::error::SwitchError;
use crate::features::Features;
use crate::interface::{self, Driver, InterfaceState};
use crate::layout::{
    PORT_DHCP_GUARD, PORT_ISOLATED, PORT_LOCKED, PORT_NO_LEARNING, PORT_PARTIAL_SUMS, PORT_RA_GUARD,
    PORT_SOURCE_GUARD, PORT_TAKES_FRAMES, PORT_TAKES_LONG, PORT_UNTAGGED, PORT_UP, Port, SLOTS,
};
use crate::pins;
use crate::program::Programs;
use crate::settings::{PortSettings, Settings};
use crate::view::PortView;

mod fdb;

/// How much a port may flood at once, in time at its rate; also for addresses that move there.
const BURST: Duration = Duration::from_millis(100);
/// The minimum of that burst, in frames or addresses.
const BURST_EVENTS: u64 = 32;
/// Shortest and longest time between two searches for expired addresses.
const SWEEP_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// A port to which the program is attached.
struct MemberPort {
    name: String,
    slot: u32,
    settings: PortSettings,
    interface: InterfaceState,
    entry: Port,
    generic: bool,
    /// Whether brickmoon turned on promiscuous mode.
    promiscuous: bool,
    /// `None` until the program is attached.
    link: Option<Link>,
    pin: Option<PathBuf>,
}

/// A running switch.
pub struct Switch {
    settings: Settings,
    programs: Programs,
    interfaces: Interfaces,
    pins: Option<Pins>,
    /// Links of an earlier daemon that have not been taken over yet.
    left: Vec<PinnedLink>,
    /// The slots that ports had under that daemon.
    inherited: BTreeMap<u32, u32>,
    /// By interface index.
    joined: BTreeMap<u32, MemberPort>,
    /// Interfaces that should be ports but cannot, with the reason.
    refused: BTreeMap<String, String>,
    /// The MAC address of the switch's own interface, and its slot.
    own: Option<([u8; 6], u32)>,
    notes: Vec<String>,
    swept: Instant,
    /// The last query of what devices support failed.
    untold: bool,
    kept: bool,
}

impl Switch {
    /// Loads the programs and attaches them to the existing interfaces.
    ///
    /// # Errors
    /// The kernel's error. An interface that cannot be a port is not an error; see [`Self::refused`].
    pub fn open(settings: Settings) -> Result<Self, SwitchError> {
        let interfaces =
            Interfaces::open().map_err(bm_bpf::Error::system("opening a socket to query interfaces"))?;
        own_interface(&settings, &interfaces)?;
        let programs = Programs::load(&settings)?;
        let mut notes = Vec::new();
        let pins = pins::claim(&settings.name).map_err(|why| {
            notes.push(format!("switch {} stops when the daemon ends: {why}", settings.name));
        });
        let pins = pins.ok();
        let left = pins.as_ref().map(Pins::links).unwrap_or_default();
        let mut switch = Self {
            settings,
            programs,
            interfaces,
            pins,
            inherited: left.iter().find(|pinned| pins::is_ours(pinned)).map(pins::slots).unwrap_or_default(),
            left,
            joined: BTreeMap::new(),
            refused: BTreeMap::new(),
            own: None,
            notes,
            swept: Instant::now(),
            untold: false,
            kept: false,
        };
        switch.reconcile()?;
        switch.detach_leftovers();
        Ok(switch)
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Interfaces that should be ports but cannot, with the reason.
    pub fn refused(&self) -> &BTreeMap<String, String> {
        &self.refused
    }

    /// What the operator should know.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Adds and removes ports according to the interfaces that exist now.
    ///
    /// # Errors
    /// If the interfaces cannot be queried; ports whose interface is gone are then removed, and nothing else is done.
    pub fn reconcile(&mut self) -> Result<(), SwitchError> {
        let all = interface::list().map_err(bm_bpf::Error::system("listing interfaces"))?;
        let wanted: BTreeMap<u32, String> =
            all.into_iter().filter(|(_, name)| self.settings.has(name)).collect();
        let gone: Vec<u32> = self
            .joined
            .iter()
            .filter_map(|(ifindex, port)| (wanted.get(ifindex) != Some(&port.name)).then_some(*ifindex))
            .collect();
        gone.into_iter().for_each(|ifindex| self.remove_port(ifindex));
        self.refused.retain(|name, _| wanted.values().any(|other| other == name));
        let mut new = Vec::new();
        // Before any interface is added, because an added one would not be checked again.
        let features = match wanted.keys().all(|ifindex| self.joined.contains_key(ifindex)) {
            true => None,
            false => Some(
                Features::read()
                    .map_err(bm_bpf::Error::system("querying which devices can send XDP frames"))?,
            ),
        };
        for (&ifindex, name) in &wanted {
            if let Some(port) = self.joined.get(&ifindex) {
                if let Ok(interface) = port.interface.refreshed(&self.interfaces, name) {
                    self.refresh(ifindex, &interface);
                }
                continue;
            }
            let Some(accepts) = features.as_ref().map(|features| features.accepts(ifindex)) else { continue };
            let Ok(interface) = InterfaceState::query(&self.interfaces, name, accepts) else { continue };
            match self.add_port(ifindex, name, &interface) {
                Ok(()) => new.push(ifindex),
                Err(why) => self.record_refusal(name, &why),
            }
        }
        self.take_over_fdb();
        self.place_own();
        for ifindex in new {
            if let Err(why) = self.place_statics(ifindex).and_then(|()| self.attach(ifindex)) {
                let name = wanted[&ifindex].clone();
                self.remove_port(ifindex);
                self.record_refusal(&name, &why.into());
            }
        }
        Ok(())
    }

    fn record_refusal(&mut self, name: &str, why: &SwitchError) {
        let why = why.to_string();
        if self.refused.get(name) != Some(&why) {
            tracing::warn!("{name} cannot be a port of switch {}: {why}", self.settings.name);
            self.refused.insert(name.into(), why);
        }
    }

    /// A slot for an interface: the one it had, or a free one.
    fn slot(&self, ifindex: u32) -> Option<u32> {
        if let Some(&slot) = self.inherited.get(&ifindex)
            && self.joined.values().all(|port| port.slot != slot)
        {
            return Some(slot);
        }
        let mut taken: Vec<bool> = vec![false; SLOTS];
        let others = self.joined.values().map(|port| &port.slot).chain(self.inherited.values());
        for slot in others {
            if let Some(taken) = taken.get_mut(*slot as usize) {
                *taken = true;
            }
        }
        taken.iter().position(|taken| !taken).map(|slot| slot as u32)
    }

    /// Writes an interface into all maps.
    fn add_port(&mut self, ifindex: u32, name: &str, interface: &InterfaceState) -> Result<(), SwitchError> {
        let slot = self.slot(ifindex).ok_or(SwitchError::ManyPorts)?;
        let settings = self.settings.port_settings(name);
        let entry = entry(ifindex, interface, &settings);
        let port = MemberPort {
            name: name.into(),
            slot,
            interface: *interface,
            entry,
            generic: false,
            promiscuous: interface.driver == Driver::Other
                && self.interfaces.set_flag(name, Flag::Promiscuous, true).unwrap_or(false),
            link: None,
            pin: None,
            settings,
        };
        let done = self.programs.join(slot, ifindex, &port.settings);
        self.joined.insert(ifindex, port);
        let done = done.and_then(|()| self.programs.set_port(slot, &entry));
        if done.is_err() {
            self.remove_port(ifindex);
        }
        Ok(done?)
    }

    /// Attaches the program to a port, or updates the link that an earlier daemon left there.
    fn attach(&mut self, ifindex: u32) -> Result<(), bm_bpf::Error> {
        let Some(port) = self.joined.get(&ifindex) else { return Ok(()) };
        let ours = self.left.iter().position(|pinned| pinned.ifindex == ifindex && pins::is_ours(pinned));
        let program = self.programs.on_ports();
        let (link, pin) = match ours {
            Some(at) => {
                let mut pinned = self.left.swap_remove(at);
                if let Err(error) = pinned.link.update_prog(&program) {
                    // The earlier program must not continue with its own maps: it is detached with the others.
                    self.left.push(pinned);
                    return Err(bm_bpf::Error::program("taking over a port")(error));
                }
                (pinned.link, Some(pinned.path))
            }
            None => {
                let failed = bm_bpf::Error::attach("attaching the switch's program", ifindex, &port.name);
                let mut link = program.attach_xdp(ifindex as i32).map_err(failed)?;
                let pin = self.pins.as_ref().map(|pins| pins.pin(ifindex, &mut link)).transpose()?;
                (link, pin)
            }
        };
        // A veth or TAP never is, and the query gets slower with the number of interfaces.
        let generic = port.interface.driver == Driver::Other && interface::is_generic(ifindex);
        if let Some(port) = self.joined.get_mut(&ifindex) {
            (port.link, port.pin, port.generic) = (Some(link), pin, generic);
            self.refused.remove(&port.name);
            tracing::info!(port = port.name, switch = self.settings.name, "joined");
        }
        Ok(())
    }

    /// Updates a port whose interface has changed.
    fn refresh(&mut self, ifindex: u32, interface: &InterfaceState) {
        let Some(port) = self.joined.get_mut(&ifindex) else { return };
        port.interface = *interface;
        let entry = entry(ifindex, interface, &port.settings);
        if entry != port.entry && self.programs.set_port(port.slot, &entry).is_ok() {
            port.entry = entry;
        }
    }

    fn remove_port(&mut self, ifindex: u32) {
        let Some(mut port) = self.joined.remove(&ifindex) else { return };
        if self.settings.own_port().as_ref() == Some(&port.name) {
            self.own = None;
        }
        if port.link.is_some() {
            tracing::info!(port = port.name, switch = self.settings.name, "left");
        }
        detach(&mut port);
        if port.promiscuous {
            let _gone = self.interfaces.set_flag(&port.name, Flag::Promiscuous, false);
        }
        self.programs.remove_port(port.slot, ifindex);
        self.unbind(&port.name, port.slot);
        self.forget(|entry| entry.slot == port.slot);
    }

    /// Detaches an earlier daemon's programs from interfaces that are no longer ports.
    fn detach_leftovers(&mut self) {
        for pinned in self.left.drain(..).filter(pins::is_ours) {
            pinned.remove();
        }
    }

    /// Periodic work: removes expired addresses, and checks the other ends of veth pairs.
    pub(crate) fn maintain(&mut self) {
        let every = match self.settings.ageing / 4 {
            Duration::ZERO => SWEEP_EVERY.1,
            every => every.clamp(SWEEP_EVERY.0, SWEEP_EVERY.1),
        };
        if self.swept.elapsed() >= every {
            self.swept = Instant::now();
            self.sweep();
        }
        // Linux sends no event when the other end, in another namespace, changes.
        let features = match Features::read() {
            Ok(features) => features,
            Err(error) => {
                if !std::mem::replace(&mut self.untold, true) {
                    tracing::warn!(%error, "cannot query which devices can send XDP frames; ports stay as they are");
                }
                return;
            }
        };
        self.untold = false;
        let mut changed = Vec::new();
        for (&ifindex, port) in &self.joined {
            let accepts = features.accepts(ifindex);
            if accepts != port.interface.accepts {
                changed.push((ifindex, InterfaceState { accepts, ..port.interface }));
            }
        }
        changed.iter().for_each(|(ifindex, interface)| self.refresh(*ifindex, interface));
    }

    /// The number of ports.
    pub fn port_count(&self) -> usize {
        self.joined.len()
    }

    /// The ports, ordered by interface index.
    pub fn ports(&self) -> Vec<PortView> {
        let views = self.joined.iter().map(|(ifindex, port)| PortView {
            name: port.name.clone(),
            ifindex: *ifindex,
            up: port.entry.flags & PORT_UP != 0,
            takes_frames: port.entry.flags & PORT_TAKES_FRAMES != 0,
            generic: port.generic,
            mtu: port.entry.mtu,
            vlans: port.settings.vlans.clone(),
            flags: port.settings.flags,
            fdb_max_learned: port.settings.fdb_max_learned,
            counters: self.programs.counters(port.slot),
        });
        views.collect()
    }

    /// Keeps the switch running when this is dropped.
    ///
    /// # Errors
    /// If the programs are not pinned.
    pub fn keep(&mut self) -> Result<(), SwitchError> {
        if self.pins.is_none() {
            return Err(bm_bpf::Error::NotPinned.into());
        }
        self.kept = true;
        Ok(())
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        for port in self.joined.values_mut() {
            detach(port);
            if port.promiscuous {
                let _gone = self.interfaces.set_flag(&port.name, Flag::Promiscuous, false);
            }
        }
        if let Some(ifindex) = self.settings.own_port().and_then(|name| interface::index(&name)) {
            let _gone = link::remove(ifindex);
        }
    }
}

/// Detaches the program from a port immediately, even if a forked child still has the descriptors.
fn detach(port: &mut MemberPort) {
    if let Some(pin) = port.pin.take() {
        let _gone = std::fs::remove_file(pin);
    }
    if let Some(link) = port.link.take() {
        xdp::detach(&link);
    }
}

/// Creates the interface that connects Linux to the switch, or uses the existing one.
fn own_interface(settings: &Settings, interfaces: &Interfaces) -> Result<(), SwitchError> {
    let (Some(name), Some(port)) = (&settings.interface, settings.own_port()) else { return Ok(()) };
    let failed = |error| SwitchError::Own { interface: name.clone(), error };
    if interface::index(name).is_none() || interface::index(&port).is_none() {
        link::make_veth(name, &port).map_err(io::Error::from).map_err(failed)?;
    }
    interface::prepare_peer(interfaces, name).map_err(failed)?;
    for name in [&port, name] {
        interfaces.set_flag(name, Flag::Up, true).map_err(failed)?;
    }
    Ok(())
}

/// The entry of a port in the program's map.
fn entry(ifindex: u32, interface: &InterfaceState, settings: &PortSettings) -> Port {
    let flags = &settings.flags;
    let (flood_interval_ns, flood_burst_ns) = schedule(settings.flood_limit);
    let (move_interval_ns, move_burst_ns) = schedule(settings.move_limit);
    let mut port = Port {
        ifindex,
        mtu: interface.mtu,
        flags: flag(interface.up, PORT_UP)
            | flag(interface.accepts.frames, PORT_TAKES_FRAMES)
            | flag(interface.accepts.long, PORT_TAKES_LONG)
            | flag(interface.partial_sums, PORT_PARTIAL_SUMS)
            | flag(!flags.learning, PORT_NO_LEARNING)
            | flag(flags.locked, PORT_LOCKED)
            | flag(flags.isolated, PORT_ISOLATED)
            | flag(flags.source_guard, PORT_SOURCE_GUARD)
            | flag(flags.dhcp_guard, PORT_DHCP_GUARD)
            | flag(flags.ra_guard, PORT_RA_GUARD)
            | flag(settings.vlans.tagged().next().is_none(), PORT_UNTAGGED),
        untagged: u32::from(settings.vlans.untagged()),
        flood_interval_ns,
        flood_burst_ns,
        move_interval_ns,
        move_burst_ns,
        learned_max: settings.fdb_max_learned,
        unused: 0,
        tagged: [0; 64],
    };
    for vlan in settings.vlans.tagged() {
        port.tagged[usize::from(vlan / 64) % 64] |= 1 << (vlan % 64);
    }
    port
}

/// `flag` if it is on, and no flag otherwise.
fn flag(on: bool, flag: u32) -> u32 {
    if on { flag } else { 0 }
}

/// Nanoseconds between events at a rate per second, and how much earlier than that they may come.
fn schedule(per_second: u32) -> (u64, u64) {
    let interval = 1_000_000_000u64.checked_div(u64::from(per_second)).unwrap_or(0);
    (interval, (BURST.as_nanos() as u64).max(BURST_EVENTS * interval))
}

#[cfg(test)]
mod tests;
