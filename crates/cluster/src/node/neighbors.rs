//! Hosts on external ports: which of them are neighbors that this node announces, and the questions that decide it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Cluster, UPDATE_INTERVAL_NS};
use crate::confirm::Others;
use crate::fabric_end::FabricEnd;
use crate::kernel;
use crate::message::Entry;
use crate::on_link::OwnRoutes;
use crate::solicit::Solicitations;

/// How old this node's routes may be.
const ROUTES_NS: u64 = 1_000_000_000;
/// How soon they are read again because of an address that is not on-link by them.
const ROUTES_AGAIN_NS: u64 = 100_000_000;
/// How long after the start to wait for the announcements of other nodes.
const READY_NS: u64 = 2_000_000_000;

impl Cluster {
    /// Brings the neighbors that are announced up to date.
    pub(super) fn update_neighbors(&mut self, now_ns: u64) -> Result<(), bm_netlink::Error> {
        if now_ns >= self.routes_ns + ROUTES_NS {
            self.read_routes(now_ns)?;
        }
        let (mut candidates, mut has_others) = self.local.candidates(&self.ports, &self.own_routes);
        if has_others && now_ns >= self.routes_ns + ROUTES_AGAIN_NS {
            self.read_routes(now_ns)?;
            (candidates, has_others) = self.local.candidates(&self.ports, &self.own_routes);
        }
        self.recheck_ns = has_others.then_some(now_ns + ROUTES_NS);
        let others = others_of(&self.links, now_ns);
        let is_ready =
            now_ns >= self.started_ns + READY_NS || !self.links.iter().any(FabricEnd::may_announce);
        self.confirmations.update(&candidates, &self.ports, &others, is_ready, now_ns);
        self.neighbors = self.confirmations.held();
        let over_limit = self.confirmations.over_limit;
        if over_limit > 0 && !self.is_over_limit {
            tracing::warn!(
                over_limit,
                "neighbors of external ports are not announced to other nodes: there are more than `neighbors_max` on a port, or more addresses than `addresses_per_mac`"
            );
        }
        self.is_over_limit = over_limit > 0;
        self.open_solicitations();
        Ok(())
    }

    fn read_routes(&mut self, now_ns: u64) -> Result<(), bm_netlink::Error> {
        self.own_routes = OwnRoutes::read()?;
        self.routes_ns = now_ns;
        Ok(())
    }

    /// Opens sockets on external ports that have appeared, and closes those of others.
    fn open_solicitations(&mut self) {
        let ports: BTreeMap<_, _> = self.ports.iter().map(|port| (port.ifindex, port.mac)).collect();
        self.solicitations.retain(|ifindex, solicitations| ports.get(ifindex) == Some(&solicitations.mac));
        for (ifindex, mac) in ports {
            if self.solicitations.contains_key(&ifindex) {
                continue;
            }
            match Solicitations::open(ifindex, mac) {
                Ok(solicitations) => drop(self.solicitations.insert(ifindex, solicitations)),
                Err(error) => {
                    tracing::warn!(%error, ifindex, "hosts on an external port cannot be asked: its neighbors are not announced");
                }
            }
        }
    }

    /// Reads replies of hosts, and asks those that are due.
    pub(super) fn ask_hosts(&mut self, now_ns: u64) {
        for (ifindex, solicitations) in &self.solicitations {
            for (address, mac) in solicitations.replies() {
                self.changed |= self.confirmations.replied(*ifindex, address, mac, now_ns);
            }
        }
        let asking = self.confirmations.ask(now_ns);
        self.changed |= asking.has_ended;
        for (ifindex, address) in asking.questions {
            if let Some(solicitations) = self.solicitations.get(&ifindex) {
                solicitations.ask(address, self.local.source(ifindex, address));
            }
        }
        let mut silent = asking.silent;
        silent.retain(|(ifindex, _)| self.solicitations.contains_key(ifindex));
        if let Err(error) = kernel::forget(&silent) {
            tracing::warn!(%error, "neighbors that do not answer could not be removed from Linux");
        }
    }

    /// When there is something to do about hosts, although nothing happens.
    pub(super) fn hosts_due_ns(&self) -> Option<u64> {
        let update = [self.recheck_ns, self.confirmations.again_ns()].into_iter().flatten().min();
        // No sooner than an update may follow the last one.
        let update = update.map(|due_ns| due_ns.max(self.updated_ns + UPDATE_INTERVAL_NS));
        update.into_iter().chain(self.confirmations.due_ns()).min()
    }

    /// Whether an update is due although nothing has happened.
    pub(super) fn must_recheck(&self, now_ns: u64) -> bool {
        let times = [self.recheck_ns, self.confirmations.again_ns()];
        times.into_iter().flatten().any(|due_ns| now_ns >= due_ns)
    }

    /// What other nodes have to know about neighbors besides those that are announced.
    pub(super) fn claims(&self) -> impl Iterator<Item = Entry> {
        self.confirmations.claims().map(Entry::Claim).chain(self.confirmations.bound().map(Entry::Bound))
    }

    /// Whether packets for a prefix are this node's own to deliver, whatever others announce: an address or a neighbor of
    /// this node, a prefix of its own routes, or an address that is on-link at an interface that is no external port.
    pub(super) fn is_ours(&self, prefix: (IpAddr, u8)) -> bool {
        if self.own_routes.has(prefix) {
            return true;
        }
        let (address, length) = prefix;
        let is_host = length == if address.is_ipv4() { 32 } else { 128 };
        let way = self.own_routes.interface(address);
        let is_elsewhere = way.is_some_and(|ifindex| self.ports.iter().all(|port| port.ifindex != ifindex));
        is_host && (self.local.has(address, &self.neighbors) || is_elsewhere)
    }
}

/// What other nodes announce whose daemons can be asked, or could be until lately.
fn others_of(links: &[FabricEnd], now_ns: u64) -> Others {
    let mut others = Others::default();
    for link in links {
        let node = link.session.peer();
        for entry in link.session.entries() {
            match *entry {
                Entry::Own(address) | Entry::Bound(address) => {
                    others.fixed.insert(address);
                }
                Entry::Neighbor(_, address, _) if link.session.defends(now_ns) => {
                    others.held.insert(address, node);
                }
                Entry::Claim(address) => {
                    others.claimed.insert(address);
                }
                _ => {}
            }
        }
    }
    others
}
