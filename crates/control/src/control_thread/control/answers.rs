//! Replies of the control thread on its state and tables.

use std::collections::BTreeMap;

use bm_api::request::RouteQuery;
use bm_api::{Error, Mirror, Neighbors, NextHops, Routes, Status};

use super::{Control, ControlPortState};
use crate::control_thread::ControlState;

impl Control {
    /// Everything that metrics need, at one time.
    pub fn state(&self) -> ControlState {
        ControlState {
            status: self.status(),
            ports: self.interfaces(),
            kernel: self.kernel_counters(),
            filters: self.filters(),
        }
    }

    /// The part of the status that control knows.
    pub fn status(&self) -> Status {
        let statistics = self.watch.statistics();
        let counts = self.compiler.counts(self.watch.mirror());
        let mirror = self.watch.mirror();
        let interfaces = self.compiler.interfaces();
        let neighbors = mirror.neighbors().filter(|neighbor| interfaces.index_of(neighbor.ifindex).is_some());
        Status {
            ready: self.active,
            routes_ipv4: counts.ipv4,
            routes_ipv6: counts.ipv6,
            routes_refused: counts.refused,
            next_hops: counts.next_hops,
            next_hops_max: counts.next_hops_max,
            tables_bytes: counts.bytes as u64,
            lookup: self.compiler.lookup(),
            neighbors: neighbors.count(),
            mirror: Mirror {
                synced: self.watch.in_step() && self.retry_at.is_none(),
                messages: statistics.events,
                changes: self.done.changes,
                overruns: statistics.overruns,
                resyncs: statistics.resyncs,
                repaired: statistics.differences,
                malformed: statistics.malformed,
                unread: statistics.unread,
                first_sync_ms: self.done.first_sync.as_millis() as u64,
                last_batch_us: self.done.last_batch.as_micros() as u64,
                last_batch_changes: self.done.last_batch_changes,
            },
            firewall: self.linux_only.shown(mirror),
            flows: self.flows.state(),
            notes: self.compiler.notes(mirror),
            ..Status::default()
        }
    }

    /// The names of the IPsec interfaces, by their numbers.
    pub fn ipsec_interfaces(&self) -> BTreeMap<u32, String> {
        self.compiler.ipsec_interfaces().map(|own| (own.if_id, own.name.clone())).collect()
    }

    /// State of each port.
    pub fn interfaces(&self) -> Vec<ControlPortState> {
        let mirror = self.watch.mirror();
        let states = self.ports.iter().enumerate().map(|(index, port)| {
            let up = port.ifindex.and_then(|ifindex| mirror.link(ifindex));
            let up = up.is_some_and(bm_netlink::Link::running);
            let links =
                self.compiler.interfaces().of_port(index as u16).map(|(_, own)| own.ifindex).collect();
            ControlPortState {
                up,
                interfaces: self.compiler.shown_interfaces(mirror, index as u16),
                linux_only: self.linux_only.of_links(mirror, links),
                left_to_linux: port.steering.linux_only(),
                attached: self.attached(port),
            }
        });
        states.collect()
    }

    /// Routes, as the fast path uses them.
    ///
    /// # Errors
    /// If the query is invalid.
    pub fn routes(&self, query: &RouteQuery) -> Result<Routes, Error> {
        let mirror = self.watch.mirror();
        let mut routes = self.compiler.shown_routes(mirror, query)?;
        routes.linux_only = self.linux_only.to_address(query, &routes, mirror);
        Ok(routes)
    }

    /// The kernel's neighbors on our interfaces.
    pub fn neighbors(&self) -> Neighbors {
        self.compiler.shown_neighbors(self.watch.mirror())
    }

    /// Next hops and groups in use.
    pub fn next_hops(&self) -> NextHops {
        self.compiler.shown_next_hops(self.watch.mirror())
    }
}
