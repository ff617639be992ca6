//! Frames that wait for a neighbour's address: a short queue each, with limits on all of it.
//!
//! ```text
//! hold: new neighbour -> ask the kernel, wait    the neighbour answers   -> all go out, in order
//!       known one     -> join its queue          no answer in 3 s, or it is said to be gone -> all fail
//! ```
//!
//! The limits are for network scans: frames for each neighbour (the oldest is dropped, as in Linux), frames and
//! neighbours in total, and new requests per second. What does not fit is returned to be counted.

use std::collections::{HashMap, VecDeque};

use super::limit::Bucket;
use crate::route::Neighbour;

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub struct WaitLimits {
    /// Frames for one neighbour.
    pub frames_each: usize,
    /// Frames for all neighbours together.
    pub frames: usize,
    /// Neighbours that are being resolved at the same time.
    pub neighbours: usize,
    /// New neighbours per second that are resolved.
    pub new_per_second: u32,
    /// New neighbours that are resolved at once after a quiet time.
    pub new_burst: u32,
}

impl Default for WaitLimits {
    fn default() -> Self {
        Self { frames_each: 64, frames: 2048, neighbours: 1024, new_per_second: 1000, new_burst: 512 }
    }
}

/// After this long without an answer a neighbour counts as unreachable: three requests, as in Linux.
pub(crate) const TIMEOUT_NS: u64 = 3_000_000_000;
/// The kernel is asked again this often, in case it had forgotten.
const ASK_AGAIN_NS: u64 = 1_000_000_000;
/// Most neighbours that answer do so within this time; until then they are checked often, since packets that arrive
/// after the answer would overtake the waiting ones.
const YOUNG_NS: u64 = 100_000_000;
/// Time between two checks while a neighbour is new, with more for each that is being resolved; and otherwise.
const LOOK_YOUNG_NS: u64 = 100_000;
const LOOK_EACH_NS: u64 = 2_000;
const LOOK_NS: u64 = 1_000_000;

/// The result of holding a frame.
pub(crate) enum Held<T> {
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
pub(crate) struct Waiting<T> {
    queues: HashMap<Neighbour, Queue<T>>,
    limits: WaitLimits,
    frames: usize,
    new: Bucket,
    /// When the newest queue was created.
    newest_ns: u64,
}

impl<T> Waiting<T> {
    pub fn new(limits: WaitLimits) -> Self {
        let queues = HashMap::with_capacity(limits.neighbours);
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

    /// Lets `frame` wait for `neighbour`.
    pub fn hold(&mut self, neighbour: Neighbour, frame: T, now_ns: u64) -> Held<T> {
        let WaitLimits { frames_each, frames, neighbours, new_per_second, new_burst } = self.limits;
        if let Some(queue) = self.queues.get_mut(&neighbour) {
            if queue.frames.len() < frames_each {
                if self.frames >= frames {
                    return Held::Full(frame);
                }
                self.frames += 1;
                queue.frames.push_back(frame);
                return Held::Waits;
            }
            queue.frames.push_back(frame);
            return queue.frames.pop_front().map_or(Held::Waits, Held::Instead);
        }
        let room = self.frames < frames && self.queues.len() < neighbours && frames_each > 0;
        if !room || !self.new.take(now_ns, new_per_second, new_burst) {
            return Held::Full(frame);
        }
        self.frames += 1;
        self.newest_ns = now_ns;
        let frames = VecDeque::from([frame]);
        self.queues.insert(neighbour, Queue { frames, since_ns: now_ns, asked_ns: now_ns });
        Held::Asks
    }

    /// Removes all frames that wait for `neighbour`.
    pub fn release(&mut self, neighbour: &Neighbour) -> VecDeque<T> {
        let frames = self.queues.remove(neighbour).map_or_else(VecDeque::new, |queue| queue.frames);
        self.frames -= frames.len();
        frames
    }

    /// The neighbours being resolved, each with the frame that has waited longest.
    pub fn heads(&self) -> impl Iterator<Item = (&Neighbour, &T)> {
        self.queues.iter().filter_map(|(neighbour, queue)| Some((neighbour, queue.frames.front()?)))
    }

    /// Whether the time for `neighbour` to answer is over.
    pub fn is_overdue(&self, neighbour: &Neighbour, now_ns: u64) -> bool {
        let since = self.queues.get(neighbour).map_or(now_ns, |queue| queue.since_ns);
        now_ns.saturating_sub(since) >= TIMEOUT_NS
    }

    /// Whether another request for `neighbour` is due; records that it is sent.
    pub fn asks_again(&mut self, neighbour: &Neighbour, now_ns: u64) -> bool {
        let Some(queue) = self.queues.get_mut(neighbour) else { return false };
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

    fn neighbour(n: u32) -> Neighbour {
        Neighbour { interface: 1, address: IpAddr::from(n.to_be_bytes()) }
    }

    fn small() -> Waiting<u32> {
        let limits =
            WaitLimits { frames_each: 2, frames: 5, neighbours: 3, new_per_second: 1000, new_burst: 100 };
        Waiting::new(limits)
    }

    #[test]
    fn asks_once_and_keeps_order() {
        let mut waiting = small();
        assert!(matches!(waiting.hold(neighbour(1), 10, 0), Held::Asks));
        assert!(matches!(waiting.hold(neighbour(1), 11, 0), Held::Waits));
        assert!(matches!(waiting.hold(neighbour(1), 12, 0), Held::Instead(10)));
        assert_eq!(waiting.release(&neighbour(1)), [11, 12]);
        assert!(waiting.is_empty() && waiting.frames == 0);
        assert!(waiting.release(&neighbour(1)).is_empty());
    }

    #[test]
    fn bounds_neighbours_and_frames() {
        let mut waiting = small();
        for n in 0..3 {
            assert!(matches!(waiting.hold(neighbour(n), 0, 0), Held::Asks));
        }
        assert!(matches!(waiting.hold(neighbour(3), 7, 0), Held::Full(7)));
        assert!(matches!(waiting.hold(neighbour(0), 1, 0), Held::Waits));
        assert!(matches!(waiting.hold(neighbour(1), 1, 0), Held::Waits));
        assert!(matches!(waiting.hold(neighbour(2), 8, 0), Held::Full(8)));
        assert!(matches!(waiting.hold(neighbour(0), 2, 0), Held::Instead(0)));
        assert_eq!(waiting.drain().count(), 5);
        assert!(waiting.is_empty());
    }

    #[test]
    fn a_scan_is_slowed_down() {
        let limits = WaitLimits { new_per_second: 10, new_burst: 4, ..WaitLimits::default() };
        let mut waiting = Waiting::new(limits);
        let held = |waiting: &mut Waiting<u32>, from, now| {
            (from..from + 100).filter(|&n| matches!(waiting.hold(neighbour(n), 0, now), Held::Asks)).count()
        };
        assert_eq!(held(&mut waiting, 0, 0), 4);
        assert_eq!(held(&mut waiting, 1000, 250_000_000), 2);
    }

    #[test]
    fn looks_often_while_an_answer_is_likely() {
        let mut waiting = small();
        waiting.hold(neighbour(1), 10, 5 * YOUNG_NS);
        assert_eq!(waiting.look_every_ns(5 * YOUNG_NS), LOOK_YOUNG_NS + LOOK_EACH_NS);
        assert_eq!(waiting.look_every_ns(6 * YOUNG_NS), LOOK_NS);
    }

    #[test]
    fn gives_up_in_time_and_asks_again_before() {
        let mut waiting = small();
        waiting.hold(neighbour(1), 10, 0);
        assert!(!waiting.asks_again(&neighbour(1), ASK_AGAIN_NS - 1));
        assert!(waiting.asks_again(&neighbour(1), ASK_AGAIN_NS));
        assert!(!waiting.asks_again(&neighbour(1), ASK_AGAIN_NS + 1));
        assert!(!waiting.is_overdue(&neighbour(1), TIMEOUT_NS - 1));
        assert!(waiting.is_overdue(&neighbour(1), TIMEOUT_NS));
        assert!(!waiting.is_overdue(&neighbour(2), TIMEOUT_NS));
    }
}
