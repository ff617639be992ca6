//! File descriptors kept in reserve for the next start of the data path.
//!
//! Ports, workers and scripts open descriptors when they start, some before the old ones are closed. If connections had
//! used up the limit of the process, the data path could not be restarted, and Linux would have to keep forwarding.
//!
//! ```text
//! connections ─► EMFILE         a start ─► 64 spare ones are closed ─► ports, workers ─► 64 are opened again
//!                                          no connection is accepted meanwhile
//! ```

use std::fs::File;
use std::os::fd::OwnedFd;

use bm_serve::connections::Pause;

/// Descriptors in reserve. A restart needs fewer than this in addition to those that it closes: for files that it reads,
/// and for sockets that it opens before the old ones are closed.
const SPARE: usize = 64;

/// Descriptors that do nothing.
#[derive(Default)]
pub struct Spare(Vec<OwnedFd>);

impl Spare {
    /// Opens the missing ones, as far as the limit allows.
    pub fn fill(&mut self) {
        let missing = SPARE.saturating_sub(self.0.len());
        let opened = (0..missing).map_while(|_| File::open("/dev/null").ok()).map(OwnedFd::from);
        self.0.extend(opened);
        if self.0.len() < SPARE {
            tracing::warn!(
                "{} of {SPARE} descriptors are in reserve for a restart of the workers: raise the limit on open files (LimitNOFILE)",
                self.0.len()
            );
        }
    }

    /// Closes them so that a restart can use them. No connection is accepted until the returned pause is dropped.
    pub fn release(&mut self) -> Pause {
        let pause = Pause::begin();
        self.0.clear();
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_full_again_after_each_release() {
        let mut spare = Spare::default();
        for _ in 0..3 {
            spare.fill();
            assert_eq!(spare.0.len(), SPARE);
            let _pause = spare.release();
            assert!(spare.0.is_empty());
        }
    }
}
