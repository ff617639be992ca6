//! Replaces the devices of a port of workers when its interface disappears or appears again.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bm_frame::{FramePool, Freelist};
use bm_graph::Replacer;
use bm_port::{HostPort, Port};

use crate::lock;

/// How long a worker may take to accept a new device; it breathes at least ten times a second.
const PATIENCE: Duration = Duration::from_secs(2);
/// Size of the freelist for closing devices, in frames.
const CLOSING: usize = 256;

/// The host port of a port without an interface: delivers nothing.
pub struct NoHost;

impl HostPort for NoHost {
    fn deliver(&mut self, _packet: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::NotConnected.into())
    }
}

/// A host port, used by the slow path, that can be replaced.
pub struct ReplaceableHost(Arc<Mutex<Box<dyn HostPort>>>);

impl ReplaceableHost {
    /// The end for the slow path, and the end for replacing the host port.
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

/// The replaceable parts of a port.
pub struct ReplaceableDevices {
    /// The queues, by number.
    pub queues: Vec<Replacer>,
    /// The host port that the slow path uses.
    pub host: Arc<Mutex<Box<dyn HostPort>>>,
}

impl ReplaceableDevices {
    /// Replaces the queues and the host port by those of another interface, or by none, and closes the old ones. False
    /// if a worker did not accept its queue in time: then the data path must be restarted.
    #[must_use = "otherwise one half of the port would be on another interface"]
    pub fn replace(
        &self,
        queues: Vec<Box<dyn Port>>,
        host: Box<dyn HostPort>,
        frame_pool: &Arc<FramePool>,
    ) -> bool {
        let before = std::mem::replace(&mut *lock(&self.host), host);
        drop(before);
        let mut frames = Freelist::new(frame_pool.clone(), CLOSING);
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
        // More queues than there are replaceable.
        queues.for_each(|mut left| left.close(&mut frames));
        all
    }
}
