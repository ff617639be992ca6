//! The parts of the kernel path that outlive the daemon, and what the process that then watches the tables needs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Release;

use super::Kernel;
use crate::error::KernelError;
use crate::lease::Lease;

impl Kernel {
    /// Whether the program survives a crash where it is attached.
    pub fn is_pinned(&self) -> bool {
        self.pins.is_some()
    }

    /// The arguments of [`Lease::open`]: the map with the time until which tables are valid, and the program that
    /// extends it.
    ///
    /// # Errors
    /// The system's error.
    pub fn lease_parts(&self) -> io::Result<[OwnedFd; 2]> {
        let beat = self.object.progs().find(|program| program.name() == "beat");
        let beat = beat.ok_or(io::ErrorKind::NotFound)?;
        Ok([self.views.as_fd().try_clone_to_owned()?, beat.as_fd().try_clone_to_owned()?])
    }

    /// The program's permission to forward, for threads that must not wait for the owner of this value.
    ///
    /// # Errors
    /// The system's error.
    pub fn lease(&self) -> io::Result<Lease> {
        let [views, beat] = self.lease_parts()?;
        Lease::open(views.as_fd(), beat)
    }

    /// Marks that tables are being changed, and so may be inconsistent if the daemon ends now.
    pub fn set_busy(&self, busy: bool) {
        self.mapped.head().busy.store(u32::from(busy), Release);
    }

    /// Makes the program end with the daemon: nothing stays pinned.
    pub fn unpin(&mut self) {
        for attached in &mut self.attached {
            if let Some(pin) = attached.pin.take_if(|_| !attached.waits) {
                let _gone = std::fs::remove_file(pin);
            }
        }
    }

    /// Makes the program stay on its interfaces when this is dropped, for one grace time from now.
    ///
    /// # Errors
    /// If it is not pinned, or the kernel refused.
    pub fn keep(&mut self) -> Result<(), KernelError> {
        if self.attached.iter().any(|attached| attached.pin.is_none()) {
            return Err(bm_bpf::Error::NotPinned.into());
        }
        self.beat()?;
        self.attached.iter_mut().for_each(|attached| attached.kept = true);
        Ok(())
    }
}
