//! Sends frames and captures all results, at all three ends.
//!
//! When is a capture complete? When as many frames as expected have arrived, and everything sent after them has come
//! through too. So a *fence* follows each exchange: four packets, one for each path through a router (fast, slow
//! because of an IP option, slow because of an error, and up to the host). After the fence only a short time is left
//! for frames that were overtaken.

use crate::lab::{Lab, SIDES, Side};
use crate::normalise;
use crate::packet::{Ip4, echo4, put16};
use crate::sys;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long the expected frames and the fence may take. Test machines may be slow and busy.
const PATIENCE: Duration = Duration::from_millis(2500);
/// How long expected frames may take once the fence is through: this is also how long the test waits for a dropped
/// packet.
const LATE: Duration = Duration::from_millis(400);
/// How long frames may lag behind a fence that took another path.
const GRACE: Duration = Duration::from_millis(8);
/// How long to listen where a fence cannot pass.
const UNFENCED: Duration = Duration::from_millis(150);

/// Marks a frame as part of a fence.
const MARK: &[u8] = b"bm-fence";
/// Packets of a fence that come back.
const FENCE_PACKETS: usize = 4;

/// A frame that arrived at an end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// The end at which it arrived.
    pub side: Side,
    /// Its bytes.
    pub frame: Vec<u8>,
}

/// The result of an exchange.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// Frames in the order in which they arrived at each end.
    pub seen: Vec<Seen>,
    /// Whether the fence came through, if there was one.
    pub complete: bool,
}

impl Lab {
    /// Discards what has arrived so far.
    pub fn drain(&self) {
        for socket in self.sockets() {
            while socket.receive().is_ok_and(|frame| frame.is_some()) {}
        }
    }

    /// Sends the frames in order, and captures until `expected` frames and the fence are here.
    pub fn exchange(&self, frames: &[(Side, Vec<u8>)], expected: usize, fenced: bool) -> Heard {
        self.drain();
        for (side, frame) in frames {
            self.send(*side, frame);
        }
        let token = if fenced { self.send_fence() } else { Vec::new() };
        let mut deadline = Instant::now() + if fenced { PATIENCE } else { UNFENCED };
        let mut heard = Heard::default();
        let mut passed = 0;
        let whole = |heard: &Heard, passed| fenced && heard.seen.len() >= expected && passed >= FENCE_PACKETS;
        while Instant::now() < deadline && !whole(&heard, passed) {
            let before = passed;
            self.listen(deadline, &mut heard.seen, &mut passed, &token);
            if before < FENCE_PACKETS && passed >= FENCE_PACKETS {
                deadline = deadline.min(Instant::now() + LATE);
            }
        }
        let grace = Instant::now() + GRACE;
        while fenced && Instant::now() < grace {
            self.listen(grace, &mut heard.seen, &mut passed, &token);
        }
        heard.complete = !fenced || passed >= FENCE_PACKETS;
        heard
    }

    /// Receives what has arrived, or waits for it until the deadline.
    fn listen(&self, deadline: Instant, seen: &mut Vec<Seen>, passed: &mut usize, token: &[u8]) {
        let left = deadline.saturating_duration_since(Instant::now());
        sys::wait_readable(&self.sockets(), left).expect("poll works on open sockets");
        for side in SIDES {
            while let Some(captured) = self.receive(side) {
                let frame = captured.frame;
                if contains(&frame, MARK) {
                    *passed += usize::from(contains(&frame, token));
                } else if !normalise::is_noise(&frame) {
                    seen.push(Seen { side, frame });
                }
            }
        }
    }

    /// The next frame that has arrived at a side.
    pub fn receive(&self, side: Side) -> Option<sys::Captured> {
        self.socket(side).receive().unwrap_or_else(|error| panic!("receiving at {side:?}: {error}"))
    }

    /// Waits for a frame that `wanted` accepts; discards the others.
    pub fn await_frame(
        &self,
        side: Side,
        patience: Duration,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Option<sys::Captured> {
        let deadline = Instant::now() + patience;
        loop {
            while let Some(captured) = self.receive(side) {
                if wanted(&captured.frame) {
                    return Some(captured);
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            sys::wait_readable(&[self.socket(side)], left).expect("poll works on an open socket");
        }
    }

    /// All frames that arrive at a side within this time, without noise.
    pub fn collect(&self, side: Side, time: Duration) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let deadline = Instant::now() + time;
        while let Some(captured) =
            self.await_frame(side, deadline.saturating_duration_since(Instant::now()), |frame| {
                !normalise::is_noise(frame)
            })
        {
            frames.push(captured.frame);
        }
        frames
    }

    fn send_fence(&self) -> Vec<u8> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let token = [MARK, &COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes()].concat();
        let (host, router) = (Side::Src.v4(2), Side::Src.v4(1));
        let fast = Ip4::udp_ports(&host, "10.255.255.254", 9, 9, &token);
        let option = fast.clone().options(&[1, 1, 1, 0]);
        let error = fast.clone().ttl(1);
        let mut echo = echo4(&host, &router, 0x000b_000b, token.len());
        echo.payload.splice(8.., token.iter().copied());
        put16(&mut echo.payload, 2, 0);
        let sum = bm_wire::checksum::checksum(&echo.payload);
        put16(&mut echo.payload, 2, sum);
        for packet in [fast, option, error, echo] {
            self.send(Side::Src, &Side::Src.to_router(&packet.bytes()));
        }
        token
    }
}

fn contains(frame: &[u8], what: &[u8]) -> bool {
    frame.windows(what.len()).any(|window| window == what)
}
