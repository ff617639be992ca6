//! Lifetimes: IKE daemons get an event when one expires, and SAs are removed at their hard ones.

use bm_ipsec::{Expiry, SaUsage};

use crate::database::{Answer, Context, Database};
use crate::layout::group;
use crate::usage::Usage;
use crate::write;

/// How long an SPI is reserved: as long as charon makes the kernel wait.
const RESERVED_S: u64 = 165;

/// What a lifetime says about an SA.
enum End {
    Soft,
    Hard,
    /// The reserved SPI was not used.
    Unused,
}

impl Database {
    /// To be called often: ends what has reached a lifetime.
    pub fn expire(&mut self, context: &Context<'_>) -> Answer {
        let mut answer = Answer::default();
        let mut ended = Vec::new();
        for (&key, entry) in &mut self.sas {
            let usage = context.usage_of(key);
            let Usage { bytes, packets, first_ns, .. } = usage.usage;
            let used = SaUsage { bytes, packets, added_ns: entry.added.ns, first_ns };
            let end = match &entry.sa {
                None => {
                    let age_ns = context.now.ns.saturating_sub(entry.added.ns);
                    (age_ns >= RESERVED_S * 1_000_000_000).then_some(End::Unused)
                }
                Some(sa) => match sa.limits.expiry(&used, context.now.ns) {
                    Some(Expiry::Hard) => Some(End::Hard),
                    Some(Expiry::Soft) if !entry.is_expiring => Some(End::Soft),
                    _ => None,
                },
            };
            match end {
                Some(End::Soft) => {
                    entry.is_expiring = true;
                    answer.events.push((group::EXPIRE, write::expire(entry, usage, false)));
                }
                Some(End::Hard) => {
                    answer.events.push((group::EXPIRE, write::expire(entry, usage, true)));
                    ended.push(key);
                }
                Some(End::Unused) => ended.push(key),
                None => {}
            }
        }
        for key in ended {
            // It is there: it was just found.
            let _there = self.remove_sa(key, context, &mut answer);
        }
        answer
    }
}
