//! Interfaces whose filters are not in place yet: a separate program drops what filters may forbid.
//!
//! ```text
//! attach_held ─► bm_hold drops what Linux might route ─► publish ─► release: the forwarding program
//! ```
//!
//! An interface that is deleted and created again has another index. The forwarding program does not know it before
//! control has published it, and leaves unknown interfaces to Linux, unfiltered. Links to this program are not
//! pinned, so that nothing is dropped any more once the daemon is gone.

use std::time::Duration;

use bm_bpf::{AttachType, MapValue};
use libbpf_rs::{MapCore, MapFlags};

use super::Kernel;
use crate::attach::{AttachChoice, AttachedInterface, Attachment};
use crate::counters::Counters;
use crate::error::KernelError;
use crate::grace;
use bm_bpf::Pins;

pub(super) fn program_of(attach_type: AttachType) -> &'static str {
    match attach_type {
        AttachType::Xdp => "bm_hold",
        AttachType::Tc => "bm_hold_tc",
    }
}
/// The map with its counters.
pub(super) const MAP: &str = "held";
/// The longest time to hold an interface that control never publishes. After that Linux gets its packets.
const HELD_MAX: Duration = Duration::from_secs(10);

impl Kernel {
    /// Like [`Kernel::attach`], but what filters may forbid is dropped until [`Kernel::release`] says that they are
    /// in place. An interface that already has the forwarding program keeps it.
    ///
    /// # Errors
    /// As [`Kernel::attach`].
    pub fn attach_held(&mut self, interface: &str, choice: AttachChoice) -> Result<Attachment, KernelError> {
        self.put_on(interface, choice, true)
    }

    /// Whether the filters of any interface are not in place yet.
    pub fn holds_any(&self) -> bool {
        self.attached.iter().any(|attached| attached.held.is_some())
    }

    /// Makes held interfaces forward for which `ready` is true: the latest published state covers them. Returns what
    /// was dropped on each meanwhile. Others that have been held for too long are left to Linux.
    ///
    /// # Errors
    /// The kernel's error; the interfaces then stay held.
    pub fn release(&mut self, ready: impl Fn(u32) -> bool) -> Result<Vec<(u32, Counters)>, KernelError> {
        let mut released = Vec::new();
        for at in 0..self.attached.len() {
            if self.attached[at].held.is_some() && ready(self.attached[at].ifindex) {
                self.forward(at)?;
                let attached = &mut self.attached[at];
                attached.held = None;
                released.push(attached.ifindex);
                pin(self.pins.as_ref(), attached)?;
            }
        }
        self.attached.retain(|attached| attached.held.is_none_or(|since| since.elapsed() < HELD_MAX));
        if !released.is_empty() {
            // After this, the last held packet has been counted.
            grace::wait()
                .map_err(bm_bpf::Error::system("waiting for packets that are still in the program"))?;
        }
        Ok(released.into_iter().map(|ifindex| (ifindex, self.take_held(ifindex))).collect())
    }

    /// Takes the counters of what was dropped on an interface.
    pub(super) fn take_held(&self, ifindex: u32) -> Counters {
        let key = ifindex.to_ne_bytes();
        // No entry means that nothing was dropped.
        let value = self.held.lookup(&key, MapFlags::ANY).ok().flatten().unwrap_or_default();
        let _gone = self.held.delete(&key);
        MapValue::from_bytes(&value)
            .map_or(Counters::default(), |[frames, bytes]: [u64; 2]| Counters::held(frames, bytes))
    }
}

/// Makes the program stay on an interface after a crash, if it can be pinned.
pub(super) fn pin(pins: Option<&Pins>, attached: &mut AttachedInterface) -> Result<(), KernelError> {
    if let Some(pins) = pins {
        attached.pin = Some(pins.pin(attached.ifindex, &mut attached.link)?);
    }
    Ok(())
}
