//! Flows as the control thread uses them: whether there is a table, and what the thread is told that writes it.

use bm_api::{ClearedFlows, Error, FlowQuery, Flows, FlowsState};
use bm_fastpath::why_no_flows;
use bm_firewall::{Match, Traffic};
use bm_netlink::Change;

use super::Handle;
use super::control::Control;
use super::kernel::SharedKernel;
use super::leases::{Leases, Reason};
use crate::config::{Config, FlowsMode};
use crate::flows::{FlowThread, Orders, OwnInterface, Ruleset};

/// Whether flows are in use.
#[derive(Clone, Default)]
pub(super) struct FlowUse {
    /// Orders to the thread that learns them.
    orders: Option<Orders>,
    /// Why there is none.
    why_not: Option<String>,
}

impl FlowUse {
    /// Starts the thread that learns flows, if there can be any on the kernel path.
    pub fn start(
        config: &Config,
        kernel: Option<&SharedKernel>,
        leases: &Leases,
    ) -> (Self, Option<FlowThread>) {
        match start(config, kernel, leases) {
            Ok(thread) => (Self { orders: Some(thread.orders()), why_not: None }, Some(thread)),
            Err(why_not) => (Self { orders: None, why_not: Some(why_not) }, None),
        }
    }

    /// Whether there is a table of flows.
    pub fn has_table(&self) -> bool {
        self.orders.is_some()
    }

    pub fn state(&self) -> FlowsState {
        let none = || FlowsState { why_not: self.why_not.clone(), ..FlowsState::default() };
        self.orders.as_ref().map_or_else(none, Orders::state)
    }
}

/// The thread, or why there is none.
fn start(config: &Config, kernel: Option<&SharedKernel>, leases: &Leases) -> Result<FlowThread, String> {
    if config.flows.mode == FlowsMode::Off {
        return Err("[flows] mode is \"off\"".into());
    }
    let kernel = kernel.ok_or("no port uses the kernel path")?;
    if let Some(why) = why_no_flows() {
        return Err(why);
    }
    let area = kernel.lock().take_flows(config.flows.max()).map_err(|error| error.to_string())?;
    let leases = leases.clone();
    let thread = FlowThread::start(area, move || {
        if leases.has_reason(Reason::Flows) && leases.remove_reason(Reason::Flows) {
            tracing::warn!("following connections again: forwarding packets");
        }
    });
    thread.map_err(|error| {
        tracing::warn!(%error, "no flows are learned");
        error.to_string()
    })
}

impl Control {
    /// Tells the thread that learns flows what the programs have now, and the rules that this was made from.
    pub(super) fn tell_flows(&mut self) {
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
    pub(super) fn tell_flows_of(&self, changes: &[Change]) {
        let Some(orders) = self.flows.orders.as_ref().filter(|_| self.facts.looks_up_routes) else { return };
        if changes.iter().any(|change| !matches!(change, Change::Neighbor(..))) {
            orders.routes_changed();
        }
    }
}

impl Handle {
    /// The flows that a query asks for.
    ///
    /// # Errors
    /// If the query is invalid, or the thread that learns flows does not answer.
    pub fn flows(&self, query: FlowQuery) -> Result<Flows, Error> {
        match &self.flows.orders {
            Some(orders) => orders.flows(query),
            None => Ok(Flows { state: self.flows.state(), ..Flows::default() }),
        }
    }

    /// Forgets all flows.
    ///
    /// # Errors
    /// If the thread that learns flows does not answer.
    pub fn clear_flows(&self) -> Result<ClearedFlows, Error> {
        self.flows.orders.as_ref().map_or(Ok(ClearedFlows::default()), Orders::clear)
    }
}
