//! A port without a device: packets sent on one end arrive at the other, a [`Wire`], and the reverse.

use std::collections::VecDeque;
use std::sync::Arc;

use bm_frame::{AnyFrame, Burst, Frame, Freelist, MbufFrame};
use bm_sys::Mutex;

use crate::{InPlace, Port, ReceivedFrames, TransmittedFrames};

/// The wire at which a memory port is, with packets as bytes: for tests.
#[derive(Clone, Default)]
pub struct Wire {
    queues: Arc<Mutex<Queues>>,
}

#[derive(Default)]
struct Queues {
    to_port: VecDeque<Vec<u8>>,
    from_port: VecDeque<Vec<u8>>,
}

impl Wire {
    /// A wire without packets.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends `packet` to the port.
    pub fn send(&self, packet: &[u8]) {
        self.with(|queues| queues.to_port.push_back(packet.to_vec()));
    }

    /// Takes all packets that the port sent, in order.
    pub fn take(&self) -> Vec<Vec<u8>> {
        self.with(|queues| queues.from_port.drain(..).collect())
    }

    /// Packets that the port has not received yet.
    pub fn pending(&self) -> usize {
        self.with(|queues| queues.to_port.len())
    }

    fn with<T>(&self, job: impl FnOnce(&mut Queues) -> T) -> T {
        job(&mut self.queues.lock())
    }
}

/// A port whose device is memory. The sender must not send packets larger than a slot.
pub struct MemoryPort {
    wire: Wire,
    /// Whether its frames are described by their mbufs, as those of a DPDK driver.
    mbufs: bool,
}

impl MemoryPort {
    /// The port at the other end of `wire`.
    pub fn new(wire: Wire) -> Self {
        Self { wire, mbufs: false }
    }

    /// A port whose frames are described by their mbufs, for packets of at least an Ethernet header.
    pub fn with_mbufs(wire: Wire) -> Self {
        Self { wire, mbufs: true }
    }

    fn receive_one(&self, frames: &mut Freelist) -> Option<Frame> {
        let packet = self.wire.with(|queues| queues.to_port.pop_front())?;
        let frame = frames.allocate_with(&packet);
        if frame.is_none() {
            self.wire.with(|queues| queues.to_port.push_front(packet));
        }
        frame
    }

    fn transmit_one(&self, frame: Frame, frames: &mut Freelist) {
        self.wire.with(|queues| queues.from_port.push_back(frame.data().to_vec()));
        frames.free(frame);
    }
}

impl Port for MemoryPort {
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        while !burst.is_full() {
            let Some(frame) = self.receive_one(frames) else { break };
            let pushed = burst.push(frame);
            debug_assert!(pushed.is_ok(), "the burst was not full");
        }
    }

    fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize {
        burst.drain().for_each(|frame| self.transmit_one(frame, frames));
        0
    }

    fn in_place(&mut self) -> Option<&mut dyn InPlace> {
        self.mbufs.then_some(self)
    }

    fn mbufs(&mut self) -> Option<&mut dyn InPlace<MbufFrame>> {
        self.mbufs.then_some(self)
    }
}

impl InPlace for MemoryPort {
    fn receive_into(&mut self, places: &mut [Option<Frame>], frames: &mut Freelist) -> ReceivedFrames {
        let mut received = ReceivedFrames::default();
        for (place, frame) in places.iter_mut().zip(std::iter::from_fn(|| self.receive_one(frames))) {
            (received.count, received.bytes) = (received.count + 1, received.bytes + frame.len() as u64);
            *place = Some(frame);
        }
        received
    }

    fn transmit_from(&mut self, places: &mut [Option<Frame>], frames: &mut Freelist) -> TransmittedFrames {
        places.iter_mut().filter_map(Option::take).for_each(|frame| self.transmit_one(frame, frames));
        TransmittedFrames::default()
    }
}

impl InPlace<MbufFrame> for MemoryPort {
    fn receive_into(&mut self, places: &mut [Option<MbufFrame>], frames: &mut Freelist) -> ReceivedFrames {
        let mut received = ReceivedFrames::default();
        while received.count < places.len() {
            let Some(frame) = self.receive_one(frames) else { break };
            match MbufFrame::from_frame(frame) {
                Ok(frame) => {
                    received.bytes += frame.len() as u64;
                    places[received.count] = Some(frame);
                    received.count += 1;
                }
                Err(short) => frames.free(short),
            }
        }
        received
    }

    fn transmit_from(
        &mut self,
        places: &mut [Option<MbufFrame>],
        frames: &mut Freelist,
    ) -> TransmittedFrames {
        let sent = places.iter_mut().filter_map(Option::take).map(AnyFrame::into_frame);
        sent.for_each(|frame| self.transmit_one(frame, frames));
        TransmittedFrames::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_frame::FramePool;

    #[test]
    fn carries_packets_both_ways_and_waits_for_frames() {
        let frame_pool = FramePool::new(2, 2048).unwrap();
        let mut frames = Freelist::new(frame_pool, 128);
        let wire = Wire::new();
        let mut port = MemoryPort::new(wire.clone());
        (0..3u8).for_each(|n| wire.send(&[n; 60]));
        let mut burst = Burst::new();
        port.receive(&mut burst, &mut frames);
        assert_eq!((burst.len(), wire.pending()), (2, 1));
        assert_eq!(port.transmit(&mut burst, &mut frames), 0);
        port.receive(&mut burst, &mut frames);
        assert_eq!(port.transmit(&mut burst, &mut frames), 0);
        assert_eq!(wire.take(), [vec![0; 60], vec![1; 60], vec![2; 60]]);
    }
}
