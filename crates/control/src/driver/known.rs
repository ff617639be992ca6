//! What control knows, for those who answer questions.

use bm_api::{Interface, Status};
use bm_fastpath::Counters;

/// What control knows, as metrics want it.
#[derive(Clone, Debug, Default)]
pub struct OfControl {
    /// What it knows of the daemon's state.
    pub status: Status,
    /// What it knows of each port.
    pub ports: Vec<OfPort>,
    /// For each port, what the kernel path did with its frames.
    pub kernel: Vec<Counters>,
    /// What filter rules have matched.
    pub filters: bm_api::Filters,
}

/// What control knows of a port.
#[derive(Clone, Debug, Default)]
pub struct OfPort {
    /// Whether it is up.
    pub up: bool,
    /// Its interfaces.
    pub interfaces: Vec<Interface>,
    /// What only Linux may handle of the packets that come in there or leave there.
    pub linux_only: Vec<bm_api::LinuxOnly>,
    /// Packets that its steering has left to Linux for that.
    pub left_to_linux: u64,
}
