//! The last stage: accepted frames go to their ports' links, refused ones to the slow path, or they are dropped with a reason.

use bm_frame::Frame;
use bm_graph::Io;
use bm_stats::{Account, Entry, Reason};

use crate::punt_queue::PuntQueue;
use crate::verdict::Refusal;

/// The index for no output: beyond all that exist.
pub(crate) const NO_OUTPUT: u16 = u16::MAX;

/// Where the frames of a burst go, and how many of them: counted once, when this is closed.
pub(crate) struct Output<'a> {
    /// The port that the burst came in on.
    port: u16,
    account: &'a Account,
    /// For each port, the index of its link.
    pub links: &'a [u16],
    punt_queue: &'a mut PuntQueue,
    sent: usize,
    passed: usize,
}

impl<'a> Output<'a> {
    /// For a burst of `port`, in its account.
    pub fn new(port: usize, account: &'a Account, links: &'a [u16], punt_queue: &'a mut PuntQueue) -> Self {
        Self { port: port as u16, account, links, punt_queue, sent: 0, passed: 0 }
    }

    /// Counts frames that went to the links of their ports.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
    }

    /// Takes a refused frame off the fast path.
    #[cold]
    pub fn refuse(&mut self, io: &mut Io<'_>, mut frame: Frame, why: Refusal) {
        let verdict = match why {
            Refusal::Drop(reason) => return self.lose(io, frame, reason),
            Refusal::Slow(verdict) => verdict,
            Refusal::Send(port) => return self.send_as_it_is(io, frame, port),
        };
        let meta = frame.meta_mut();
        (meta.port, meta.verdict) = (self.port, verdict as u16);
        match self.punt_queue.push(frame, verdict.is_for_host()) {
            Ok(()) => self.passed += 1,
            Err(frame) => self.lose(io, frame, Reason::SlowPathFull),
        }
    }

    /// Puts a frame on the link of a port that a hook chose.
    fn send_as_it_is(&mut self, io: &mut Io<'_>, frame: Frame, port: u16) {
        let Some(&link) = self.links.get(usize::from(port)).filter(|&&link| link != NO_OUTPUT) else {
            return self.lose(io, frame, Reason::NoOutput);
        };
        match io.transmit(usize::from(link), frame) {
            Ok(()) => self.sent += 1,
            Err(frame) => self.lose(io, frame, Reason::LinkFull),
        }
    }

    /// Sends a frame that a hook created to its port.
    #[cold]
    pub fn originate(&mut self, io: &mut Io<'_>, frame: Frame, port: u16) {
        self.account.add(Entry::Originated, 1);
        self.send_as_it_is(io, frame, port);
    }

    /// Drops a frame with a reason.
    #[cold]
    pub fn lose(&self, io: &mut Io<'_>, frame: Frame, reason: Reason) {
        self.account.drop(reason, 1);
        io.frames.free(frame);
    }

    /// Adds the results to the counters.
    pub fn close(self) {
        self.account.add(Entry::Sent, self.sent);
        self.account.add(Entry::Passed, self.passed);
    }
}
