//! Shows the steering program that the worker of a queue is running.
//!
//! ```text
//! steer.bpf.c: a frame for the socket -> since = now, unless it is set      worker: receive -> since = 0
//!              since is older than a while -> the worker hangs, or is being killed: Linux gets the frame
//! ```
//!
//! A killed process keeps its sockets until the kernel has freed its memory, which takes longer the more there is;
//! and a worker that hangs keeps them for ever. In both cases frames would fill the ring and be lost. One word per
//! queue, in memory that the program and the worker share, shows the difference.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use bm_sys::{Access, Map};

/// Bytes of the map for each queue: a cache line. The same in `bpf/steer.bpf.c`.
const LINE: usize = 64;

/// The word of one queue.
pub(crate) struct QueueHeartbeat {
    map: Map,
    /// Where the word is, in bytes.
    at: usize,
}

impl QueueHeartbeat {
    /// Maps the word of `queue` from the array `map`, which has a cache line for each of `queues`.
    pub fn open(map: &impl AsFd, queue: u32, queues: u32) -> io::Result<Self> {
        debug_assert!(queue < queues);
        let map = Map::file(map, 0, queues as usize * LINE, Access::ReadWrite)?;
        Ok(Self { map, at: queue as usize * LINE })
    }

    /// Shows that the worker takes frames. Stores only if the program has set the word, so that the cache line stays
    /// shared while no frames arrive.
    #[inline]
    pub fn beat(&self) {
        // The program's single loads and stores are atomic, too.
        let since = &self.map.atomics::<AtomicU64>(self.at, 1)[0];
        if since.load(Ordering::Relaxed) != 0 {
            since.store(0, Ordering::Relaxed);
        }
    }
}
