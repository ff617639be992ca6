//! What is stored of an SA and a policy.

use std::collections::BTreeMap;

use bm_ipsec::{Action, Direction, Policy, Sa, SaList};

use crate::layout::{policy_id, selector};
use crate::policy::NewPolicy;
use crate::sa::About;
use crate::usage::Now;

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

/// A policy of IPsec, with what the database keeps beside it.
pub(crate) struct PolicyEntry {
    pub new: NewPolicy,
    pub added_s: u64,
    /// When an SA was asked for, for a CPU or for all.
    pub asked_ns: BTreeMap<Option<u32>, u64>,
    /// The number of its template.
    pub template: Option<u32>,
    /// The SAs that its template uses.
    pub sas: SaList,
}

impl PolicyEntry {
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
