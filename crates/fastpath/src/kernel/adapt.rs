//! Interfaces whose attachment is chosen automatically: XDP, unless its device or received packets show that tc is better.
//!
//! ```text
//! a veth, and whatever XDP cannot send through ──► tc
//! otherwise XDP ──► XDP leaves a tenth of the packets in a second to Linux that tc would forward ──► tc, from then on
//! ```
//!
//! A container on a veth sends 64 KiB at once and leaves the checksum to a card that does not exist. XDP on the veth makes
//! Linux cut that up and copy it, and then has to leave each piece to Linux; without offloads, the copies alone make it
//! half as fast as Linux (docs/experiments/kernel-path.md). Only where the other end is XDP too, XDP is better. So does a
//! virtual machine on a TAP, or it does not: that cannot be read, so received packets are counted: with incomplete
//! checksums, too large, or to an interface that XDP cannot send through.

use bm_bpf::AttachType;

use super::Kernel;
use crate::attach::{self, AttachChoice};
use crate::error::KernelError;
use crate::layout::INGRESSES;
use crate::tags;

/// Minimum number of packets a second for a change.
const PACKETS_MIN: u64 = 500;
/// XDP stays attached while it leaves less than one packet in this many to Linux.
const ONE_IN: u64 = 10;

/// What XDP leaves to Linux and tc may forward.
const FOR_TC: [&str; 3] = ["linux_partial_sum", "linux_mtu", "linux_egress"];

/// An interface that was moved to tc, or could not be.
#[derive(Debug)]
pub struct ChangedAttachment {
    /// Its name.
    pub interface: String,
    /// Why.
    pub reason: String,
    /// The kernel's error.
    pub error: Option<KernelError>,
}

impl Kernel {
    /// What to attach the program to on an interface if the configuration does not say, and why.
    pub(super) fn choose(&self, ifindex: u32, choice: AttachChoice) -> (AttachType, Option<String>) {
        match choice {
            AttachChoice::Xdp => (AttachType::Xdp, None),
            AttachChoice::Tc => (AttachType::Tc, None),
            AttachChoice::Auto => self.choose_automatically(ifindex),
        }
    }

    fn choose_automatically(&self, ifindex: u32) -> (AttachType, Option<String>) {
        let mut on_it = self.attached.iter().filter(|attached| attached.ifindex == ifindex);
        if let Some(attached) = on_it.find(|attached| attached.reason.is_some()) {
            return (attached.attach_type, attached.reason.clone());
        }
        let mut left = self.left.iter().filter(|pinned| pinned.ifindex == ifindex);
        if self.claims.is_none() && left.any(|pinned| pinned.attach_type == AttachType::Tc) {
            return (AttachType::Tc, Some("an earlier daemon had moved it there".into()));
        }
        match attach::why_tc(&attach::name(ifindex)) {
            Some(why) if self.may_use_tc() => (AttachType::Tc, Some(why)),
            _ => (AttachType::Xdp, Some("XDP has had to leave few packets to Linux".into())),
        }
    }

    /// Whether interfaces may be at tc: Linux has it, and no packets are claimed, which only XDP can do.
    fn may_use_tc(&self) -> bool {
        self.claims.is_none() && attach::has_tcx()
    }

    /// Turns tag stripping off again where somebody has turned it on: XDP would take frames of VLANs for others. Returns the
    /// names of these interfaces. To be called once a second.
    pub fn keep_tags(&self) -> Vec<String> {
        let by_xdp = self.attached.iter().filter(|attached| attached.attach_type == AttachType::Xdp);
        by_xdp.map(|attached| attach::name(attached.ifindex)).filter(|name| tags::keep(name, true)).collect()
    }

    /// Moves interfaces to tc that XDP serves badly, if their attachment is chosen automatically; returns which. To be
    /// called once a second.
    pub fn adapt(&mut self) -> Vec<ChangedAttachment> {
        if self.claims.is_some() {
            return Vec::new();
        }
        let mut moved = Vec::new();
        for ifindex in self.attached.iter().map(|attached| attached.ifindex).collect::<Vec<_>>() {
            let Some(reason) = self.why_tc(ifindex) else { continue };
            let interface = attach::name(ifindex);
            let error = self.put_on(&interface, AttachChoice::Tc, false).err();
            if let Some(attached) = self.attached.iter_mut().find(|attached| attached.ifindex == ifindex) {
                // The kernel does not support it: one attempt is enough.
                attached.reason = error.is_none().then(|| reason.clone());
            }
            moved.push(ChangedAttachment { interface, reason, error });
        }
        moved
    }

    /// Why an interface would be better off at tc; `None` if it is not.
    fn why_tc(&mut self, ifindex: u32) -> Option<String> {
        let own = self.view.ingress[ifindex as usize % INGRESSES];
        let has_vlans = self.view.vlans.iter().any(|vlan| vlan.port == ifindex);
        let at = self.attached.iter().position(|attached| attached.ifindex == ifindex)?;
        let attached = &self.attached[at];
        let is_free = attached.reason.is_some() && !attached.waits && attached.held.is_none();
        if attached.attach_type != AttachType::Xdp || !is_free || own.ifindex != ifindex || has_vlans {
            return None;
        }
        let counters = self.counters(own.interface).ok()?;
        // The second check is compared with the first.
        let since = counters.since(self.attached[at].seen.replace(counters)?);
        let lost = since.named().filter(|(name, _)| FOR_TC.contains(name));
        let (left, received) = (lost.map(|(_, frames)| frames).sum::<u64>(), since.received());
        if left < PACKETS_MIN || left < received / ONE_IN {
            return None;
        }
        Some(format!(
            "{left} of {received} packets in one second had incomplete checksums, were too large, or left through an interface that XDP cannot send through, so XDP left them to Linux"
        ))
    }
}
