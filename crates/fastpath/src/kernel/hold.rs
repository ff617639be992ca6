//! Interfaces whose filters are not in place yet: a program of their own drops what filters may forbid.
//!
//! ```text
//! attach_held ─► bm_hold drops what Linux might route ─► publish ─► release: the forwarding program
//! ```
//!
//! An interface that is deleted and made again has another number. The forwarding program knows nothing of it before
//! control has published that, and what it does not know it leaves to Linux, unfiltered. Links to the program here are
//! not pinned, so that nothing is dropped any more once the daemon is gone.

use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags};

use super::{Kernel, program, switch};
use crate::attach::{Attached, Attachment};
use crate::counters::Counters;
use crate::error::KernelError;
use crate::grace;
use crate::pins::Pins;

/// The program, and the map in which it counts.
pub(super) const PROGRAM: &str = "bm_hold";
pub(super) const MAP: &str = "held";
/// How long an interface is held that control never speaks of. Then Linux has its packets.
const HELD_MAX: Duration = Duration::from_secs(10);

impl Kernel {
    /// As [`Kernel::attach`], but what filters may forbid is dropped until [`Kernel::release`] says that they are in
    /// place. An interface that has the program already keeps it.
    ///
    /// # Errors
    /// As [`Kernel::attach`].
    pub fn attach_held(&mut self, interface: &str) -> Result<Attachment, KernelError> {
        self.put_on(interface, true)
    }

    /// Whether filters of some interface are not in place yet.
    pub fn holds_any(&self) -> bool {
        self.attached.iter().any(|attached| attached.held.is_some())
    }

    /// Has interfaces forward that are held and `ready`: what has been published lately holds for them. Returns what
    /// was dropped on each meanwhile. Others that have been held for too long are left to Linux.
    ///
    /// # Errors
    /// What the kernel refused; the interfaces are still held then.
    pub fn release(&mut self, ready: impl Fn(u32) -> bool) -> Result<Vec<(u32, Counters)>, KernelError> {
        let mut released = Vec::new();
        let forward = program(&mut self.object, super::PROGRAM);
        for attached in self.attached.iter_mut().filter(|attached| attached.held.is_some()) {
            if ready(attached.ifindex) {
                switch(attached, &forward)?;
                attached.held = None;
                released.push(attached.ifindex);
                pin(self.pins.as_ref(), attached)?;
            }
        }
        self.attached.retain(|attached| attached.held.is_none_or(|since| since.elapsed() < HELD_MAX));
        if !released.is_empty() {
            // The last that was held is counted then.
            grace::wait()
                .map_err(KernelError::system("waiting for packets that are still in the program"))?;
        }
        Ok(released.into_iter().map(|ifindex| (ifindex, self.take_held(ifindex))).collect())
    }

    /// What was dropped on an interface, which is forgotten.
    pub(super) fn take_held(&self, ifindex: u32) -> Counters {
        let key = ifindex.to_ne_bytes();
        // No entry: nothing was dropped.
        let value = self.held.lookup(&key, MapFlags::ANY).ok().flatten().unwrap_or_default();
        let _gone = self.held.delete(&key);
        match value.as_chunks::<8>().0 {
            [frames, bytes] => Counters::held(u64::from_ne_bytes(*frames), u64::from_ne_bytes(*bytes)),
            _ => Counters::default(),
        }
    }
}

/// Has the program stay on an interface after a crash, where it can be pinned.
pub(super) fn pin(pins: Option<&Pins>, attached: &mut Attached) -> Result<(), KernelError> {
    if let Some(pins) = pins {
        attached.pin = Some(pins.pin(attached.ifindex, &mut attached.link)?);
    }
    Ok(())
}
