//! The prefixes that lead where only Linux can send, for the steering programs of all ports.
//!
//! Linux may get any packet, so programs may see old and new prefixes mixed while they change.

use std::collections::HashMap;
use std::net::IpAddr;

use bm_port::LinuxRoute;
use libbpf_rs::libbpf_sys::{self, bpf_map_create_opts};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::error::XdpError;

/// Maximum number of prefixes of each family, and bits of the hints; the same as in `steer.bpf.c`.
const ROUTES_MAX: u32 = 8192;
const HINT_BITS: usize = 65_536;

/// The maps, and what is in them.
pub(crate) struct Routes {
    v4: MapHandle,
    v6: MapHandle,
    hints: MapHandle,
    known: HashMap<(IpAddr, u8), bool>,
}

impl Routes {
    pub fn new() -> Result<Self, XdpError> {
        Ok(Self {
            v4: create(MapType::LpmTrie, "routes4", 8, 1, ROUTES_MAX)?,
            v6: create(MapType::LpmTrie, "routes6", 20, 1, ROUTES_MAX)?,
            hints: create(MapType::Array, "route_hints", 4, HINT_BITS as u32 / 4, 1)?,
            known: HashMap::new(),
        })
    }

    /// Handles of the maps: IPv4, IPv6, hints.
    pub fn maps(&self) -> libbpf_rs::Result<[MapHandle; 3]> {
        let [v4, v6, hints] = [&self.v4, &self.v6, &self.hints].map(MapHandle::try_from);
        Ok([v4?, v6?, hints?])
    }

    /// Replaces the prefixes.
    pub fn set(&mut self, routes: &[LinuxRoute]) -> libbpf_rs::Result<()> {
        let wanted: HashMap<_, _> =
            routes.iter().map(|route| ((route.address, route.length), route.to_linux)).collect();
        if wanted == self.known {
            return Ok(());
        }
        let gone: Vec<_> = self.known.keys().filter(|key| !wanted.contains_key(key)).copied().collect();
        for key in gone {
            self.map(key.0).delete(&key_of(key.0, key.1))?;
            self.known.remove(&key);
        }
        for (&key, &to_linux) in &wanted {
            self.map(key.0).update(&key_of(key.0, key.1), &[to_linux.into()], MapFlags::ANY)?;
            self.known.insert(key, to_linux);
        }
        self.hint()
    }

    fn map(&self, address: IpAddr) -> &MapHandle {
        if address.is_ipv6() { &self.v6 } else { &self.v4 }
    }

    fn hint(&self) -> libbpf_rs::Result<()> {
        let mut words = vec![0u32; 2 * HINT_BITS / 32];
        for (address, _) in self.known.keys() {
            let (family, bit) = hint_of(*address);
            words[family * HINT_BITS / 32 + bit / 32] |= 1 << (bit % 32);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.hints.update(&0u32.to_ne_bytes(), &bytes, MapFlags::ANY)
    }
}

/// The family and the bit of an address, as `may_be_routed_by_linux` of steer.bpf.c computes them.
fn hint_of(address: IpAddr) -> (usize, usize) {
    match address {
        IpAddr::V4(address) => {
            (0, usize::from(u16::from_be_bytes([address.octets()[0], address.octets()[1]])))
        }
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.octets();
            (1, (u32::from_ne_bytes([a, b, c, d]).wrapping_mul(0x9e37_79b1) >> 16) as usize)
        }
    }
}

/// A key of the maps: the length, then the address.
fn key_of(address: IpAddr, length: u8) -> Vec<u8> {
    let mut key = u32::from(length).to_ne_bytes().to_vec();
    match address {
        IpAddr::V4(address) => key.extend(address.octets()),
        IpAddr::V6(address) => key.extend(address.octets()),
    }
    key
}

/// Creates a map that is not in an object file.
pub(crate) fn create(
    kind: MapType,
    name: &str,
    key: u32,
    value: u32,
    entries: u32,
) -> Result<MapHandle, XdpError> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags: if matches!(kind, MapType::Hash | MapType::LpmTrie) {
            libbpf_sys::BPF_F_NO_PREALLOC
        } else {
            0
        },
        ..bpf_map_create_opts::default()
    };
    MapHandle::create(kind, Some(name), key, value, entries, &options)
        .map_err(|error| XdpError::Program { interface: "all ports".into(), error })
}
