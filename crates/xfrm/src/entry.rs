//! What is stored of an SA and a policy, and what an SA has been used for.

use bm_ipsec::{Sa, SaId};

use crate::layout::{policy_id, selector};
use crate::policy::NewPolicy;
use crate::sa::About;

/// The time of a request: seconds since 1970, and nanoseconds of the clock that workers use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    pub epoch_s: u64,
    pub ns: u64,
}

/// What an SA has been used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub packets: u64,
    /// The next sequence number to send, or the highest received.
    pub number: u64,
    pub failures: u64,
}

/// An SA, or a reserved SPI.
pub(crate) struct Entry {
    /// `None`: only its SPI is reserved.
    pub sa: Option<Sa>,
    pub about: About,
    /// The process that has added it.
    pub owner: u32,
    pub added: Now,
    /// Seconds since 1970; 0 while it is unused.
    pub first_used_s: u64,
    pub is_expiring: bool,
    /// Counts up: later SAs replace earlier ones.
    pub order: u64,
    /// Of an outbound SA's keys.
    pub fingerprint: Option<u128>,
}

impl Entry {
    /// A reserved SPI.
    pub fn new(about: About, owner: u32, added: Now) -> Self {
        Self {
            sa: None,
            about,
            owner,
            added,
            first_used_s: 0,
            is_expiring: false,
            order: 0,
            fingerprint: None,
        }
    }
}

/// A policy.
pub(crate) struct Stored {
    pub new: NewPolicy,
    pub added_s: u64,
    pub asked_ns: Option<u64>,
    /// The SA that its template uses.
    pub sa: Option<SaId>,
}

/// The id of a policy, for messages about it.
pub(crate) fn id_of(new: &NewPolicy) -> [u8; policy_id::LENGTH] {
    let mut id = [0; policy_id::LENGTH];
    id[..selector::LENGTH].copy_from_slice(new.selector());
    id[policy_id::INDEX..][..4].copy_from_slice(&new.index().to_ne_bytes());
    id[policy_id::DIRECTION] = new.direction as u8;
    id
}
