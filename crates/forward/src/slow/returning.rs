//! The queue back: what the slow path sends is sent by the worker that owns the port.

use bm_frame::Frame;
use bm_graph::{App, Io};
use bm_link::Consumer;
use bm_stats::{Account, Entry, Reason};

/// Brings the slow path's frames into a worker's network, each to the link of its port.
pub struct SlowReturn {
    ports: Vec<String>,
    /// For each port, the output link.
    outputs: Vec<Option<usize>>,
    back: Consumer<Frame>,
    account: Account,
}

/// Frames returned in one breath.
const BREATH: usize = 256;

impl SlowReturn {
    pub(super) fn new(ports: Vec<String>, back: Consumer<Frame>, account: Account) -> Self {
        Self { outputs: vec![None; ports.len()], ports, back, account }
    }

    /// The next frame that the slow path sends.
    pub(crate) fn pop(&mut self) -> Option<Frame> {
        self.back.pop()
    }

    fn lose(&self, io: &mut Io<'_>, frame: Frame, reason: Reason) {
        self.account.drop(reason, 1);
        io.frames.free(frame);
    }
}

impl App for SlowReturn {
    fn connect(&mut self, _inputs: &[String], outputs: &[String]) {
        self.outputs =
            self.ports.iter().map(|port| outputs.iter().position(|output| output == port)).collect();
    }

    fn pull(&mut self, io: &mut Io<'_>) {
        for _ in 0..BREATH {
            let Some(frame) = self.back.pop() else { break };
            self.account.add(Entry::Received, 1);
            let output = self.outputs.get(usize::from(frame.meta().port)).copied().flatten();
            let Some(output) = output else {
                self.lose(io, frame, Reason::NoOutput);
                continue;
            };
            match io.transmit(output, frame) {
                Ok(()) => self.account.add(Entry::Sent, 1),
                Err(frame) => self.lose(io, frame, Reason::LinkFull),
            }
        }
    }

    fn before_sleep(&mut self) -> bool {
        self.back.readable() == 0
    }

    fn stop(&mut self, io: &mut Io<'_>) {
        while let Some(frame) = self.back.pop() {
            self.account.add(Entry::Received, 1);
            self.lose(io, frame, Reason::Stopped);
        }
    }
}
