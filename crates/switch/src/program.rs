//! The programs and their maps.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use bm_bpf::MapValue;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, ProgramMut, libbpf_sys};

use crate::counters::Counters;

use crate::flood::Sets;
use crate::layout::{Binding, FDB_STATIC, FdbEntry, Member, Port, RESERVED_MACS, Rules, SLOTS};
use crate::settings::{Address, PortSettings, Settings};
use crate::table;

/// The object file with the programs, made by the build script.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/switch.bpf.o"));
/// The program on ports.
pub const PROGRAM: &str = "bm_switch_3";
/// The program that frames pass when they leave through a port.
const LEAVE: &str = "leave";
/// The time a MAC address was last seen is written at most this often: other cores read the same cache line.
const REFRESH: Duration = Duration::from_millis(500);

/// The programs and their maps.
pub struct Programs {
    object: Object,
    ports: MapHandle,
    slots: MapHandle,
    fdb: MapHandle,
    counts: MapHandle,
    everyone: MapHandle,
    vlans: MapHandle,
    /// The keys of the learned addresses of each port, by slot.
    learned: MapHandle,
    shared: MapHandle,
    bindings: MapHandle,
    learned_by_port: BTreeMap<u32, MapHandle>,
    sets: Sets,
    /// The members of each set that has had any, by its number in `vlans`.
    members: BTreeMap<u32, MapHandle>,
}

impl Programs {
    /// Loads the programs without attaching them to an interface.
    pub fn load(settings: &Settings) -> Result<Self, bm_bpf::Error> {
        let failed = bm_bpf::Error::program("loading the switch's programs");
        let mut builder = ObjectBuilder::default();
        let mut open = builder.open_memory(OBJECT).map_err(&failed)?;
        let rules = Rules {
            ageing_ns: settings.ageing.as_nanos() as u64,
            refresh_ns: REFRESH.min(settings.ageing / 8).as_nanos() as u64,
            vlans: u32::from(settings.has_vlans()),
            table: settings.table,
            isolation: u32::from(settings.isolates()),
            flood_kinds: u32::from(settings.limits_floods()),
            guards: u32::from(settings.guards()),
            unused: 0,
        };
        for mut map in open.maps_mut() {
            if map.name() == "fdb" {
                map.set_max_entries(settings.table + SLOTS as u32 * RESERVED_MACS).map_err(&failed)?;
            } else if map.name() == "bindings" {
                // Room for a port that leaves and another that joins at the same time.
                let count: usize = settings.statics.iter().map(|one| one.addresses.len()).sum();
                map.set_max_entries(count as u32 + 1).map_err(&failed)?;
            } else if map.name().to_string_lossy().ends_with(".rodata") {
                map.set_initial_value(rules.bytes()).map_err(&failed)?;
            }
        }
        let object = open.load().map_err(&failed)?;
        let find = |name| find(&object, name);
        Ok(Self {
            ports: find("ports")?,
            slots: find("slots")?,
            fdb: find("fdb")?,
            counts: find("counts")?,
            everyone: find("everyone")?,
            vlans: find("vlans")?,
            learned: find("learned")?,
            shared: find("shared")?,
            bindings: find("bindings")?,
            learned_by_port: BTreeMap::new(),
            sets: Sets::from_settings(settings),
            members: BTreeMap::new(),
            object,
        })
    }

    /// The program to attach to ports.
    pub(crate) fn on_ports(&mut self) -> ProgramMut<'_> {
        program(&mut self.object, PROGRAM)
    }

    /// Writes the entry of a port; frames from and to it are switched from now on.
    pub fn set_port(&mut self, slot: u32, port: &Port) -> Result<(), bm_bpf::Error> {
        let failed = bm_bpf::Error::program("writing a port's entry");
        self.ports.update(&slot.to_ne_bytes(), port.bytes(), MapFlags::ANY).map_err(&failed)?;
        self.slots.update(&port.ifindex.to_ne_bytes(), &slot.to_ne_bytes(), MapFlags::ANY).map_err(&failed)
    }

    /// Adds a port to the flood sets of its VLANs, and creates the list of its learned addresses.
    pub fn join(&mut self, slot: u32, ifindex: u32, settings: &PortSettings) -> Result<(), bm_bpf::Error> {
        let failed = bm_bpf::Error::program("adding a port");
        let leave = program(&mut self.object, LEAVE).as_fd().as_raw_fd();
        let (key, member) = (slot.to_ne_bytes(), Member { ifindex, program: leave });
        self.everyone.update(&key, member.bytes(), MapFlags::ANY).map_err(&failed)?;
        for set in self.sets.with(settings) {
            let members = match self.members.entry(set) {
                std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
                std::collections::btree_map::Entry::Vacant(new) => {
                    let members = devices().map_err(&failed)?;
                    let fd = members.as_fd().as_raw_fd().to_ne_bytes();
                    self.vlans.update(&set.to_ne_bytes(), &fd, MapFlags::ANY).map_err(&failed)?;
                    new.insert(members)
                }
            };
            members.update(&key, member.bytes(), MapFlags::ANY).map_err(&failed)?;
        }
        let macs = learned_macs(settings.fdb_max_learned).map_err(&failed)?;
        let fd = macs.as_fd().as_raw_fd().to_ne_bytes();
        self.learned.update(&key, &fd, MapFlags::ANY).map_err(&failed)?;
        self.learned_by_port.insert(slot, macs);
        Ok(())
    }

    /// Removes a port from all maps. Entries that are already gone are ignored.
    pub(crate) fn remove_port(&mut self, slot: u32, ifindex: u32) {
        let key = slot.to_ne_bytes();
        let _gone = self.slots.delete(&ifindex.to_ne_bytes());
        for members in std::iter::once(&self.everyone).chain(self.members.values()) {
            let _gone = members.delete(&key);
        }
        let _gone = self.learned.delete(&key);
        self.learned_by_port.remove(&slot);
        let _never_fails = self.ports.update(&key, Port::NOBODY.bytes(), MapFlags::ANY);
        let _never_fails = bm_bpf::reset_counters(&self.counts, &key);
    }

    /// All entries of the MAC address table, including expired ones.
    ///
    /// # Errors
    /// The kernel's error; nothing was read then.
    pub fn fdb(&self) -> Result<Vec<(Address, FdbEntry)>, bm_bpf::Error> {
        table::read(&self.fdb).map_err(bm_bpf::Error::system("reading the MAC address table"))
    }

    /// Adds an entry to the MAC address table, or replaces it.
    pub(crate) fn set_fdb_entry(&self, address: Address, entry: &FdbEntry) -> Result<(), bm_bpf::Error> {
        let failed = bm_bpf::Error::program("writing a MAC address");
        self.fdb.update(&table::key(address), entry.bytes(), MapFlags::ANY).map_err(failed)
    }

    /// Adds a learned address to the table and to the list of its port.
    pub(crate) fn set_learned(&self, address: Address, entry: &FdbEntry) -> Result<(), bm_bpf::Error> {
        let failed = bm_bpf::Error::program("writing a learned MAC address");
        if let Some(macs) = self.learned_by_port.get(&entry.slot) {
            let at = entry.index.to_ne_bytes();
            macs.update(&at, &table::key(address), MapFlags::ANY).map_err(failed)?;
        }
        self.set_fdb_entry(address, entry)
    }

    /// Sets the number of addresses that count against the size of the table.
    pub(crate) fn set_shared(&self, count: u64) -> Result<(), bm_bpf::Error> {
        let failed = bm_bpf::Error::program("counting MAC addresses");
        self.shared.update(&0u32.to_ne_bytes(), &count.to_ne_bytes(), MapFlags::ANY).map_err(failed)
    }

    /// Allows a MAC address to send from an IP address behind a port, or no longer.
    pub fn bind(&self, slot: u32, mac: [u8; 6], address: IpAddr, allowed: bool) -> Result<(), bm_bpf::Error> {
        let [a, b, c, d, e, f] = mac;
        let mac = u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]);
        let address = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let binding = Binding { slot, unused: 0, mac, address: address.octets() };
        if !allowed {
            let _gone = self.bindings.delete(binding.bytes());
            return Ok(());
        }
        let failed = bm_bpf::Error::program("writing an allowed IP address");
        self.bindings.update(binding.bytes(), &1u32.to_ne_bytes(), MapFlags::ANY).map_err(failed)
    }

    /// Removes an entry from the MAC address table.
    pub(crate) fn remove_fdb_entry(&self, address: Address) {
        let _gone = self.fdb.delete(&table::key(address));
    }

    /// The counters of a port.
    pub fn counters(&self, slot: u32) -> Counters {
        // An array map contains all of its keys.
        Counters::read(&self.counts, slot).ok().flatten().unwrap_or_default()
    }
}

/// Whether an entry is static, that is, does not age.
pub fn is_static(entry: &FdbEntry) -> bool {
    entry.flags & FDB_STATIC != 0
}

fn options(map_flags: u32) -> libbpf_sys::bpf_map_create_opts {
    libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags,
        ..libbpf_sys::bpf_map_create_opts::default()
    }
}

/// A list of the learned addresses of one port.
fn learned_macs(count: u32) -> libbpf_rs::Result<MapHandle> {
    // As an inner map, its size may differ from that of other ports.
    let options = options(libbpf_sys::BPF_F_INNER_MAP);
    MapHandle::create(MapType::Array, Some("learned_macs"), 4, 8, count, &options)
}

/// A map of devices by slot.
fn devices() -> libbpf_rs::Result<MapHandle> {
    let options = options(0);
    MapHandle::create(MapType::Devmap, Some("members"), 4, size_of::<Member>() as u32, SLOTS as u32, &options)
}

fn find(object: &Object, name: &str) -> Result<MapHandle, bm_bpf::Error> {
    let map = object.maps().find(|map| map.name() == name).expect("the programs have this map");
    MapHandle::try_from(&map).map_err(bm_bpf::Error::program("finding the switch's maps"))
}

fn program<'o>(object: &'o mut Object, name: &str) -> ProgramMut<'o> {
    object.progs_mut().find(|program| program.name() == name).expect("the object has this program")
}
