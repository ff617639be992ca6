//! The time of requests, and what an SA has been used for.

const SECOND: u64 = 1_000_000_000;

/// The time of a request: seconds since 1970, and nanoseconds of the clock that workers use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    pub epoch_s: u64,
    pub ns: u64,
}

impl Now {
    /// A time of the workers' clock in seconds since 1970; 0 for none.
    pub(crate) fn epoch_s_of(&self, ns: u64) -> u64 {
        if ns == 0 { 0 } else { self.epoch_s.saturating_sub(self.ns.saturating_sub(ns) / SECOND) }
    }

    /// A time in seconds since 1970 by the workers' clock; 0 for none. The future is now.
    pub(crate) fn ns_of(&self, epoch_s: u64) -> u64 {
        let ago_ns = self.epoch_s.saturating_sub(epoch_s).saturating_mul(SECOND);
        if epoch_s == 0 { 0 } else { self.ns.saturating_sub(ago_ns).max(1) }
    }
}

/// What an SA has been used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub packets: u64,
    /// The next sequence number to send, or the highest received.
    pub number: u64,
    pub failures: u64,
    /// When the first packet was handled, by the clock of [`Now::ns`]; 0 if none was.
    pub first_ns: u64,
}

/// What an SA has been used for, and the time at which that was read.
#[derive(Clone, Copy)]
pub(crate) struct UsageReading {
    pub usage: Usage,
    pub now: Now,
}
