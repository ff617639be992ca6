//! A port connected to itself: it receives what it sends, without a copy.

use std::collections::VecDeque;

use bm_frame::{Burst, Frame, Freelist};

use crate::Port;

/// The most frames that it can hold.
const HOLDS: usize = 4096;

/// Receives what it sends, in order; up to 4096 frames can wait.
pub struct LoopPort(VecDeque<Frame>);

impl Default for LoopPort {
    fn default() -> Self {
        Self(VecDeque::with_capacity(HOLDS))
    }
}

impl Port for LoopPort {
    fn receive(&mut self, burst: &mut Burst, _frames: &mut Freelist) {
        while !burst.is_full() {
            let Some(frame) = self.0.pop_front() else { break };
            let pushed = burst.push(frame);
            debug_assert!(pushed.is_ok(), "the burst was not full");
        }
    }

    fn transmit(&mut self, burst: &mut Burst, _frames: &mut Freelist) -> usize {
        for place in burst.places_mut() {
            if self.0.len() == HOLDS {
                break;
            }
            self.0.extend(place.take());
        }
        0
    }

    fn close(&mut self, frames: &mut Freelist) {
        self.0.drain(..).for_each(|frame| frames.free(frame));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_frame::FramePool;

    #[test]
    fn returns_frames_in_order_up_to_its_capacity() {
        let frame_pool = FramePool::new(HOLDS + 256, 2048).unwrap();
        let (mut frames, mut port) = (Freelist::new(frame_pool.clone(), 128), LoopPort::default());
        let mut burst = Burst::new();
        for n in 0..=HOLDS / 256 {
            (0..256).for_each(|_| burst.push(frames.allocate_with(&[n as u8]).unwrap()).unwrap());
            assert_eq!(port.transmit(&mut burst, &mut frames), 0);
            assert_eq!(burst.frames(), if n < HOLDS / 256 { 0 } else { 256 });
            if n < HOLDS / 256 {
                burst.reset();
            }
        }
        burst.free_all(&mut frames);
        port.receive(&mut burst, &mut frames);
        assert!(burst.drain().all(|frame| {
            let first = frame.data() == [0];
            frames.free(frame);
            first
        }));
        port.close(&mut frames);
        drop(frames);
        assert_eq!(frame_pool.available(), HOLDS + 256);
    }
}
