//! Why a frame leaves the fast path, and the set of those that leave it in a burst.

use bm_frame::{BURST, Mask};
use bm_stats::Reason;

/// Why the slow path gets a frame. This is a hint, for lanes and hooks: the slow path decides again, since tables may
/// have changed meanwhile; except for a next hop that a hook chose, which is in the frame's meta data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// For Linux: to this machine, multicast, not IP, or unknown to brickmoon.
    Host = 1,
    /// For Linux: only Linux may handle it, since a firewall, an IPsec policy or traffic control concerns it.
    LinuxOnly,
    /// Unicast IP in a multicast or broadcast frame: for Linux if it is to this machine, else dropped.
    LinkGroup,
    /// An IPv6 source that may only be used towards this machine, or on its own link.
    SourceScope,
    /// IPv4 options.
    Options,
    /// An IPv6 hop-by-hop option that needs a closer check.
    HopByHop,
    /// TTL or hop limit expired.
    TtlExceeded,
    /// Larger than the next hop's MTU.
    TooBig,
    NoRoute,
    /// An unreachable route.
    Unreachable,
    /// A prohibit route.
    Prohibit,
    /// The next hop's address is not known yet.
    Resolve,
    /// A hook sent it.
    Hook,
    /// A packet of this router in ESP, whose peer has no MAC address yet, or that must be fragmented.
    Encrypted,
    /// A packet that a tunnel has no room for; `next_hop` of the frame's metadata is the MTU to report.
    TooBigForEsp,
    /// A packet that no SA protects on the IPsec interface by which it leaves; `next_hop` of the frame's metadata is the
    /// reason for dropping it.
    Unprotected,
}

impl Verdict {
    const ALL: [Self; 16] = [
        Self::Host,
        Self::LinuxOnly,
        Self::LinkGroup,
        Self::SourceScope,
        Self::Options,
        Self::HopByHop,
        Self::TtlExceeded,
        Self::TooBig,
        Self::NoRoute,
        Self::Unreachable,
        Self::Prohibit,
        Self::Resolve,
        Self::Hook,
        Self::Encrypted,
        Self::TooBigForEsp,
        Self::Unprotected,
    ];

    /// From a frame's meta.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|&verdict| verdict as u16 == code)
    }

    /// Whether Linux gets the frame, so that a flood of other work cannot starve it.
    pub(crate) fn is_for_host(self) -> bool {
        matches!(self, Self::Host | Self::LinuxOnly)
    }
}

/// Why a frame is not forwarded on the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Dropped, with a reason.
    Drop(Reason),
    /// Passed to the slow path.
    Slow(Verdict),
    /// Sent unchanged from a port, by a hook.
    Send(u16),
}

/// The frames of a burst that are refused.
pub(crate) struct RefusedFrames {
    pub mask: Mask,
    pub why: [Refusal; BURST],
}

impl RefusedFrames {
    pub fn new() -> Self {
        Self { mask: Mask::NONE, why: [Refusal::Slow(Verdict::Host); BURST] }
    }

    #[cold]
    #[inline(never)]
    pub fn add(&mut self, place: usize, why: Refusal) {
        self.mask.set(place);
        self.why[place] = why;
    }

    #[inline]
    pub fn why(&self, place: usize) -> Refusal {
        self.why[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_back() {
        for verdict in Verdict::ALL {
            assert_eq!(Verdict::from_code(verdict as u16), Some(verdict));
        }
        assert_eq!(Verdict::from_code(0), None);
    }
}
