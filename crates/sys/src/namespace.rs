//! Namespaces of the calling thread. Other threads are not affected.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// A kind of namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// Interfaces, addresses, routes.
    Network,
    /// Mounted file systems. The thread's root and working directory are its own from then on, too.
    Mount,
}

impl Namespace {
    fn flag(self) -> libc::c_int {
        match self {
            Self::Network => libc::CLONE_NEWNET,
            Self::Mount => libc::CLONE_NEWNS,
        }
    }

    /// Moves the thread into a new namespace.
    ///
    /// # Errors
    /// The error of `unshare`: usually that it needs root.
    pub fn unshare(self) -> io::Result<()> {
        unshare(self.flag())
    }

    /// Moves the thread into an existing one, such as an open `/run/netns/NAME` or `/proc/1/ns/mnt`.
    ///
    /// # Errors
    /// What `unshare` and `setns` say.
    pub fn enter(self, namespace: &impl AsFd) -> io::Result<()> {
        if self == Self::Mount {
            unshare(libc::CLONE_FS)?;
        }
        // SAFETY: takes numbers; it changes what system calls of this thread see, and no memory.
        checked(unsafe { libc::setns(namespace.as_fd().as_raw_fd(), self.flag()) })
    }
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: takes a number; it changes what system calls of this thread see, and no memory.
    checked(unsafe { libc::unshare(flags) })
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface;
    use std::fs::File;

    #[test]
    fn a_new_namespace_has_only_loopback_and_the_old_one_can_be_reentered() {
        std::thread::spawn(|| {
            let before = File::open("/proc/thread-self/ns/net").unwrap();
            let interfaces = interface::list().unwrap();
            if let Err(error) = Namespace::Network.unshare() {
                return eprintln!("skipped: needs root for a network namespace: {error}");
            }
            assert_eq!(interface::list().unwrap(), [(1, "lo".to_string())]);
            Namespace::Network.enter(&before).unwrap();
            assert_eq!(interface::list().unwrap(), interfaces);
            assert!(Namespace::Mount.enter(&before).is_err(), "a namespace of another kind");
        })
        .join()
        .unwrap();
    }
}
