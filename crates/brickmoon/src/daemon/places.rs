//! Where the device of a port that workers have is replaced: the interface has gone, or is there again.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bm_frame::{Depot, Freelist};
use bm_graph::Replacer;
use bm_port::{HostPort, Port};

use super::state::lock;

/// How long a worker may take to come for a device: it draws breath ten times a second at the least.
const PATIENCE: Duration = Duration::from_secs(2);
/// Frames that closing a device handles at a time.
const CLOSING: usize = 256;

/// The way to Linux of a port without an interface.
pub struct Nowhere;

impl HostPort for Nowhere {
    fn deliver(&mut self, _packet: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::NotConnected.into())
    }
}

/// A way to Linux, in the slow path's hands, that may be replaced.
pub struct ReplaceableHost(Arc<Mutex<Box<dyn HostPort>>>);

impl ReplaceableHost {
    /// The slow path's end, and the one for replacing it.
    pub fn new(host: Box<dyn HostPort>) -> (Self, Arc<Mutex<Box<dyn HostPort>>>) {
        let shared = Arc::new(Mutex::new(host));
        (Self(shared.clone()), shared)
    }
}

impl HostPort for ReplaceableHost {
    fn deliver(&mut self, packet: &[u8]) -> io::Result<()> {
        lock(&self.0).deliver(packet)
    }

    fn deliver_all(&mut self, packets: &[&[u8]]) -> Vec<usize> {
        lock(&self.0).deliver_all(packets)
    }
}

/// All places of a port.
pub struct Places {
    /// By queue.
    pub queues: Vec<Replacer>,
    /// The slow path's.
    pub host: Arc<Mutex<Box<dyn HostPort>>>,
}

impl Places {
    /// Puts queues and the way to Linux of an interface there, or nothing. False if a worker has not come for it: then
    /// the data path has to be started again. What was there before is closed.
    #[must_use = "the port is half of one interface and half of another otherwise"]
    pub fn replace(&self, queues: Vec<Box<dyn Port>>, host: Box<dyn HostPort>, depot: &Arc<Depot>) -> bool {
        let before = std::mem::replace(&mut *lock(&self.host), host);
        drop(before);
        let mut frames = Freelist::new(depot.clone(), CLOSING);
        let mut all = true;
        let mut queues = queues.into_iter();
        for replacer in &self.queues {
            let old = match replacer.replace(queues.next(), PATIENCE) {
                Ok(before) => before,
                Err(refused) => {
                    all = false;
                    refused
                }
            };
            old.into_iter().for_each(|mut old| old.close(&mut frames));
        }
        // More queues than there are places.
        queues.for_each(|mut left| left.close(&mut frames));
        all
    }
}
