//! Serves the process that watches the kernel path's tables after the daemon has ended.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use bm_api::Error;

use super::Control;
use crate::watcher;

/// What the process knows about lifetimes.
pub(super) struct WatcherProcess {
    stream: UnixStream,
    ends: Option<Instant>,
}

impl WatcherProcess {
    /// It knows of none.
    fn begin(stream: io::Result<UnixStream>) -> io::Result<Self> {
        let stream = stream?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, ends: None })
    }

    /// Returns whether it knows this. It may have no room for more messages, or have ended: then it is started again.
    fn tell(&mut self, ends: Option<Instant>) -> bool {
        if self.ends != ends && watcher::tell(&self.stream, ends).is_ok() {
            self.ends = ends;
        }
        self.ends == ends
    }
}

impl Control {
    /// Whether the tables reflect all messages of the kernel.
    pub(super) fn is_settled(&self) -> bool {
        self.retry_at.is_none() && self.watch.is_settled()
    }

    /// Marks the tables as being changed, for the watching process if the daemon ends now.
    pub(super) fn set_busy(&self, busy: bool) {
        if let Some(kernel) = &self.kernel {
            kernel.set_busy(busy);
        }
    }

    /// Passes descriptors to the process at the other end of `stream`, which watches the kernel path's tables after the
    /// daemon has ended: it runs [`crate::watcher::run`].
    ///
    /// # Errors
    /// If the process does not answer.
    pub fn watch_over(&mut self, stream: UnixStream) -> Result<(), Error> {
        let Some(kernel) = &self.kernel else { return Ok(()) };
        let [views, beat] = kernel.lease_parts().map_err(Error::new)?;
        let given = watcher::give(&stream, [self.watch.as_fd(), views.as_fd(), beat.as_fd()]);
        self.told = Some(WatcherProcess::begin(given.map(|()| stream)).map_err(Error::new)?);
        Ok(())
    }

    /// Tells that process when the next lifetime of a route ends, which Linux does not announce. Returns whether it knows.
    pub(super) fn tell_lifetime(&mut self) -> bool {
        let ends = self.watch.next_end();
        self.told.as_mut().is_none_or(|told| told.tell(ends))
    }

    /// Makes the kernel path end with the daemon, since no process would watch its tables.
    pub fn unpin(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.unpin();
        }
    }

    /// Makes the kernel path keep forwarding with its last tables after the thread has ended.
    ///
    /// # Errors
    /// If there is no kernel path, or its program is not pinned.
    pub fn keep(&mut self) -> Result<(), Error> {
        let hint = "use `brickmoon stop` without --keep to end it; then Linux forwards";
        match &mut self.kernel {
            Some(kernel) => kernel.keep().map_err(|error| error.hint(hint)),
            None => Err(Error::new("workers forward the packets, and they end with the daemon").hint(hint)),
        }
    }
}
