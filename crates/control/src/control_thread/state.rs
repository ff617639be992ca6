//! State of the control thread for replies.

use std::collections::BTreeMap;

use bm_api::{Interface, Status};
use bm_fastpath::{AttachType, Counters};

use super::Handle;

/// State of the control thread for metrics.
#[derive(Clone, Debug, Default)]
pub struct ControlState {
    /// Its part of the status.
    pub status: Status,
    /// State of each port.
    pub ports: Vec<ControlPortState>,
    /// Counters of the kernel path for each port.
    pub kernel: Vec<Counters>,
    /// Filter rules with their matches.
    pub filters: bm_api::Filters,
}

/// State of a port in the control thread.
#[derive(Clone, Debug, Default)]
pub struct ControlPortState {
    /// Whether it is up and has a carrier.
    pub up: bool,
    /// The interfaces of the port; empty if it does not have its interface.
    pub interfaces: Vec<Interface>,
    /// Packets that arrive or leave there and that only Linux may handle.
    pub linux_only: Vec<bm_api::LinuxOnly>,
    /// Number of these packets that its steering program has left to Linux.
    pub left_to_linux: u64,
    /// What the kernel path is attached to there, and why if that was chosen automatically; `None` if it is not.
    pub attached: Option<(AttachType, Option<String>)>,
}

impl Handle {
    /// Interfaces of the kernel path on which no filter applies, by their index in Linux, and why; `None` if that cannot
    /// be told now, since the program is being changed.
    pub fn uncovered(&self) -> Option<BTreeMap<u32, String>> {
        let Some(kernel) = &self.kernel else { return Some(BTreeMap::new()) };
        kernel.try_lock().map(|kernel| kernel.uncovered())
    }
}
