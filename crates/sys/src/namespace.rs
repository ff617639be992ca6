//! Namespaces of the calling thread. Other threads are not affected.

use std::io;
use std::os::fd::AsFd;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// A kind of namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// Interfaces, addresses, routes.
    Network,
    /// Mounted file systems. The thread's root and working directory are its own from then on, too.
    Mount,
}

impl Namespace {
    /// Moves the thread into a new namespace.
    ///
    /// # Errors
    /// The error of `unshare`: usually that it needs root.
    pub fn unshare(self) -> io::Result<()> {
        unshare(match self {
            Self::Network => UnshareFlags::NEWNET,
            Self::Mount => UnshareFlags::NEWNS,
        })
    }

    /// Moves the thread into an existing one, such as an open `/run/netns/NAME` or `/proc/1/ns/mnt`.
    ///
    /// # Errors
    /// What `unshare` and `setns` say.
    pub fn enter(self, namespace: &impl AsFd) -> io::Result<()> {
        let kind = match self {
            Self::Network => LinkNameSpaceType::Network,
            Self::Mount => {
                unshare(UnshareFlags::FS)?;
                LinkNameSpaceType::Mount
            }
        };
        Ok(move_into_link_name_space(namespace.as_fd(), Some(kind))?)
    }
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: the thread keeps its table of descriptors, since no caller passes `FILES`.
    Ok(unsafe { unshare_unsafe(flags) }?)
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
