//! Stage five: accepted frames go to their ports' links, refused ones to the slow path or to a named drop.

use bm_frame::Frame;
use bm_graph::Io;
use bm_stats::{Account, Entry, Reason};

use crate::entrance::Entrance;
use crate::verdict::Refusal;

/// What became of a burst, to be counted once.
pub(crate) struct Tally<'a> {
    account: &'a Account,
    sent: usize,
    passed: usize,
}

impl<'a> Tally<'a> {
    pub fn new(account: &'a Account) -> Self {
        Self { account, sent: 0, passed: 0 }
    }

    /// Frames that went to the links of their ports.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
    }

    /// Takes a refused frame off the fast path. `interface` and `network` are noted for the slow path.
    #[cold]
    pub fn refuse(&mut self, io: &mut Io<'_>, entrance: &mut Entrance, mut frame: Frame, why: Refusal) {
        let verdict = match why {
            Refusal::Drop(reason) => return self.lose(io, frame, reason),
            Refusal::Slow(verdict) => verdict,
        };
        frame.meta_mut().verdict = verdict as u16;
        match entrance.push(frame, verdict.is_for_host()) {
            Ok(()) => self.passed += 1,
            Err(frame) => self.lose(io, frame, Reason::SlowPathFull),
        }
    }

    /// Drops a frame under a name.
    #[cold]
    pub fn lose(&self, io: &mut Io<'_>, frame: Frame, reason: Reason) {
        self.account.drop(reason, 1);
        io.frames.free(frame);
    }

    /// Writes the sums down.
    pub fn close(self) {
        self.account.add(Entry::Sent, self.sent);
        self.account.add(Entry::Passed, self.passed);
    }
}
