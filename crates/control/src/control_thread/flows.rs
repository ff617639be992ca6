//! Flows as the control thread uses them: whether there is a table, and what the thread is told that writes it.

use bm_api::{ClearedFlows, Error, FlowQuery, Flows, FlowsState};
use bm_fastpath::why_no_flows;

use super::Handle;
use super::kernel::SharedKernel;
use super::leases::{Leases, Reason};
use crate::config::{Config, FlowsMode};
use crate::flows::{FlowThread, Orders};

/// Whether flows are in use.
#[derive(Clone, Default)]
pub(super) struct FlowUse {
    /// Orders to the thread that learns them.
    pub orders: Option<Orders>,
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
    pub(crate) fn has_table(&self) -> bool {
        self.orders.is_some()
    }

    pub fn state(&self) -> FlowsState {
        match &self.orders {
            Some(orders) => orders.state(),
            None => FlowsState { why_not: self.why_not.clone(), ..FlowsState::default() },
        }
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
