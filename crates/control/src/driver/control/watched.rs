//! Serves the process that watches the kernel path's tables after the daemon has ended.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use bm_api::Error;

use super::Control;
use crate::watcher;

impl Control {
    /// Whether the tables reflect all messages of the kernel.
    pub(super) fn is_settled(&self) -> bool {
        self.behind.is_none() && self.watch.is_settled()
    }

    /// Marks the tables as being changed, for the watching process if the daemon ends now.
    pub(super) fn set_busy(&self, busy: bool) {
        if let Some(kernel) = &self.kernel {
            kernel.set_busy(busy);
        }
    }

    /// Passes descriptors to the process at the other end of `stream`, which watches the kernel path's tables after the
    /// daemon has ended.
    pub fn watch_over(&self, stream: &UnixStream) -> Result<(), Error> {
        let Some(kernel) = &self.kernel else { return Ok(()) };
        let [views, beat] = kernel.lease_parts().map_err(Error::new)?;
        watcher::give(stream, [self.watch.as_fd(), views.as_fd(), beat.as_fd()]).map_err(Error::new)
    }

    /// Makes the kernel path end with the daemon, since no process would watch its tables.
    pub fn unpin(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.unpin();
        }
    }

    /// Makes the kernel path keep forwarding after the thread has ended.
    pub fn keep(&mut self) -> Result<(), Error> {
        let hint = "use `brickmoon stop` without --keep to end it; then Linux forwards";
        match &mut self.kernel {
            Some(kernel) => kernel.keep().map_err(|error| error.hint(hint)),
            None => Err(Error::new("workers forward the packets, and they end with the daemon").hint(hint)),
        }
    }
}
