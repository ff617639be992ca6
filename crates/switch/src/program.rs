//! The programs and their maps, loaded.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, ProgramMut, libbpf_sys};

use crate::counters::Counters;
use crate::error::SwitchError;
use crate::layout::{Member, Plain, Port, Rules, SLOTS, STATION_STATIC, Station};
use crate::settings::{Address, Settings};
use crate::table;

/// The programs, as the build made them.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/switch.bpf.o"));
/// The one on ports.
pub const PROGRAM: &str = "bm_switch_1";
/// The one that frames pass on their way out.
const LEAVE: &str = "leave";
/// A station's time is not written more often: other cores read the same line.
const REFRESH: Duration = Duration::from_millis(500);

/// The programs and their maps.
pub struct Programs {
    object: Object,
    ports: MapHandle,
    slots: MapHandle,
    stations: MapHandle,
    counts: MapHandle,
    everyone: MapHandle,
    vlans: MapHandle,
    /// Members of each VLAN that has had any.
    members: BTreeMap<u16, MapHandle>,
}

impl Programs {
    /// Loaded, on no interface.
    pub fn load(settings: &Settings) -> Result<Self, SwitchError> {
        let failed = SwitchError::program("loading the switch's programs");
        let mut builder = ObjectBuilder::default();
        let mut open = builder.open_memory(OBJECT).map_err(&failed)?;
        let rules = Rules {
            ageing_ns: settings.ageing.as_nanos() as u64,
            refresh_ns: REFRESH.min(settings.ageing / 8).as_nanos() as u64,
            vlans: u32::from(settings.knows_vlans()),
            unused: 0,
        };
        for mut map in open.maps_mut() {
            if map.name() == "stations" {
                map.set_max_entries(settings.table).map_err(&failed)?;
            } else if map.name().to_string_lossy().ends_with(".rodata") {
                map.set_initial_value(rules.bytes()).map_err(&failed)?;
            }
        }
        let object = open.load().map_err(&failed)?;
        let find = |name| find(&object, name);
        Ok(Self {
            ports: find("ports")?,
            slots: find("slots")?,
            stations: find("stations")?,
            counts: find("counts")?,
            everyone: find("everyone")?,
            vlans: find("vlans")?,
            members: BTreeMap::new(),
            object,
        })
    }

    /// The program for ports.
    pub fn on_ports(&mut self) -> ProgramMut<'_> {
        program(&mut self.object, PROGRAM)
    }

    /// Says what a port is; frames from and to it are switched from here on.
    pub fn set_port(&mut self, slot: u32, port: &Port) -> Result<(), SwitchError> {
        let failed = SwitchError::program("writing a port's entry");
        self.ports.update(&slot.to_ne_bytes(), port.bytes(), MapFlags::ANY).map_err(&failed)?;
        self.slots.update(&port.ifindex.to_ne_bytes(), &slot.to_ne_bytes(), MapFlags::ANY).map_err(&failed)
    }

    /// Has frames of these VLANs go to a port.
    pub fn join(
        &mut self,
        slot: u32,
        ifindex: u32,
        vlans: impl Iterator<Item = u16>,
    ) -> Result<(), SwitchError> {
        let failed = SwitchError::program("taking a port in");
        let leave = program(&mut self.object, LEAVE).as_fd().as_raw_fd();
        let (slot, member) = (slot.to_ne_bytes(), Member { ifindex, program: leave });
        self.everyone.update(&slot, member.bytes(), MapFlags::ANY).map_err(&failed)?;
        for vlan in vlans {
            let members = match self.members.entry(vlan) {
                std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
                std::collections::btree_map::Entry::Vacant(new) => {
                    let members = devices().map_err(&failed)?;
                    let (key, fd) =
                        (u32::from(vlan).to_ne_bytes(), members.as_fd().as_raw_fd().to_ne_bytes());
                    self.vlans.update(&key, &fd, MapFlags::ANY).map_err(&failed)?;
                    new.insert(members)
                }
            };
            members.update(&slot, member.bytes(), MapFlags::ANY).map_err(&failed)?;
        }
        Ok(())
    }

    /// Forgets a port. Whatever is gone already is as good.
    pub fn remove_port(&mut self, slot: u32, ifindex: u32) {
        let key = slot.to_ne_bytes();
        let _gone = self.slots.delete(&ifindex.to_ne_bytes());
        for members in std::iter::once(&self.everyone).chain(self.members.values()) {
            let _gone = members.delete(&key);
        }
        let nobody = Port {
            ifindex: 0,
            mtu: 0,
            flags: 0,
            untagged: 0,
            flood_interval_ns: 0,
            flood_burst_ns: 0,
            tagged: [0; 64],
        };
        let _never_fails = self.ports.update(&key, nobody.bytes(), MapFlags::ANY);
        let _never_fails = self.counts.update_percpu(&key, &zeros(&self.counts), MapFlags::ANY);
    }

    /// Every station that the table has, old ones too.
    ///
    /// # Errors
    /// What the kernel said; then nothing is known of any.
    pub fn stations(&self) -> Result<Vec<(Address, Station)>, SwitchError> {
        table::read(&self.stations).map_err(SwitchError::system("reading the table of stations"))
    }

    /// Puts a station into the table, or in the place of what is known of it.
    pub fn set_station(&self, address: Address, station: &Station) -> Result<(), SwitchError> {
        let failed = SwitchError::program("writing a station");
        self.stations.update(&table::key(address), station.bytes(), MapFlags::ANY).map_err(failed)
    }

    /// Takes a station out.
    pub fn remove_station(&self, address: Address) {
        let _gone = self.stations.delete(&table::key(address));
    }

    /// What became of a port's frames.
    pub fn counters(&self, slot: u32) -> Counters {
        // An array has all its keys.
        Counters::read(&self.counts, slot).unwrap_or_default()
    }
}

fn zeros(map: &MapHandle) -> Vec<Vec<u8>> {
    vec![vec![0; map.value_size() as usize]; libbpf_rs::num_possible_cpus().unwrap_or(1)]
}

/// Whether a station ages.
pub fn is_static(station: &Station) -> bool {
    station.flags & STATION_STATIC != 0
}

/// A map of devices by slot.
fn devices() -> libbpf_rs::Result<MapHandle> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..libbpf_sys::bpf_map_create_opts::default()
    };
    MapHandle::create(MapType::Devmap, Some("members"), 4, size_of::<Member>() as u32, SLOTS as u32, &options)
}

fn find(object: &Object, name: &str) -> Result<MapHandle, SwitchError> {
    let map = object.maps().find(|map| map.name() == name).expect("the programs have this map");
    MapHandle::try_from(&map).map_err(SwitchError::program("finding the switch's maps"))
}

fn program<'o>(object: &'o mut Object, name: &str) -> ProgramMut<'o> {
    object.progs_mut().find(|program| program.name() == name).expect("the object has this program")
}
