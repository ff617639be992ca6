//! Links with queues: when a frame arrives at the other end, or that there is no room for it.

use bm_vlb::Node;

use crate::traffic::{GAP_BYTES, time_ns};

/// Time that a server needs for a packet, plus the cable: RouteBricks measured 24 us per server.
pub const HOP_NS: u64 = 20_000;
/// Minimum length of a queue, in time and in frames of 1,518 bytes.
pub const QUEUE_NS: u64 = 10_000_000;
const QUEUE_FRAMES: u64 = 64;

/// A frame between two nodes.
#[derive(Clone, Copy)]
pub struct Frame {
    /// Destination and source address.
    pub addresses: (bm_wire::ethernet::Mac, bm_wire::ethernet::Mac),
    /// The node that it is sent to, and the link.
    pub at: Node,
    /// Index of that link.
    pub link: u32,
    /// Number of its flow.
    pub flow: u32,
    /// Length without preamble and gap.
    pub bytes: u16,
    /// Number of links that it has taken so far.
    pub hops: u8,
    /// What the simulator knows about it, to check the decisions that nodes make from its addresses.
    pub truth: Truth,
}

/// Where a frame must go.
#[derive(Clone, Copy)]
pub struct Truth {
    /// Its output node.
    pub output: Node,
    /// Its neighbor there, whatever the neighbor's index in an epoch.
    pub neighbor: u16,
    /// When it was received.
    pub since_ns: u64,
}

/// A queue in front of a link, or of the external ports of a node, which send at a rate.
#[derive(Clone, Copy, Default)]
pub struct Queue {
    busy_until_ns: u64,
    /// Bytes sent, with preamble and gap.
    pub bytes: u64,
    /// Frames sent.
    pub sent: u64,
    /// Frames that arrived at the other end, or were lost because this node or the other one failed.
    pub arrived: u64,
}

impl Queue {
    /// How long a new frame would wait.
    pub fn waits_ns(&self, now_ns: u64) -> u64 {
        self.busy_until_ns.saturating_sub(now_ns)
    }

    /// Accepts a frame, and returns when it will have been sent; `None` if the queue is full.
    #[inline]
    pub fn send(&mut self, bytes: u16, bps: u64, now_ns: u64) -> Option<u64> {
        let on_wire = u64::from(bytes) + GAP_BYTES;
        let start = self.busy_until_ns.max(now_ns);
        let waits = start - now_ns;
        // Divides only for links on which frames wait for long.
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
