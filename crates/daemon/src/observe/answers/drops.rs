//! Collects what was dropped, what was left to Linux, and what Linux then dropped, for `show drops` and metrics.

use std::collections::BTreeMap;

use bm_api::{Drop, DropAt, Drops, LinuxDrop, LinuxDropAt};
use bm_fastpath::{DroppedByLinux, LEFT_TO_LINUX, LinuxCause};
use bm_serve::app_report;
use bm_serve::report::{self, Counters};
use bm_stats::Scope;

use super::Daemon;
use crate::lock;
use crate::workers::hooks;

impl Daemon {
    /// All drops, by whom and why.
    pub(super) fn drops(&self) -> Drops {
        let kernel = self.control().ask(|control| control.kernel_counters()).unwrap_or_default();
        let counters = self.counters_with(&kernel);
        let mut drops = report::drops(&counters);
        let hooks = self.forwarder.context.hooks.get().map(|hooks| hooks.report()).unwrap_or_default();
        hooks::name_drops(&mut drops, &hooks, &counters);
        self.forwarder.switches.add_drops(&mut drops);
        self.forwarder.cluster.add_drops(&mut drops);
        app_report::add_drops(&self.reports(), &mut drops);
        drops.left_to_linux = left_to_linux(&self.of_kernel_ports(&kernel));
        match self.forwarder.linux_drops.read() {
            Ok(counted) => drops.by_linux = by_linux(counted),
            Err(why) => drops.by_linux_unknown = Some(why),
        }
        drops
    }

    /// Adds what was left to Linux, and what Linux dropped, to the counters, for metrics.
    pub(super) fn add_linux(&self, counters: &mut Counters, kernel: &[bm_fastpath::Counters]) {
        for (port, kernel) in self.of_kernel_ports(kernel) {
            let scope = Scope::Linux { port: &port };
            let left = kernel.left_to_linux().filter(|(_, frames)| *frames > 0);
            counters.extend(left.map(|(cause, frames)| (format!("{scope}/left/{cause}"), frames)));
        }
        for (port, dropped) in self.forwarder.linux_drops.read().unwrap_or_default() {
            let scope = Scope::Linux { port: &port };
            *counters.entry(format!("{scope}/dropped/{}", dropped.cause.name())).or_default() +=
                dropped.frames;
        }
    }

    /// The counters of ports whose packets the kernel path handles, by name.
    fn of_kernel_ports(&self, kernel: &[bm_fastpath::Counters]) -> Vec<(String, bm_fastpath::Counters)> {
        let running = lock(&self.forwarder.running);
        let ports = running.iter().flat_map(|running| &running.ports).zip(kernel);
        ports
            .filter(|(port, _)| port.path.in_kernel)
            .map(|(port, kernel)| (port.name.clone(), *kernel))
            .collect()
    }
}

/// What the kernel path left to Linux, most frames first.
fn left_to_linux(ports: &[(String, bm_fastpath::Counters)]) -> Vec<Drop> {
    let mut left = Vec::new();
    for (cause, meaning) in LEFT_TO_LINUX {
        let mut at = Vec::new();
        for (port, kernel) in ports {
            let frames = kernel.left_to_linux().filter(|(name, _)| *name == cause).map(|(_, frames)| frames);
            at.push(DropAt { app: port.clone(), frames: frames.sum() });
        }
        at.retain(|at| at.frames > 0);
        at.sort_by_key(|at| std::cmp::Reverse(at.frames));
        let frames: u64 = at.iter().map(|at| at.frames).sum();
        if frames > 0 {
            left.push(Drop { reason: cause.into(), meaning: meaning.into(), frames, at });
        }
    }
    left.sort_by_key(|left| std::cmp::Reverse(left.frames));
    left
}

/// What Linux dropped, most frames first.
fn by_linux(counted: Vec<(String, DroppedByLinux)>) -> Vec<LinuxDrop> {
    let mut causes: BTreeMap<LinuxCause, Vec<LinuxDropAt>> = BTreeMap::new();
    for (port, DroppedByLinux { cause, reason: kernel_reason, frames, .. }) in counted {
        let at = causes.entry(cause).or_default();
        // A port has several interfaces: its own, VLANs on it, and earlier ones of its name.
        match at.iter_mut().find(|at| at.port == port && at.kernel_reason == kernel_reason) {
            Some(known) => known.frames += frames,
            None => at.push(LinuxDropAt { port, kernel_reason, frames }),
        }
    }
    let mut drops = Vec::new();
    for (cause, mut at) in causes {
        at.sort_by_key(|at| std::cmp::Reverse(at.frames));
        let frames = at.iter().map(|at| at.frames).sum();
        drops.push(LinuxDrop { reason: cause.name().into(), meaning: cause.meaning().into(), frames, at });
    }
    drops.sort_by_key(|drop| std::cmp::Reverse(drop.frames));
    drops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_of_a_port_are_added_up() {
        let dropped = |ifindex, reason: &str, cause, frames| {
            ("r0".to_string(), DroppedByLinux { ifindex, cause, reason: reason.into(), frames })
        };
        let all = by_linux(vec![
            dropped(2, "IP_INHDR", LinuxCause::Ttl, 3),
            dropped(2, "NETFILTER_DROP", LinuxCause::Firewall, 4),
            dropped(9, "NETFILTER_DROP", LinuxCause::Firewall, 5),
        ]);
        let shown: Vec<_> =
            all.iter().map(|drop| (drop.reason.as_str(), drop.frames, drop.at.len())).collect();
        assert_eq!(shown, [("firewall", 9, 1), ("ttl_exceeded", 3, 1)]);
    }

    #[test]
    fn causes_without_packets_are_not_shown() {
        let counters = bm_fastpath::Counters::only("linux_mtu", 2);
        let ports = [("r0".to_string(), counters), ("r1".to_string(), bm_fastpath::Counters::default())];
        let left = left_to_linux(&ports);
        assert_eq!(left.len(), 1);
        assert_eq!((left[0].reason.as_str(), left[0].frames, left[0].at.len()), ("mtu", 2, 1));
    }
}
