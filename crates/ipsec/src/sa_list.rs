//! Policies with several SAs for the same packets (RFC 9611), so that several workers can encrypt them.

use crate::sa::SaId;

/// The SAs of a policy, of which each worker uses one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SaList {
    /// SAs of single workers. The owner of one uses it; of several, the first.
    pub own: Vec<SaId>,
    /// The SA of workers without one of their own.
    pub fallback: Option<SaId>,
    /// Whether such a worker also asks for one of its own.
    pub asks: bool,
}

impl SaList {
    /// SAs of the configuration: the first one is also for workers for which there is none.
    pub fn in_order(sas: Vec<SaId>) -> Self {
        Self { fallback: sas.first().copied(), own: sas, asks: false }
    }

    /// One SA for all workers, or none.
    pub fn of(sa: Option<SaId>) -> Self {
        Self { fallback: sa, ..Self::default() }
    }

    /// Whether an SA is one of these.
    pub fn has(&self, id: SaId) -> bool {
        self.fallback == Some(id) || self.own.contains(&id)
    }
}
