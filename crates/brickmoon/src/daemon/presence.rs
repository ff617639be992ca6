//! Whether a port has its interface. Ports follow their interfaces by name, whenever those come and go.

use std::time::{Duration, Instant};

use bm_api::PortState;

/// When an interface that could not be taken is tried again, unless something happens to it before.
pub const AGAIN: Duration = Duration::from_secs(1);

/// Whether a port has its interface, and why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It has.
    Here {
        /// The interface's number in Linux.
        ifindex: u32,
        /// Which appearance of it; not known before the kernel's tables have been read.
        birth: Option<u64>,
    },
    /// No interface has its name.
    Missing,
    /// One has, and it could not be taken.
    Refused {
        /// Why.
        why: String,
        /// Which appearance of it.
        birth: Option<u64>,
        /// When it was tried.
        at: Instant,
    },
}

impl Presence {
    /// It was tried now.
    pub fn refused(why: impl Into<String>) -> Self {
        Self::Refused { why: why.into(), birth: None, at: Instant::now() }
    }

    /// The interface's number, if the port has it.
    pub fn ifindex(&self) -> Option<u32> {
        match self {
            Self::Here { ifindex, .. } => Some(*ifindex),
            _ => None,
        }
    }

    /// How `show ports` calls it, and the reason.
    pub fn shown(&self, name: &str) -> (PortState, Option<String>) {
        match self {
            Self::Here { .. } => (PortState::Taken, None),
            Self::Missing => (PortState::Missing, Some(missing(name))),
            Self::Refused { why, .. } => (PortState::Refused, Some(why.clone())),
        }
    }
}

/// What to say of a port without an interface.
pub fn missing(name: &str) -> String {
    format!("there is no interface called {name} now; it is taken as soon as there is one")
}

/// Why an interface is no use to any path, if it is not.
pub fn unfit(interface: &str) -> Option<String> {
    (!bm_fastpath::is_ethernet(interface)).then(|| {
        format!("{interface} has no Ethernet header, and brickmoon forwards Ethernet frames: its packets are Linux's")
    })
}
