//! Flows for replies.

use std::time::Instant;

use bm_api::request::FLOWS_MAX;
use bm_api::{Error, Flow, FlowQuery, FlowTuple, Flows, FlowsState};
use bm_flows::{Action, FlowIndex, FlowRecord, Key};

use super::learner::Learner;
use super::linux::{Connections, GracePeriods};
use super::select::Selection;

/// Flows between two heartbeats.
const BETWEEN_BEATS: usize = 4096;

impl<C: Connections, G: GracePeriods> Learner<C, G> {
    /// The state of the table.
    pub fn state(&self) -> FlowsState {
        let families = ["ipv4", "ipv6"].into_iter().zip(self.families()).filter(|(_, by_flow)| *by_flow);
        FlowsState {
            families: families.map(|(family, _)| family.into()).collect(),
            why_not: self.why_not().map(Into::into),
            flows: self.table.len() as u64,
            max: self.table.max() as u64,
            learned: self.counts.learned,
            ended: self.counts.ended(),
            not_learned: self.counts.not_learned(),
            full: self.counts.full,
        }
    }

    /// The flows that a query asks for.
    ///
    /// # Errors
    /// If the query is invalid.
    pub fn flows(&self, query: &FlowQuery, now: Instant) -> Result<Flows, Error> {
        let selection = Selection::parse(query.filter.as_deref().unwrap_or_default())?;
        let limit = query.limit.unwrap_or(FLOWS_MAX).min(FLOWS_MAX);
        let order = Order::parse(query.sort.as_deref())?;
        let (mut matching, mut flows) = (0, Vec::new());
        for (at, (index, shown)) in self.table.iter().enumerate() {
            if at % BETWEEN_BEATS == 0 {
                bm_sys::heartbeat::beat();
            }
            let flow = self.shown(index, &shown, now);
            if !selection.matches(&flow) {
                continue;
            }
            matching += 1;
            flows.push(flow);
            // No more than are sent, and as many again.
            if flows.len() > 2 * limit {
                order.keep(&mut flows, limit);
            }
        }
        order.keep(&mut flows, limit);
        Ok(Flows { flows, matching, state: self.state() })
    }

    fn shown(&self, index: FlowIndex, shown: &FlowRecord, now: Instant) -> Flow {
        let FlowRecord { key, action, packets, bytes, ended, .. } = *shown;
        let known = self.known.flow(index);
        let since = |at: Option<Instant>| at.map_or(0, |at| now.saturating_duration_since(at).as_secs());
        let (arrives, leaves) = (arrives(&key), leaves(&action));
        Flow {
            protocol: match key.protocol {
                6 => "tcp".into(),
                17 => "udp".into(),
                other => other.to_string(),
            },
            input: self.ruleset.name(key.interface),
            output: self.ruleset.name(action.out),
            arrives,
            leaves: (leaves != arrives).then_some(leaves),
            packets,
            bytes,
            age_s: since(known.map(|flow| flow.learned)),
            // What has come since it was last looked at is less than a second old.
            idle_s: since(known.filter(|flow| flow.packets == packets).map(|flow| flow.used)),
            ended: ended.is_some(),
        }
    }
}

fn arrives(key: &Key) -> FlowTuple {
    let Key { source, destination, source_port, destination_port, .. } = *key;
    FlowTuple { source, source_port, destination, destination_port }
}

fn leaves(action: &Action) -> FlowTuple {
    let Action { source, destination, source_port, destination_port, .. } = *action;
    FlowTuple { source, source_port, destination, destination_port }
}

/// The order of flows in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Table,
    Packets,
    Bytes,
    Idle,
}

impl Order {
    fn parse(word: Option<&str>) -> Result<Self, Error> {
        match word {
            None => Ok(Self::Table),
            Some("packets") => Ok(Self::Packets),
            Some("bytes") => Ok(Self::Bytes),
            Some("idle") => Ok(Self::Idle),
            Some(other) => {
                let error = Error::new(format_args!("flows cannot be sorted by {other:?}"));
                Err(error.hint("use packets, bytes or idle"))
            }
        }
    }

    /// Keeps the first so many flows.
    fn keep(self, flows: &mut Vec<Flow>, limit: usize) {
        match self {
            Self::Table => {}
            Self::Packets => flows.sort_by_key(|flow| std::cmp::Reverse(flow.packets)),
            Self::Bytes => flows.sort_by_key(|flow| std::cmp::Reverse(flow.bytes)),
            Self::Idle => flows.sort_by_key(|flow| flow.idle_s),
        }
        flows.truncate(limit);
    }
}
