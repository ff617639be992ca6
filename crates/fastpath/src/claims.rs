//! The workers' sockets to which the program sends claimed packets.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd};

use bm_sys::Mutex;
use libbpf_rs::libbpf_sys::{self, bpf_map_create_opts};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::attach;
use crate::error::KernelError;
use crate::layout::INGRESSES;

/// Queues of an interface on which packets can be claimed: `CLAIM_QUEUES` of `claims.h`.
pub(crate) const CLAIM_QUEUES: u32 = 16;

/// The map of sockets. A socket that is closed leaves it automatically: its packets then go to Linux.
pub struct Claims {
    map: MapHandle,
    /// The interface that uses each slot of a first queue.
    holders: Mutex<BTreeMap<u32, u32>>,
}

impl Claims {
    pub(crate) fn create() -> libbpf_rs::Result<Self> {
        let options = bpf_map_create_opts {
            sz: size_of::<bpf_map_create_opts>() as libbpf_sys::size_t,
            ..bpf_map_create_opts::default()
        };
        let places = INGRESSES as u32 * CLAIM_QUEUES;
        let map = MapHandle::create(MapType::Xskmap, Some("claims"), 4, 4, places, &options)?;
        Ok(Self { map, holders: Mutex::default() })
    }

    pub(crate) fn handle(&self) -> libbpf_rs::Result<MapHandle> {
        MapHandle::try_from(&self.map)
    }

    /// Sends claimed packets of this queue to the AF_XDP socket, which is bound to it. Packets of queues beyond
    /// [`CLAIM_QUEUES`] go to Linux.
    ///
    /// # Errors
    /// If another existing interface uses the slot, since the program finds it by the low bits of the interface
    /// index; or what the kernel refused.
    pub fn bind(&self, ifindex: u32, queue: u32, socket: BorrowedFd<'_>) -> Result<(), KernelError> {
        if queue >= CLAIM_QUEUES {
            return Ok(());
        }
        let first = self.take_place(ifindex)?;
        let place = first + queue;
        let (place, socket) = (place.to_ne_bytes(), socket.as_raw_fd().to_ne_bytes());
        let failed = bm_bpf::Error::program("adding a worker's socket to the map");
        Ok(self.map.update(&place, &socket, MapFlags::ANY).map_err(failed)?)
    }

    /// Reserves the slot of an interface's first queue.
    fn take_place(&self, ifindex: u32) -> Result<u32, KernelError> {
        let place = ifindex % INGRESSES as u32 * CLAIM_QUEUES;
        // After a panic of another thread the data is still usable.
        let mut holders = self.holders.lock();
        match holders.get(&place) {
            Some(other) if *other != ifindex && attach::exists(*other) => {
                let [interface, other] = [ifindex, *other].map(attach::name);
                Err(KernelError::SamePlace { interface, other })
            }
            _ => {
                holders.insert(place, ifindex);
                Ok(place)
            }
        }
    }
}
