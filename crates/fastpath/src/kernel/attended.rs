//! The program's tables are valid only for a limited time, which the daemon extends regularly.

use libbpf_rs::ProgramInput;

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
