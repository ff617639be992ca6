//! The program's tables are valid only for a limited time, which the daemon extends regularly.

use std::time::Duration;

use libbpf_rs::ProgramInput;
use rustix::time::{ClockId, clock_getres};

use super::{Kernel, program};
use crate::error::KernelError;

impl Kernel {
    /// Extends the time for which the tables are valid by another grace time.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn beat(&mut self) -> Result<(), KernelError> {
        let failed = bm_bpf::Error::program("extending the time it may run without the daemon");
        let beat = program(&mut self.object, "beat");
        beat.test_run(ProgramInput::default()).map_err(failed)?;
        Ok(())
    }
}

/// A duration in jiffies, rounded up.
pub(super) fn jiffies(time: Duration) -> u32 {
    // The kernel's coarse clocks advance once per jiffy, so their resolution gives CONFIG_HZ.
    let tick = clock_getres(ClockId::MonotonicCoarse);
    let jiffies = time.as_nanos().div_ceil((tick.tv_nsec as u128).max(1));
    jiffies.min(u128::from(u32::MAX)) as u32
}
