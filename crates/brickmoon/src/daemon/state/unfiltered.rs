//! Ports where `[filter]` drops nothing although it is to: the interface is missing, refused, or none of ours any more
//! since it is part of a bridge, say. Linux forwards what comes in there, so everybody is told: `status`, `verify`, the
//! metrics, and the log when it changes.

use bm_control::driver::OfPort;

use super::{Daemon, lock};
use crate::daemon::presence::Presence;
use crate::daemon::running::PortInfo;

/// Why rules that drop do not hold on a port; none where they do, or where no packet can come in.
fn why(port: &PortInfo, control: Option<&OfPort>) -> Option<String> {
    match (&port.presence, control) {
        (Presence::Refused { why, .. }, _) => Some(why.clone()),
        (Presence::Here { .. }, Some(of_port)) if of_port.interfaces.is_empty() => {
            Some("its interface is part of a bridge, a bond or the like".into())
        }
        // Nothing comes in on an interface that is not there.
        (Presence::Missing | Presence::Here { .. }, _) => None,
    }
}

impl Daemon {
    /// A sentence for each port where rules that drop do not hold.
    pub(super) fn unfiltered(&self, of_control: &[OfPort]) -> Vec<String> {
        if !self.setup().config.filters_drop() {
            return Vec::new();
        }
        let running = lock(&self.running);
        let ports = running.iter().flat_map(|running| running.ports.iter().enumerate());
        let told = |(index, port): (usize, &PortInfo)| {
            let why = why(port, of_control.get(index))?;
            let name = &port.name;
            Some(format!(
                "port {name} is not filtered: Linux forwards what comes in there, and [filter] drops none of it: {why}"
            ))
        };
        ports.filter_map(told).collect()
    }

    /// Says in the log which ports are not filtered, when they are others than before.
    pub(super) fn say_unfiltered(&self) {
        let now = self.unfiltered(&self.driver.handle().interfaces().unwrap_or_default());
        let before = std::mem::replace(&mut *lock(&self.said_unfiltered), now.clone());
        now.iter().filter(|line| !before.contains(line)).for_each(|line| tracing::error!("{line}"));
        if !before.is_empty() && now.is_empty() {
            tracing::warn!("[filter] holds on all ports again");
        }
    }
}
