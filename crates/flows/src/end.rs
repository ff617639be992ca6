//! Why programs no longer use a flow.

use crate::layout::Flow;
use std::sync::atomic::Ordering::Relaxed;

/// Why a flow is no longer used (`enum flow_end`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// A packet with FIN or RST has passed.
    Closed = 1,
    /// Linux has forgotten the connection.
    Gone = 2,
    /// The connection has another mark, state or translation.
    Changed = 3,
}

impl EndReason {
    /// Why an entry is no longer used; `None` if it is.
    pub(crate) fn of(flow: &Flow) -> Option<Self> {
        match flow.ended.load(Relaxed) {
            0 => None,
            1 => Some(Self::Closed),
            2 => Some(Self::Gone),
            _ => Some(Self::Changed),
        }
    }
}
