//! Sockets of workers, to which the program sends what is claimed for them.

use std::os::fd::{AsRawFd, BorrowedFd};

use libbpf_rs::libbpf_sys::{self, bpf_map_create_opts};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::error::KernelError;
use crate::layout::INGRESSES;

/// Queues of an interface that packets can be claimed on: `CLAIM_QUEUES` of `filter.h`.
pub const CLAIM_QUEUES: u32 = 16;

/// Where sockets go. One that is closed leaves by itself: its packets are Linux's then.
pub struct Claims(MapHandle);

impl Claims {
    pub(crate) fn create() -> libbpf_rs::Result<Self> {
        let options = bpf_map_create_opts {
            sz: size_of::<bpf_map_create_opts>() as libbpf_sys::size_t,
            ..bpf_map_create_opts::default()
        };
        let places = INGRESSES as u32 * CLAIM_QUEUES;
        MapHandle::create(MapType::Xskmap, Some("claims"), 4, 4, places, &options).map(Self)
    }

    pub(crate) fn handle(&self) -> libbpf_rs::Result<MapHandle> {
        MapHandle::try_from(&self.0)
    }

    /// Has claimed packets of this queue go to the AF_XDP socket, which is bound to it. On queues past the
    /// [`CLAIM_QUEUES`] that there is room for, they stay with Linux.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn bind(&self, ifindex: u32, queue: u32, socket: BorrowedFd<'_>) -> Result<(), KernelError> {
        if queue >= CLAIM_QUEUES {
            return Ok(());
        }
        let place = ifindex % INGRESSES as u32 * CLAIM_QUEUES + queue;
        let (place, socket) = (place.to_ne_bytes(), socket.as_raw_fd().to_ne_bytes());
        let failed = KernelError::program("putting a worker's socket into its map");
        self.0.update(&place, &socket, MapFlags::ANY).map_err(failed)
    }
}
