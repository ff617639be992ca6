//! Links with queues: when a frame arrives at the other end, or that it finds no room.

use bm_vlb::Node;

use crate::traffic::{GAP_BYTES, time_ns};

/// What a server takes for a packet, and the cable: RouteBricks measured 24 us a server.
pub const HOP_NS: u64 = 20_000;
/// The least that a queue holds, in time and in frames of 1,518 bytes.
pub const QUEUE_NS: u64 = 10_000_000;
const QUEUE_FRAMES: u64 = 64;

/// A frame between two nodes.
#[derive(Clone, Copy)]
pub struct Frame {
    /// Destination and source address.
    pub addresses: (bm_wire::ethernet::Mac, bm_wire::ethernet::Mac),
    /// The node that it arrives at, and the link by which it does.
    pub at: Node,
    /// Index of that link.
    pub link: u32,
    /// Number of its flow.
    pub flow: u32,
    /// Length without preamble and gap.
    pub bytes: u16,
    /// Links so far.
    pub hops: u8,
    /// What the simulator knows about it, to check what nodes do by the addresses.
    pub truth: Truth,
}

/// What must become of a frame.
#[derive(Clone, Copy)]
pub struct Truth {
    /// Its output node.
    pub output: Node,
    /// Its neighbor there, whatever index that has in an epoch.
    pub neighbor: u16,
    /// When it came in.
    pub since_ns: u64,
}

/// A queue before something that sends at a rate: a link, or the external ports of a node.
#[derive(Clone, Copy, Default)]
pub struct Queue {
    busy_until_ns: u64,
    /// Sent, with preamble and gap.
    pub bytes: u64,
    /// Frames sent.
    pub sent: u64,
    /// Frames that arrived at the other end, or were lost on the way because this or the other end failed.
    pub arrived: u64,
}

impl Queue {
    /// How long a frame would wait.
    pub fn waits_ns(&self, now_ns: u64) -> u64 {
        self.busy_until_ns.saturating_sub(now_ns)
    }

    /// Takes a frame, and says when it has been sent; `None` if the queue is full.
    #[inline]
    pub fn send(&mut self, bytes: u16, bps: u64, now_ns: u64) -> Option<u64> {
        let on_wire = u64::from(bytes) + GAP_BYTES;
        let start = self.busy_until_ns.max(now_ns);
        let waits = start - now_ns;
        // The division only for links on which frames wait for long.
        if waits > QUEUE_NS && waits > time_ns(QUEUE_FRAMES * 1518, bps) {
            return None;
        }
        self.busy_until_ns = start + time_ns(on_wire, bps);
        self.bytes += on_wire;
        self.sent += 1;
        Some(self.busy_until_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_queued_and_dropped_when_the_queue_is_full() {
        let mut queue = Queue::default();
        assert_eq!(queue.send(980, 8_000_000_000, 100), Some(1100));
        assert_eq!(queue.send(980, 8_000_000_000, 100), Some(2100));
        assert_eq!(queue.send(980, 8_000_000_000, 5000), Some(6000));
        let sent = (0..).take_while(|_| queue.send(980, 8_000_000_000, 6000).is_some()).count();
        assert_eq!(sent, 10_001);
        assert_eq!((queue.sent, queue.bytes), (10_004, 10_004_000));
        let mut slow = Queue::default();
        assert_eq!((0..).take_while(|_| slow.send(1498, 1_000_000, 0).is_some()).count(), 65);
    }
}
