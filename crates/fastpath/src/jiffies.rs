//! The kernel's unit of time, of which a program reads the number without a call.
//!
//! The kernel's coarse clocks advance once per jiffy, so their resolution gives CONFIG_HZ.

use std::time::Duration;

use rustix::time::{ClockId, clock_getres};

/// A duration in jiffies, rounded up.
pub(crate) fn jiffies(time: Duration) -> u32 {
    let jiffies = time.as_nanos().div_ceil(nanoseconds().into());
    jiffies.min(u128::from(u32::MAX)) as u32
}

/// How many there are in a second.
pub(crate) fn per_second() -> u32 {
    (1_000_000_000 / nanoseconds()) as u32
}

fn nanoseconds() -> u64 {
    (clock_getres(ClockId::MonotonicCoarse).tv_nsec as u64).max(1)
}
