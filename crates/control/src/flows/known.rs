//! The connections whose flows are in the table.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bm_conntrack::Tuple;
use bm_flows::FlowIndex;

/// How many flows of one connection there can be: with several paths a direction may arrive on several interfaces.
const FLOWS_MAX: usize = 4;

/// What Linux finds a connection by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConnectionKey {
    pub original: Tuple,
    /// Zone of the original direction.
    pub zone: u16,
}

/// A connection with flows, or a flow of packets that are not tracked.
#[derive(Clone, Debug)]
pub(super) struct KnownConnection {
    /// `None` if Linux does not track it.
    pub key: Option<ConnectionKey>,
    /// How long Linux keeps it without packets.
    pub timeout: Duration,
    flows: [Option<FlowIndex>; FLOWS_MAX],
    /// When Linux's timeout was set.
    pub refreshed: Instant,
    /// When its flows were last found to be used.
    pub used: Instant,
    /// Whether they were since the timeout was set.
    pub used_since: bool,
    /// Bytes that its flows had forwarded when Linux was told last not to compare them with windows.
    pub told_bytes: u64,
}

impl KnownConnection {
    /// A connection whose timeout has just been set.
    pub fn new(key: Option<ConnectionKey>, timeout: Duration, now: Instant) -> Self {
        let (refreshed, used, used_since) = (now, now, false);
        Self { key, timeout, flows: [None; FLOWS_MAX], refreshed, used, used_since, told_bytes: 0 }
    }

    /// Numbers of the entries in the table.
    pub fn flows(&self) -> impl Iterator<Item = FlowIndex> + use<> {
        self.flows.into_iter().flatten()
    }
}

/// A flow in the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownFlow {
    /// Place of its connection.
    pub place: usize,
    pub learned: Instant,
    /// Its packets when they were last counted.
    pub packets: u64,
    /// When that number was last found to be another one.
    pub used: Instant,
}

/// All of them.
#[derive(Default)]
pub(super) struct KnownConnections {
    places: Vec<Option<KnownConnection>>,
    free: Vec<usize>,
    by_key: HashMap<ConnectionKey, usize>,
    flows: HashMap<FlowIndex, KnownFlow>,
}

impl KnownConnections {
    /// The place of a tracked connection.
    pub fn find(&self, key: &ConnectionKey) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    /// The connection at a place, if there is one.
    pub fn get_mut(&mut self, place: usize) -> Option<&mut KnownConnection> {
        self.places.get_mut(place)?.as_mut()
    }

    /// Number of places, with and without a connection.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// Number of connections.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// A flow in the table.
    pub(crate) fn flow_mut(&mut self, index: FlowIndex) -> Option<&mut KnownFlow> {
        self.flows.get_mut(&index)
    }

    /// A flow in the table.
    pub fn flow(&self, index: FlowIndex) -> Option<&KnownFlow> {
        self.flows.get(&index)
    }

    /// Adds a connection; returns its place.
    pub fn add(&mut self, connection: KnownConnection) -> usize {
        let key = connection.key;
        let place = self.free.pop().unwrap_or(self.places.len());
        match self.places.get_mut(place) {
            Some(free) => *free = Some(connection),
            None => self.places.push(Some(connection)),
        }
        key.map(|key| self.by_key.insert(key, place));
        place
    }

    /// Adds a flow to a connection. If it has as many as it may, returns one that must be removed from the table.
    pub fn add_flow(&mut self, place: usize, index: FlowIndex, now: Instant) -> Option<FlowIndex> {
        self.flows.insert(index, KnownFlow { place, learned: now, packets: 0, used: now });
        let flows = &mut self.places.get_mut(place)?.as_mut()?.flows;
        let at = flows.iter().position(Option::is_none);
        let surplus = match at {
            Some(at) => flows[at].replace(index),
            None => flows[0].replace(index),
        };
        if let Some(surplus) = surplus {
            self.flows.remove(&surplus);
        }
        surplus
    }

    /// Forgets a flow that is no longer in the table, and its connection with its last flow; returns whether it was known.
    pub(crate) fn drop_flow(&mut self, index: FlowIndex) -> bool {
        let Some(KnownFlow { place, .. }) = self.flows.remove(&index) else { return false };
        let Some(connection) = self.get_mut(place) else { return true };
        connection.flows.iter_mut().filter(|flow| **flow == Some(index)).for_each(|flow| *flow = None);
        if connection.flows().next().is_none() {
            self.remove(place);
        }
        true
    }

    /// Forgets a connection; returns its flows, which must be removed from the table.
    pub fn remove(&mut self, place: usize) -> Vec<FlowIndex> {
        let Some(connection) = self.places.get_mut(place).and_then(Option::take) else { return Vec::new() };
        self.free.push(place);
        connection.key.map(|key| self.by_key.remove(&key));
        let flows: Vec<FlowIndex> = connection.flows().collect();
        for index in &flows {
            self.flows.remove(index);
        }
        flows
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
