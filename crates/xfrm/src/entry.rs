//! What is stored of an SA and a policy, and what an SA has been used for.

use bm_ipsec::{Action, Direction, Policy, Sa, SaId};

use crate::layout::{policy_id, selector};
use crate::policy::NewPolicy;
use crate::sa::About;

const SECOND: u64 = 1_000_000_000;

/// The time of a request: seconds since 1970, and nanoseconds of the clock that workers use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    pub epoch_s: u64,
    pub ns: u64,
}

impl Now {
    /// A time of the workers' clock in seconds since 1970; 0 for none.
    pub(crate) fn epoch_s_of(&self, ns: u64) -> u64 {
        if ns == 0 { 0 } else { self.epoch_s.saturating_sub(self.ns.saturating_sub(ns) / SECOND) }
    }

    /// A time in seconds since 1970 by the workers' clock; 0 for none. The future is now.
    pub(crate) fn ns_of(&self, epoch_s: u64) -> u64 {
        let ago_ns = self.epoch_s.saturating_sub(epoch_s).saturating_mul(SECOND);
        if epoch_s == 0 { 0 } else { self.ns.saturating_sub(ago_ns).max(1) }
    }
}

/// What an SA has been used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub packets: u64,
    /// The next sequence number to send, or the highest received.
    pub number: u64,
    pub failures: u64,
    /// When the first packet was handled, by the clock of [`Now::ns`]; 0 if none was.
    pub first_ns: u64,
}

/// An SA, or a reserved SPI.
pub(crate) struct Entry {
    /// `None`: only its SPI is reserved.
    pub sa: Option<Sa>,
    pub about: About,
    /// The process that has added it.
    pub owner: u32,
    pub added: Now,
    pub is_expiring: bool,
    /// Counts up: later SAs replace earlier ones.
    pub order: u64,
    /// Of an outbound SA's keys.
    pub fingerprint: Option<u128>,
    /// When programs were told last that its packets come from elsewhere.
    pub moved_ns: Option<u64>,
}

impl Entry {
    /// A reserved SPI.
    pub fn new(about: About, owner: u32, added: Now) -> Self {
        Self {
            sa: None,
            about,
            owner,
            added,
            is_expiring: false,
            order: 0,
            fingerprint: None,
            moved_ns: None,
        }
    }
}

/// A policy.
pub(crate) struct Stored {
    pub new: NewPolicy,
    pub added_s: u64,
    pub asked_ns: Option<u64>,
    /// The number of its template.
    pub template: Option<u32>,
    /// The SA that its template uses.
    pub sa: Option<SaId>,
}

impl Stored {
    /// As workers get it.
    pub fn policy(&self) -> Policy {
        let NewPolicy { policy, template, .. } = &self.new;
        let action =
            self.template.zip(*template).map(|(number, template)| Action::Template(number, template));
        Policy { action: action.unwrap_or(policy.action), ..policy.clone() }
    }

    /// Whether it uses an outbound SA.
    pub fn sends(&self) -> bool {
        self.template.is_some() && self.new.policy.direction == Direction::Out
    }
}

/// The id of a policy, for messages about it.
pub(crate) fn id_of(new: &NewPolicy) -> [u8; policy_id::LENGTH] {
    let mut id = [0; policy_id::LENGTH];
    id[..selector::LENGTH].copy_from_slice(new.selector());
    id[policy_id::INDEX..][..4].copy_from_slice(&new.index().to_ne_bytes());
    id[policy_id::DIRECTION] = new.direction as u8;
    id
}
