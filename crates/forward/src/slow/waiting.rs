//! Frames that wait for a neighbor's address: a short queue each, with limits on all of it.
//!
//! ```text
//! hold: new neighbor -> ask the kernel, wait    the neighbor answers   -> all go out, in order
//!       known one     -> join its queue          no answer in 3 s, or it is said to be gone -> all fail
//! ```
//!
//! The limits are for network scans: frames for each neighbor (the oldest is dropped, as in Linux), frames and
//! neighbors in total, and new requests per second. What does not fit is returned to be counted.

use std::collections::{HashMap, VecDeque};

use super::limit::Bucket;
use crate::route::Neighbor;

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub struct WaitLimits {
    /// Frames for one neighbor.
    pub frames_each: usize,
    /// Frames for all neighbors together.
    pub frames: usize,
    /// Neighbors that are being resolved at the same time.
    pub neighbors: usize,
    /// New neighbors per second that are resolved.
    pub new_per_second: u32,
    /// New neighbors that are resolved at once after a quiet time.
    pub new_burst: u32,
}

impl Default for WaitLimits {
    fn default() -> Self {
        Self { frames_each: 64, frames: 2048, neighbors: 1024, new_per_second: 1000, new_burst: 512 }
    }
}

/// After this long without an answer a neighbor counts as unreachable: three requests, as in Linux.
pub(crate) const TIMEOUT_NS: u64 = 3_000_000_000;
/// The request to the kernel is repeated this often, in case it has forgotten.
const ASK_AGAIN_NS: u64 = 1_000_000_000;
/// Most neighbors that answer do so within this time; until then they are checked often, since packets that arrive
/// after the answer would overtake the waiting ones.
const YOUNG_NS: u64 = 100_000_000;
/// Time between two checks while a neighbor is new, with more for each that is being resolved; and otherwise.
const LOOK_YOUNG_NS: u64 = 100_000;
const LOOK_EACH_NS: u64 = 2_000;
const LOOK_NS: u64 = 1_000_000;

/// The result of holding a frame.
pub(crate) enum HoldResult<T> {
    /// It waits; the kernel knows already.
    Waits,
    /// It waits; now the kernel must be asked.
    Asks,
    /// It waits, and this older one was dropped for it.
    Instead(T),
    /// There is no room for it.
    Full(T),
}

struct Queue<T> {
    frames: VecDeque<T>,
    since_ns: u64,
    asked_ns: u64,
}

/// All that waits.
pub(crate) struct WaitingFrames<T> {
    queues: HashMap<Neighbor, Queue<T>>,
    limits: WaitLimits,
    frames: usize,
    new: Bucket,
    /// When the newest queue was created.
    newest_ns: u64,
}

impl<T> WaitingFrames<T> {
    pub fn new(limits: WaitLimits) -> Self {
        let queues = HashMap::with_capacity(limits.neighbors);
        Self { queues, limits, frames: 0, new: Bucket::full(0), newest_ns: 0 }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// The time between two checks of waiting frames.
    pub fn look_every_ns(&self, now_ns: u64) -> u64 {
        if now_ns.saturating_sub(self.newest_ns) < YOUNG_NS {
            LOOK_YOUNG_NS + LOOK_EACH_NS * self.queues.len() as u64
        } else {
            LOOK_NS
        }
    }

    /// Lets `frame` wait for `neighbor`.
    pub fn hold(&mut self, neighbor: Neighbor, frame: T, now_ns: u64) -> HoldResult<T> {
        let WaitLimits { frames_each, frames, neighbors, new_per_second, new_burst } = self.limits;
        if let Some(queue) = self.queues.get_mut(&neighbor) {
            if queue.frames.len() < frames_each {
                if self.frames >= frames {
                    return HoldResult::Full(frame);
                }
                self.frames += 1;
                queue.frames.push_back(frame);
                return HoldResult::Waits;
            }
            queue.frames.push_back(frame);
            return queue.frames.pop_front().map_or(HoldResult::Waits, HoldResult::Instead);
        }
        let room = self.frames < frames && self.queues.len() < neighbors && frames_each > 0;
        if !room || !self.new.take(now_ns, new_per_second, new_burst) {
            return HoldResult::Full(frame);
        }
        self.frames += 1;
        self.newest_ns = now_ns;
        let frames = VecDeque::from([frame]);
        self.queues.insert(neighbor, Queue { frames, since_ns: now_ns, asked_ns: now_ns });
        HoldResult::Asks
    }

    /// Removes all frames that wait for `neighbor`.
    pub fn release(&mut self, neighbor: &Neighbor) -> VecDeque<T> {
        let frames = self.queues.remove(neighbor).map_or_else(VecDeque::new, |queue| queue.frames);
        self.frames -= frames.len();
        frames
    }

    /// The neighbors being resolved, each with the frame that has waited longest.
    pub fn heads(&self) -> impl Iterator<Item = (&Neighbor, &T)> {
        self.queues.iter().filter_map(|(neighbor, queue)| Some((neighbor, queue.frames.front()?)))
    }

    /// Whether the time for `neighbor` to answer is over.
    pub fn is_overdue(&self, neighbor: &Neighbor, now_ns: u64) -> bool {
        let since = self.queues.get(neighbor).map_or(now_ns, |queue| queue.since_ns);
        now_ns.saturating_sub(since) >= TIMEOUT_NS
    }

    /// Whether another request for `neighbor` is due; records that it is sent.
    pub fn asks_again(&mut self, neighbor: &Neighbor, now_ns: u64) -> bool {
        let Some(queue) = self.queues.get_mut(neighbor) else { return false };
        let due = now_ns.saturating_sub(queue.asked_ns) >= ASK_AGAIN_NS;
        if due {
            queue.asked_ns = now_ns;
        }
        due
    }

    /// Takes everything, at the end.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.frames = 0;
        std::mem::take(&mut self.queues).into_values().flat_map(|queue| queue.frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn neighbor(n: u32) -> Neighbor {
        Neighbor { interface: 1, address: IpAddr::from(n.to_be_bytes()) }
    }

    fn small() -> WaitingFrames<u32> {
        let limits =
            WaitLimits { frames_each: 2, frames: 5, neighbors: 3, new_per_second: 1000, new_burst: 100 };
        WaitingFrames::new(limits)
    }

    #[test]
    fn asks_once_and_keeps_order() {
        let mut waiting = small();
        assert!(matches!(waiting.hold(neighbor(1), 10, 0), HoldResult::Asks));
        assert!(matches!(waiting.hold(neighbor(1), 11, 0), HoldResult::Waits));
        assert!(matches!(waiting.hold(neighbor(1), 12, 0), HoldResult::Instead(10)));
        assert_eq!(waiting.release(&neighbor(1)), [11, 12]);
        assert!(waiting.is_empty() && waiting.frames == 0);
        assert!(waiting.release(&neighbor(1)).is_empty());
    }

    #[test]
    fn bounds_neighbors_and_frames() {
        let mut waiting = small();
        for n in 0..3 {
            assert!(matches!(waiting.hold(neighbor(n), 0, 0), HoldResult::Asks));
        }
        assert!(matches!(waiting.hold(neighbor(3), 7, 0), HoldResult::Full(7)));
        assert!(matches!(waiting.hold(neighbor(0), 1, 0), HoldResult::Waits));
        assert!(matches!(waiting.hold(neighbor(1), 1, 0), HoldResult::Waits));
        assert!(matches!(waiting.hold(neighbor(2), 8, 0), HoldResult::Full(8)));
        assert!(matches!(waiting.hold(neighbor(0), 2, 0), HoldResult::Instead(0)));
        assert_eq!(waiting.drain().count(), 5);
        assert!(waiting.is_empty());
    }

    #[test]
    fn a_scan_is_slowed_down() {
        let limits = WaitLimits { new_per_second: 10, new_burst: 4, ..WaitLimits::default() };
        let mut waiting = WaitingFrames::new(limits);
        let held = |waiting: &mut WaitingFrames<u32>, from, now| {
            (from..from + 100)
                .filter(|&n| matches!(waiting.hold(neighbor(n), 0, now), HoldResult::Asks))
                .count()
        };
        assert_eq!(held(&mut waiting, 0, 0), 4);
        assert_eq!(held(&mut waiting, 1000, 250_000_000), 2);
    }

    #[test]
    fn looks_often_while_an_answer_is_likely() {
        let mut waiting = small();
        waiting.hold(neighbor(1), 10, 5 * YOUNG_NS);
        assert_eq!(waiting.look_every_ns(5 * YOUNG_NS), LOOK_YOUNG_NS + LOOK_EACH_NS);
        assert_eq!(waiting.look_every_ns(6 * YOUNG_NS), LOOK_NS);
    }

    #[test]
    fn gives_up_in_time_and_asks_again_before() {
        let mut waiting = small();
        waiting.hold(neighbor(1), 10, 0);
        assert!(!waiting.asks_again(&neighbor(1), ASK_AGAIN_NS - 1));
        assert!(waiting.asks_again(&neighbor(1), ASK_AGAIN_NS));
        assert!(!waiting.asks_again(&neighbor(1), ASK_AGAIN_NS + 1));
        assert!(!waiting.is_overdue(&neighbor(1), TIMEOUT_NS - 1));
        assert!(waiting.is_overdue(&neighbor(1), TIMEOUT_NS));
        assert!(!waiting.is_overdue(&neighbor(2), TIMEOUT_NS));
    }
}
