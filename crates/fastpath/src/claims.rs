//! Sockets of workers, to which the program sends what is claimed for them.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::libbpf_sys::{self, bpf_map_create_opts};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::attach;
use crate::error::KernelError;
use crate::layout::INGRESSES;

/// Queues of an interface that packets can be claimed on: `CLAIM_QUEUES` of `claims.h`.
pub const CLAIM_QUEUES: u32 = 16;

/// Where sockets go. One that is closed leaves by itself: its packets are Linux's then.
pub struct Claims {
    map: MapHandle,
    /// By the place of its first queue, the interface that has it.
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

    /// Has claimed packets of this queue go to the AF_XDP socket, which is bound to it. On queues past the
    /// [`CLAIM_QUEUES`] that there is room for, they stay with Linux.
    ///
    /// # Errors
    /// If another interface that is there has the place, since the program finds it by the low bits of its number;
    /// or what the kernel refused.
    pub fn bind(&self, ifindex: u32, queue: u32, socket: BorrowedFd<'_>) -> Result<(), KernelError> {
        if queue >= CLAIM_QUEUES {
            return Ok(());
        }
        let first = self.take_place(ifindex)?;
        let place = first + queue;
        let (place, socket) = (place.to_ne_bytes(), socket.as_raw_fd().to_ne_bytes());
        let failed = KernelError::program("adding a worker's socket to the map");
        self.map.update(&place, &socket, MapFlags::ANY).map_err(failed)
    }

    /// The place of an interface's first queue, its own from now on.
    fn take_place(&self, ifindex: u32) -> Result<u32, KernelError> {
        let place = ifindex % INGRESSES as u32 * CLAIM_QUEUES;
        // What a panicking thread left is still what there is.
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
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
