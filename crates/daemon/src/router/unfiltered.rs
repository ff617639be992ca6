//! Ports that the daemon cannot filter, because their interface cannot be used or has become part of a bridge, for
//! example. Either nftables filters with the same rules ([`super::filter_tables`]), or Linux forwards unfiltered. Both are reported
//! by `status`, `verify` and the metrics, and logged on change.

use bm_control::control_thread::ControlPortState;
use bm_control::nftables;

use super::Forwarder;
use super::nftables_filters::Uncovered;
use crate::lock;
use crate::ports::presence::Presence;
use crate::workers::data_path::PortInfo;

/// One message for each port that should drop packets but does not have its interface.
#[derive(Default)]
pub struct NotOurs {
    /// Ports where Linux forwards packets that the filters should drop.
    pub unfiltered: Vec<String>,
    /// Ports where nftables filters.
    pub by_nftables: Vec<String>,
}

/// Why drop rules do not apply on a port; `None` if they do, or if no packet can arrive.
fn why(port: &PortInfo, control: Option<&ControlPortState>, uncovered: &Uncovered) -> Option<String> {
    match (&port.presence, control) {
        (Presence::Here { ifindex, .. }, _) if uncovered.contains_key(ifindex) => {
            uncovered.get(ifindex).cloned()
        }
        (Presence::Refused { why, .. }, _) => Some(why.clone()),
        (Presence::Here { .. }, Some(of_port))
            if of_port.interfaces.is_empty() && bm_fastpath::is_there(&port.name) =>
        {
            Some("its interface is part of a bridge, a bond or similar".into())
        }
        // No packets arrive on an interface that does not exist.
        (Presence::Missing | Presence::Here { .. }, _) => None,
    }
}

impl Forwarder {
    /// Ports with drop rules that do not have their interface.
    pub fn not_ours(&self, of_control: &[ControlPortState]) -> NotOurs {
        let mut all = NotOurs::default();
        let setup = self.setup();
        if !setup.config.filters_drop() {
            return all;
        }
        let running = lock(&self.running);
        let uncovered = lock(&self.uncovered);
        let ports = running.iter().flat_map(|running| running.ports.iter().enumerate());
        for (index, port) in ports.filter(|(index, _)| nftables::drops(&setup.config, *index)) {
            let Some(why) = why(port, of_control.get(index), &uncovered) else { continue };
            let name = &port.name;
            match self.nftables_note(index, name) {
                Some(does) => all.by_nftables.push(format!("port {name}: {does}, since brickmoon cannot: {why}")),
                None => all.unfiltered.push(format!(
                    "port {name} is not filtered: Linux forwards packets that arrive there without applying [filter]: {why}"
                )),
            }
        }
        all
    }

    /// Logs which ports the daemon does not filter, when that changes.
    pub(super) fn say_unfiltered(&self, of_control: &[ControlPortState]) {
        let NotOurs { unfiltered, by_nftables } = self.not_ours(of_control);
        let now = [unfiltered.clone(), by_nftables.clone()].concat();
        let before = std::mem::replace(&mut *lock(&self.said_unfiltered), now.clone());
        for line in unfiltered.iter().filter(|line| !before.contains(line)) {
            tracing::error!("{line}");
        }
        for line in by_nftables.iter().filter(|line| !before.contains(line)) {
            tracing::warn!("{line}");
        }
        if !before.is_empty() && now.is_empty() {
            tracing::warn!("[filter] applies on all ports again");
        }
    }
}
