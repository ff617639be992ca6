//! What of arriving packets is Linux's, where SAs and policies are the kernel's own.
//!
//! ```text
//! ESP ─► copy ─► decrypt ─┬─ a policy requires this SA, and workers forward what is inside ─► router
//!                         └─ anything else: for this machine, say ─► the copy ─► router ─► Linux, which decrypts it
//! ```
//!
//! Linux would drop a packet from a tunnel that it gets decrypted, since it cannot know that it was encrypted.

use std::sync::Arc;

use bm_fib::published::{Published, ReaderHandle};
use bm_frame::Frame;

use crate::filter::PortFilter;
use crate::route::{self, Route};
use crate::slow::Header;
use crate::stages::input::{self, Arrival};
use crate::stages::rewrite;
use crate::tables::Tables;

/// Decides what is Linux's, and keeps packets as they came.
pub(super) struct LeftToLinux {
    published: Arc<Published<Tables>>,
    reader: ReaderHandle,
    worker: usize,
    originals: Vec<Vec<u8>>,
}

impl LeftToLinux {
    pub fn new(published: Arc<Published<Tables>>, reader: ReaderHandle, worker: usize) -> Self {
        Self { published, reader, worker, originals: Vec::new() }
    }

    /// Copies frames that are about to be decrypted.
    #[inline]
    pub fn save<'a>(&mut self, frames: impl Iterator<Item = &'a Frame>) {
        for (at, frame) in frames.enumerate() {
            if self.originals.len() == at {
                // As many as are decrypted together, once.
                self.originals.push(Vec::with_capacity(2048));
            }
            self.originals[at].clear();
            self.originals[at].extend_from_slice(frame.data());
        }
    }

    /// Makes a frame what it was when it was copied, as the one at this place.
    pub fn restore(&self, at: usize, frame: &mut Frame) {
        // It was there, so there is room.
        let _fits = frame.copy_from(&self.originals[at]);
    }

    /// Whether Linux handles this packet if it arrives in clear on `port`: it is for this machine, or a firewall concerns
    /// it.
    #[inline]
    pub fn takes(&self, frame: &[u8], port: usize, now_ns: u64) -> bool {
        let tables = self.published.load(&self.reader);
        let filter = PortFilter::of(tables, port, self.worker, now_ns);
        filter.is_some_and(|filter| filter.is_linux_only(frame))
            || is_to_host(tables, frame, port).unwrap_or(true)
    }

    /// No table is in use until the next packet.
    pub fn quiescent(&mut self) {
        self.reader.quiescent();
    }

    pub fn before_sleep(&mut self) {
        self.reader.offline();
    }

    pub fn after_sleep(&mut self) {
        self.reader.online();
    }
}

/// Whether the route of a packet leads to Linux; `None` if it has none that can be looked up.
fn is_to_host(tables: &Tables, frame: &[u8], port: usize) -> Option<bool> {
    let view = tables.compiled.ports.get(port)?;
    let Arrival { interface, network, .. } = input::classify(&tables.compiled, view, frame).ok()?;
    let packet = frame.get(usize::from(network)..)?;
    let Header { destination, .. } = Header::parse(packet)?;
    let vrf = tables.compiled.ingress.get(usize::from(interface))?.vrf;
    Some(route::to(tables, vrf, destination, || rewrite::hash(tables, packet)) == Route::Host)
}
