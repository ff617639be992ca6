//! Whether a port has its interface. Ports follow their interfaces by name when these appear and disappear.

use std::time::{Duration, Instant};

use bm_api::PortState;

use crate::plan::{missing, not_ethernet};

/// Time after which an interface that could not be used is tried again, unless it changes earlier.
pub const AGAIN: Duration = Duration::from_secs(1);

/// Whether a port has its interface, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The port has its interface.
    Here {
        /// Index of the interface in Linux.
        ifindex: u32,
        /// Distinguishes it from earlier interfaces of this name; `None` before the kernel's tables have been read.
        generation: Option<u64>,
    },
    /// There is no interface of its name.
    Missing,
    /// The interface exists but could not be used.
    Refused {
        why: String,
        /// Distinguishes it from earlier interfaces of this name.
        generation: Option<u64>,
        /// When it was last tried.
        at: Instant,
    },
}

impl Presence {
    /// An interface that was tried now and could not be used.
    pub fn refused(why: impl Into<String>) -> Self {
        Self::Refused { why: why.into(), generation: None, at: Instant::now() }
    }

    /// Index of the interface, if the port has it.
    pub fn ifindex(&self) -> Option<u32> {
        match self {
            Self::Here { ifindex, .. } => Some(*ifindex),
            _ => None,
        }
    }

    /// State and reason for `show ports`.
    pub fn shown(&self, name: &str) -> (PortState, Option<String>) {
        match self {
            Self::Here { .. } => (PortState::Attached, None),
            Self::Missing => (PortState::Missing, Some(missing(name))),
            Self::Refused { why, .. } => (PortState::Refused, Some(why.clone())),
        }
    }
}

/// Why no path can use an interface; `None` if one can.
pub fn unfit(interface: &str) -> Option<String> {
    alternative(interface).or_else(|| (!bm_fastpath::is_ethernet(interface)).then(|| not_ethernet(interface)))
}

/// Why the name of a port is none, if it is an alternative name of an interface. Rules and tables have one name for each
/// interface: the one that Linux shows first.
pub fn alternative(interface: &str) -> Option<String> {
    let name = bm_fastpath::interface_name(bm_fastpath::ifindex(interface).ok()?);
    (name != interface).then(|| {
        format!(
            "{interface} is an alternative name of {name}: write device = \"{name}\" in the configuration"
        )
    })
}
