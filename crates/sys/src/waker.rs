//! Wakes a thread that waits for descriptors, with an eventfd.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// The eventfd could not be created.
#[derive(Debug)]
pub struct NoWaker(io::Error);

impl fmt::Display for NoWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot create the eventfd that wakes a thread: {}", self.0)
    }
}

impl std::error::Error for NoWaker {}

fn fresh() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

/// Wakes a sleeping thread.
#[derive(Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// A waker without a waiting thread.
    ///
    /// # Errors
    /// The error of `eventfd`.
    pub fn new() -> Result<Self, NoWaker> {
        fresh().map(|fd| Self(Arc::new(fd))).map_err(NoWaker)
    }

    /// Wakes the waiting thread; does nothing if it is awake.
    pub fn wake(&self) {
        // A full counter (EAGAIN) means that it has been woken already.
        let _full = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Forgets earlier wakes.
    pub fn clear(&self) {
        // EAGAIN means that there was none.
        let _none = rustix::io::read(&*self.0, &mut [0u8; 8]);
    }

    /// The descriptor that becomes readable.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sleeps until it is woken, a descriptor of `also` becomes readable, or `timeout` has passed. Earlier wakes
    /// count until they are cleared.
    pub fn wait<'a>(&'a self, also: impl IntoIterator<Item = BorrowedFd<'a>>, timeout: Duration) {
        let watched = std::iter::once(self.fd()).chain(also);
        let mut watched: Vec<_> = watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
        // Interrupted or timed out: the caller checks everything in any case.
        let _woken = poll(&mut watched, Some(&timeout));
    }
}

/// A file that never becomes readable.
///
/// # Errors
/// The error of `eventfd`.
pub fn never_readable() -> io::Result<File> {
    fresh().map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const NEVER: Duration = Duration::from_secs(60);

    #[test]
    fn a_wake_counts_until_it_is_cleared() {
        let waker = Waker::new().unwrap();
        let begin = Instant::now();
        waker.wake();
        waker.wait([], NEVER);
        waker.wait([], NEVER);
        assert!(begin.elapsed() < NEVER);
        waker.clear();
        let begin = Instant::now();
        waker.wait([never_readable().unwrap().as_fd()], Duration::from_millis(20));
        assert!(begin.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn another_thread_or_another_file_wakes() {
        let (waker, other) = (Waker::new().unwrap(), Waker::new().unwrap());
        let begin = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wait([], NEVER));
            waker.wake();
        });
        waker.clear();
        other.wake();
        waker.wait([other.fd()], NEVER);
        assert!(begin.elapsed() < NEVER);
    }
}
