//! What the process is given and told that watches over the kernel path's tables when the daemon has ended.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use bm_api::Error;

use super::Control;
use crate::watcher;

impl Control {
    /// Whether the tables have everything that the kernel has told.
    pub(super) fn is_settled(&self) -> bool {
        self.behind.is_none() && self.watch.is_settled()
    }

    /// For who watches over the tables if we end now.
    pub(super) fn set_busy(&self, busy: bool) {
        if let Some(kernel) = &self.kernel {
            kernel.set_busy(busy);
        }
    }

    /// Gives the process at the other end of `stream` what it needs to watch over the kernel path's tables when we
    /// have ended.
    pub fn watch_over(&self, stream: &UnixStream) -> Result<(), Error> {
        let Some(kernel) = &self.kernel else { return Ok(()) };
        let [views, beat] = kernel.lease_parts().map_err(Error::new)?;
        watcher::give(stream, [self.watch.as_fd(), views.as_fd(), beat.as_fd()]).map_err(Error::new)
    }

    /// Has the kernel path end with the daemon, since nobody would watch over its tables.
    pub fn unpin(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.unpin();
        }
    }

    /// Has the kernel path stay at work when the thread ends.
    pub fn keep(&mut self) -> Result<(), Error> {
        let hint = "`brickmoon stop` without --keep ends it, and Linux forwards";
        match &mut self.kernel {
            Some(kernel) => kernel.keep().map_err(|error| error.hint(hint)),
            None => Err(Error::new("packets are forwarded by workers, which end with the daemon").hint(hint)),
        }
    }
}
