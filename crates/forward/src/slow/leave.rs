//! The exits of the slow path: to Linux, to a worker that sends, and from Linux through a host TAP to a worker.

use bm_frame::Frame;
use bm_stats::{Entry, Reason};

use super::{Core, PortState, SlowCounter};

/// The most frames that are delivered to Linux together.
const TOGETHER: usize = 64;
/// The most packets of Linux that are taken from one port's host TAP in one step.
const HOST_TAP_BURST: usize = 64;

impl Core {
    /// Hands a frame to Linux as it came: together with others of its port, at the end of the step at the latest.
    pub(super) fn deliver(&mut self, frame: Frame) {
        let port = usize::from(frame.meta().port);
        let Some(state) = self.ports.get_mut(port).filter(|state| state.host.is_some()) else {
            return self.lose(frame, Reason::HostRefused);
        };
        state.for_host.push(frame);
        if state.for_host.len() == TOGETHER {
            self.hand_over(port);
        }
    }

    /// Delivers the frames collected so far.
    pub(super) fn hand_over_rest(&mut self) {
        (0..self.ports.len()).for_each(|port| self.hand_over(port));
    }

    fn hand_over(&mut self, port: usize) {
        let Some(PortState { host: Some(host), for_host, .. }) = self.ports.get_mut(port) else { return };
        if for_host.is_empty() {
            return;
        }
        let mut frames = std::mem::take(for_host);
        let packets: Vec<&[u8]> = frames.iter().map(Frame::data).collect();
        let lost = host.deliver_all(&packets);
        for (place, frame) in frames.drain(..).enumerate() {
            if lost.contains(&place) {
                self.lose(frame, Reason::HostRefused);
            } else {
                self.count(&frame, Entry::Host);
                self.frames.free(frame);
            }
        }
        // The same room serves again.
        self.ports[port].for_host = frames;
    }

    /// Hands Linux a frame that only it may handle.
    pub(super) fn deliver_linux_only(&mut self, frame: Frame) {
        self.bump(SlowCounter::LinuxOnly);
        self.deliver(frame);
    }

    /// Sends a finished frame out of `port`, through the worker that owns it.
    pub(super) fn send(&mut self, mut frame: Frame, port: u16) {
        let came_on = frame.meta().port;
        let Some(state) = self.ports.get(usize::from(port)) else {
            return self.lose(frame, Reason::NoInterface);
        };
        let Some(back) = self.workers.get_mut(state.worker) else {
            return self.lose(frame, Reason::NoOutput);
        };
        frame.meta_mut().port = port;
        let bytes = frame.len();
        match back.queue.push(frame) {
            Ok(()) => {
                back.unrung = true;
                if let Some(state) = self.ports.get(usize::from(came_on)) {
                    state.account.add(Entry::Sent, 1);
                    state.account.add(Entry::SentBytes, bytes);
                }
            }
            Err(mut frame) => {
                frame.meta_mut().port = came_on;
                self.lose(frame, Reason::SlowPathFull);
            }
        }
    }

    /// Sends what Linux sends through host TAPs unchanged.
    pub(super) fn collect_from_host_taps(&mut self) -> usize {
        let mut collected = 0;
        for index in 0..self.ports.len() {
            for _ in 0..HOST_TAP_BURST {
                let Some(host) = self.ports[index].host.as_mut() else { break };
                // An error here has lost no known frame, and the next step tries again.
                let Ok(Some(packet)) = host.collect(&mut self.host_tap) else { break };
                collected += 1;
                self.ports[index].account.add(Entry::Received, 1);
                if packet.len() > self.frames.memory().room() {
                    self.ports[index].account.drop(Reason::Oversize, 1);
                    continue;
                }
                let Some(mut frame) = self.frames.allocate_with(packet) else {
                    self.ports[index].account.drop(Reason::NoMemory, 1);
                    continue;
                };
                frame.meta_mut().port = index as u16;
                self.send(frame, index as u16);
            }
        }
        collected
    }

    pub(super) fn wake_workers(&mut self) {
        for back in &mut self.workers {
            if std::mem::take(&mut back.unrung)
                && let Some(waker) = &back.waker
            {
                waker.wake();
            }
        }
    }
}
