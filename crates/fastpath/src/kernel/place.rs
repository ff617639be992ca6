//! Interfaces: attaches the programs, takes interfaces over from an earlier daemon, and leaves them.
//!
//! An interface has our program as XDP or at tc. To change that, the new one is attached before the old one is
//! detached: XDP comes first, and what it leaves to Linux meets the other.

use std::path::PathBuf;
use std::time::Instant;

use bm_bpf::{AttachType, PinnedLink};
use libbpf_rs::{Object, ProgramMut};

use super::object::{self, With, program};
use super::{Kernel, hold};
use crate::attach::{self, AttachChoice, AttachedInterface, Attachment};
use crate::error::KernelError;
use crate::pins::version_of;
use crate::tags;

/// The result of [`Kernel::take_over`].
#[derive(Debug, Default)]
pub struct TakenOver {
    /// The number of interfaces that were switched from an earlier daemon's program to this one.
    pub switched: usize,
    /// Interfaces that are no longer ports; Linux forwards for them.
    pub removed: Vec<String>,
    /// Pinned links whose program is not brickmoon's, with the program's name: they are left alone.
    pub foreign: Vec<(PathBuf, String)>,
}

impl Kernel {
    /// Attaches the program to an interface, unless it is attached already. Nothing is forwarded from there before
    /// [`Self::publish`] says so. A program that is attached in another way than `choice` says is replaced.
    ///
    /// If an earlier daemon left its program there, that keeps forwarding with its own tables until
    /// [`Self::take_over`], whatever its layout version: it shares no map with this one.
    ///
    /// # Errors
    /// If there is no such interface, another program is attached to it, or the kernel refused.
    pub fn attach(&mut self, interface: &str, choice: AttachChoice) -> Result<Attachment, KernelError> {
        self.put_on(interface, choice, false)
    }

    pub(super) fn put_on(
        &mut self,
        interface: &str,
        choice: AttachChoice,
        held: bool,
    ) -> Result<Attachment, KernelError> {
        let ifindex = attach::ifindex(interface)?;
        // Entries of deleted interfaces would be in the way of a new one with the same index.
        self.attached.retain(AttachedInterface::is_live);
        let (mut attach_type, mut reason) = self.choose(ifindex, choice);
        let before = self.attached.iter().position(|attached| attached.ifindex == ifindex);
        let is_so = before.is_some_and(|at| self.attached[at].attach_type == attach_type);
        let held = held && before.is_none();
        let adopted = match is_so {
            true => None,
            false => match self.put(interface, attach_type, held) {
                // This Linux has no such links: XDP leaves more to it, but works.
                Err(_at_tc) if choice == AttachChoice::Auto && attach_type == AttachType::Tc => {
                    (attach_type, reason) = (AttachType::Xdp, Some("Linux has no links at tc here".into()));
                    self.put(interface, attach_type, held)?
                }
                put => put?,
            },
        };
        if let Some(at) = before.filter(|_| !is_so) {
            let mut old = self.attached.remove(at);
            (old.waits, old.kept) = (false, false);
        }
        if let Some(attached) = self.attached.iter_mut().find(|attached| attached.ifindex == ifindex) {
            attached.reason = reason;
        }
        let generic = attach_type == AttachType::Xdp && attach::is_generic(ifindex);
        Ok(Attachment { ifindex, generic, adopted, attach_type })
    }

    /// Attaches a program where it is not attached in this way; returns the layout version of one that is adopted.
    fn put(
        &mut self,
        interface: &str,
        attach_type: AttachType,
        held: bool,
    ) -> Result<Option<u32>, KernelError> {
        let ifindex = attach::ifindex(interface)?;
        let on = attach::program_on(ifindex);
        let left = self.left.iter().position(|pinned| {
            let runs = attach_type == AttachType::Tc || Some(pinned.program.id) == on;
            pinned.ifindex == ifindex && pinned.attach_type == attach_type && runs
        });
        if let Some(at) = left {
            return self.adopt(interface, at).map(Some);
        }
        let name = if held { hold::program_of(attach_type) } else { object::forwards(attach_type) };
        let mut attached =
            attach::attach(interface, attach_type, &program(self.object_of(attach_type)?, name))?;
        attached.held = held.then(Instant::now);
        if !held {
            hold::pin(self.pins.as_ref(), &mut attached)?;
        }
        self.attached.push(attached);
        Ok(None)
    }

    /// The object with the programs of this type; the one for tc is loaded when it is needed first.
    pub(super) fn object_of(&mut self, attach_type: AttachType) -> Result<&mut Object, KernelError> {
        if attach_type == AttachType::Xdp {
            return Ok(&mut self.object);
        }
        let tc = match self.tc.take() {
            Some(tc) => tc,
            None => object::load(
                AttachType::Tc,
                With {
                    tables: &self.tables,
                    views: &self.views,
                    unresolved: &self.unresolved,
                    counts: Some([&self.counts, &self.held]),
                    filters: self.filters.as_ref(),
                    claims: None,
                    flows: self.flows.as_ref().filter(|_| self.by_flow),
                    tags: self.tags,
                    sample_one_in: self.sample_one_in,
                },
            )?,
        };
        Ok(self.tc.insert(tc))
    }

    /// Makes an interface run the forwarding program.
    pub(super) fn forward(&mut self, at: usize) -> Result<(), KernelError> {
        let attach_type = self.attached[at].attach_type;
        self.object_of(attach_type)?;
        let object = match attach_type {
            AttachType::Xdp => Some(&mut self.object),
            AttachType::Tc => self.tc.as_mut(),
        };
        if let Some(object) = object {
            switch(&mut self.attached[at], &program(object, object::forwards(attach_type)))?;
        }
        Ok(())
    }

    /// What the program is attached to on an interface, and why if that was chosen automatically.
    pub fn attached(&self, ifindex: u32) -> Option<(AttachType, Option<String>)> {
        let of_it = self.attached.iter().find(|attached| attached.ifindex == ifindex)?;
        Some((of_it.attach_type, of_it.reason.clone()))
    }

    /// Detaches the program from all interfaces except these: Linux gets their packets from then on.
    pub fn detach_others(&mut self, keep: &[u32]) {
        self.attached.retain(|attached| keep.contains(&attached.ifindex) && attached.is_live());
    }

    /// Adopts a pinned link; returns the layout version of its program.
    fn adopt(&mut self, interface: &str, at: usize) -> Result<u32, KernelError> {
        let pinned = &self.left[at];
        let Some(version) = version_of(pinned) else {
            let (interface, path) = (interface.into(), pinned.path.clone());
            return Err(KernelError::Foreign { interface, path, program: pinned.program.name.clone() });
        };
        let PinnedLink { path, link, ifindex, attach_type, .. } = self.left.swap_remove(at);
        self.attached.push(AttachedInterface {
            ifindex,
            attach_type,
            reason: None,
            seen: None,
            link,
            pin: Some(path),
            waits: true,
            held: None,
            kept: false,
            // The earlier daemon did this already, and how it was before is unknown.
            tags_kept: attach_type == AttachType::Xdp && tags::keep(interface, true),
        });
        Ok(version)
    }

    /// Switches interfaces that an earlier daemon left from its program to this one, which must have its tables by
    /// now, and detaches its program from interfaces that are no longer ports. A repeated call does what is left to
    /// do.
    ///
    /// # Errors
    /// The kernel's error. Interfaces that were not switched keep the earlier program.
    pub fn take_over(&mut self) -> Result<TakenOver, KernelError> {
        let mut done = TakenOver::default();
        for at in 0..self.attached.len() {
            if !self.attached[at].waits {
                continue;
            }
            self.forward(at)?;
            self.attached[at].waits = false;
            done.switched += 1;
            // The kernel waits for its devices with each of them.
            bm_sys::heartbeat::beat();
        }
        for pinned in self.left.drain(..) {
            if version_of(&pinned).is_some() {
                // It is still a port if our program is attached to it in another way.
                match self.attached.iter().any(|attached| attached.ifindex == pinned.ifindex) {
                    true => done.switched += 1,
                    false => done.removed.push(attach::name(pinned.ifindex)),
                }
                pinned.remove();
            } else {
                done.foreign.push((pinned.path, pinned.program.name));
            }
        }
        Ok(done)
    }
}

/// Makes an interface run this program; a deleted interface runs none.
pub(super) fn switch(
    attached: &mut AttachedInterface,
    forward: &ProgramMut<'_>,
) -> Result<(), bm_bpf::Error> {
    match attached.link.update_prog(forward) {
        Err(error) if attached.is_live() => {
            Err(bm_bpf::Error::Program { step: "switching an interface to new tables", error })
        }
        _ => Ok(()),
    }
}
