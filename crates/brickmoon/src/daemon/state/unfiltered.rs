//! Ports whose interface is missing, refused, or none of ours any more since it is part of a bridge, say: the filters of
//! the daemon do not hold there. Either nftables filters by the same rules ([`super::held`]), or Linux forwards what
//! comes in. Everybody is told of both: `status`, `verify`, the metrics, and the log when it changes.

use bm_control::driver::OfPort;
use bm_control::nftables;

use super::{Daemon, lock};
use crate::daemon::presence::Presence;
use crate::daemon::running::PortInfo;

/// A sentence for each port that is to drop packets and whose interface is not the daemon's.
#[derive(Default)]
pub(super) struct NotOurs {
    /// Where Linux forwards what filters forbid.
    pub unfiltered: Vec<String>,
    /// Where nftables filters.
    pub held: Vec<String>,
}

/// Why rules that drop do not hold on a port; none where they do, or where no packet can come in.
fn why(port: &PortInfo, control: Option<&OfPort>) -> Option<String> {
    match (&port.presence, control) {
        (Presence::Refused { why, .. }, _) => Some(why.clone()),
        (Presence::Here { .. }, Some(of_port))
            if of_port.interfaces.is_empty() && bm_fastpath::is_there(&port.name) =>
        {
            Some("its interface is part of a bridge, a bond or the like".into())
        }
        // Nothing comes in on an interface that is not there.
        (Presence::Missing | Presence::Here { .. }, _) => None,
    }
}

impl Daemon {
    /// Ports where filters drop, and whose interface is not the daemon's.
    pub(super) fn not_ours(&self, of_control: &[OfPort]) -> NotOurs {
        let mut all = NotOurs::default();
        let setup = self.setup();
        if !setup.config.filters_drop() {
            return all;
        }
        let running = lock(&self.running);
        let ports = running.iter().flat_map(|running| running.ports.iter().enumerate());
        for (index, port) in ports.filter(|(index, _)| nftables::drops(&setup.config, *index)) {
            let Some(why) = why(port, of_control.get(index)) else { continue };
            let name = &port.name;
            match self.held_by_nftables(index, name) {
                Some(does) => all.held.push(format!("port {name}: {does}, since brickmoon cannot: {why}")),
                None => all.unfiltered.push(format!(
                    "port {name} is not filtered: Linux forwards what comes in there, and [filter] drops none of it: {why}"
                )),
            }
        }
        all
    }

    /// Says in the log which ports are not filtered by the daemon, when they are others than before.
    pub(super) fn say_unfiltered(&self, of_control: &[OfPort]) {
        let NotOurs { unfiltered, held } = self.not_ours(of_control);
        let now = [unfiltered.clone(), held.clone()].concat();
        let before = std::mem::replace(&mut *lock(&self.said_unfiltered), now.clone());
        let is_new = |line: &&String| !before.contains(line);
        unfiltered.iter().filter(is_new).for_each(|line| tracing::error!("{line}"));
        held.iter().filter(is_new).for_each(|line| tracing::warn!("{line}"));
        if !before.is_empty() && now.is_empty() {
            tracing::warn!("[filter] holds on all ports again");
        }
    }
}
