//! What the thread that learns flows is told.

use bm_firewall::{Match, Traffic};
use bm_netlink::Change;

use super::Control;
use crate::flows::{OwnInterface, Ruleset};

impl Control {
    /// Tells the thread that learns flows what the programs have now, and the rules that this was made from.
    pub(in crate::control_thread) fn tell_flows(&mut self) {
        let Some(orders) = &self.flows.orders else { return };
        let unknown = self.compiler.linux_only();
        let by_flow = self.compiler.by_flow();
        let interfaces = self.compiler.interfaces().list.iter();
        let now = Ruleset {
            generation: self.facts.generation,
            families: [0, 1].map(|family| by_flow[family] && !unknown[family]),
            interfaces: interfaces
                .map(|own| OwnInterface { ifindex: own.ifindex, name: own.name.clone() })
                .collect(),
            each_packet: self.each_packet(),
            looks_up_routes: self.facts.looks_up_routes,
            has_timeouts: self.facts.has_timeouts,
            untracked: self.facts.untracked,
        };
        if self.told_flows.as_ref() != Some(&now) {
            orders.tell(now.clone());
            self.told_flows = Some(now);
        }
    }

    /// Packets about which Linux decides each time.
    fn each_packet(&self) -> Vec<Match> {
        let in_effect = self.linux_only_in_effect();
        let ruled = in_effect.into_iter().filter(|entry| self.compiler.needs_rules(entry));
        let matches = ruled.filter_map(|entry| match entry.traffic {
            Traffic::Matching(of) => Some(of),
            _ => None,
        });
        matches.collect()
    }

    /// Tells the thread that learns flows of changes of routes and addresses, if rules look these up.
    pub(in crate::control_thread) fn tell_flows_of(&self, changes: &[Change]) {
        let Some(orders) = self.flows.orders.as_ref().filter(|_| self.facts.looks_up_routes) else { return };
        if changes.iter().any(|change| !matches!(change, Change::Neighbor(..))) {
            orders.routes_changed();
        }
    }
}
