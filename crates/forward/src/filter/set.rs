//! The filters of all ports, as control publishes them.

use std::sync::Arc;

use bm_fib::memory::OutOfMemory;
use bm_filter::Filters;
use bm_wire::ReversePath;

use super::{RuleCounts, SourceRates};

/// The filters, as workers use them.
pub struct FilterSet {
    /// Rules, fragments, rates.
    pub filters: Arc<Filters>,
    /// How sources are checked, by brickmoon's index of the interface; [`ReversePath::Off`] past the end.
    pub checks: Vec<ReversePath>,
    /// Families, IPv4 first, whose routes only Linux knows: the reverse path is not checked.
    pub unknown: [bool; 2],
    /// For each port, whether workers filter what arrives there; past the end they do not.
    pub ports: Vec<bool>,
    /// Counters of matched rules.
    pub counts: Arc<RuleCounts>,
    /// Rates of sources; `None` without a rate limit.
    pub rates: Option<Arc<SourceRates>>,
}

impl FilterSet {
    /// A copy for every port, with counters of its own and without rates: it leaves no trace, and what it says of a
    /// packet depends on no other.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn isolated(&self, ports: usize) -> Result<Self, OutOfMemory> {
        Ok(Self {
            filters: Arc::clone(&self.filters),
            checks: self.checks.clone(),
            unknown: self.unknown,
            ports: vec![true; ports],
            counts: Arc::new(RuleCounts::new()?),
            rates: None,
        })
    }

    /// Whether some packet may be dropped.
    pub fn may_drop(&self) -> bool {
        self.filters.may_drop() || self.checks.iter().any(|check| *check != ReversePath::Off)
    }
}
