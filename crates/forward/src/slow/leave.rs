//! The ways out of the slow path: to Linux, to a worker that sends, and from Linux by a twin to a worker.

use bm_frame::Frame;
use bm_stats::{Entry, Reason};

use super::{Core, Count};

/// Packets that Linux sends through a twin taken from one port in one step.
const STEP_TWIN: usize = 64;

impl Core {
    /// Hands a frame to Linux as it came.
    pub(super) fn deliver(&mut self, frame: Frame) {
        let port = self.ports.get_mut(usize::from(frame.meta().port));
        let host = port.and_then(|port| port.host.as_mut());
        match host.map(|host| host.deliver(frame.data())) {
            Some(Ok(())) => {
                self.count(&frame, Entry::Host);
                self.frames.free(frame);
            }
            Some(Err(_)) | None => self.lose(frame, Reason::HostRefused),
        }
    }

    /// The same with one that only Linux may handle.
    pub(super) fn deliver_linux_only(&mut self, frame: Frame) {
        self.bump(Count::LinuxOnly);
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

    /// Puts what Linux sends through twins on the wire as it is.
    pub(super) fn collect_from_twins(&mut self) -> usize {
        let mut collected = 0;
        for index in 0..self.ports.len() {
            for _ in 0..STEP_TWIN {
                let Some(host) = self.ports[index].host.as_mut() else { break };
                // An error here has lost no frame that we know of, and the next step asks again.
                let Ok(Some(packet)) = host.collect(&mut self.twin) else { break };
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
