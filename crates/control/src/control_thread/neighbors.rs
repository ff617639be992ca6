//! Neighbors: requested for the slow path, kept reachable for the fast path, and reported when they fail.

use super::control::Control;
use bm_forward::Resolution;
use bm_netlink::Change;
use bm_netlink::neighbor::state;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

impl Control {
    /// Passes requests of the slow path on to the kernel, and those of the kernel path, whose packets Linux may drop
    /// before it asks. A scan of a subnet causes very many: requests for unknown neighbors are limited, and repeated
    /// while packets come.
    pub(super) fn ask_for_neighbors(&mut self) {
        let mut asked = self.unresolved_in_kernel();
        asked.extend(self.slow_path.iter().flat_map(|asked| asked.wanted.try_iter()));
        let now = Instant::now();
        asked
            .retain(|(ifindex, address)| self.compiler.is_known(*ifindex, *address) || self.budget.take(now));
        let asked: Vec<_> = asked.into_iter().collect();
        self.use_neighbors(&asked);
    }

    /// The neighbors that packets of the kernel path wait for.
    fn unresolved_in_kernel(&mut self) -> BTreeSet<(u32, IpAddr)> {
        let reports = self.unresolved.as_mut().map_or_else(Vec::new, |all| all.take(Instant::now()));
        let neighbors =
            reports.into_iter().filter_map(|report| self.compiler.unresolved(report.hop, report.destination));
        neighbors.collect()
    }

    /// Makes the kernel resolve or confirm neighbors that are next hops of routes, or that packets were sent to since
    /// the last call: the kernel does not see these packets and would let the neighbors expire.
    ///
    /// A neighbor with a MAC must have been stale with it for a whole interval. A request restarts the time (`locktime`) for
    /// which the kernel ignores another MAC, and whoever has just changed it may soon change it again.
    pub(super) fn keep_fresh(&mut self) {
        let in_use = self.compiler.take_in_use();
        let mirror = self.watch.mirror();
        let (mut wanting, mut stale) = (Vec::new(), BTreeMap::new());
        for at @ (ifindex, address) in in_use {
            if !mirror.link(ifindex).is_some_and(bm_netlink::Link::running) {
                continue;
            }
            match (mirror.neighbor(ifindex, address), address) {
                (Some(neighbor), _) if !neighbor.needs_use() => {}
                // The kernel would keep it as one with the broadcast MAC, and there may be no packet for it.
                (None, IpAddr::V4(address)) if mirror.is_broadcast(ifindex, address) => {}
                (Some(neighbor), _) if neighbor.state & state::STALE != 0 => {
                    stale.insert(at, neighbor.mac);
                    wanting.extend((self.stale.get(&at) == Some(&neighbor.mac)).then_some(at));
                }
                _ => wanting.push(at),
            }
        }
        self.stale = stale;
        self.use_neighbors(&wanting);
    }

    /// Reports failed neighbors to the slow path, and wakes it for those that have answered, whose MACs are now in the
    /// tables: packets wait for them.
    pub(super) fn notify_slow_path(&self, changes: &[Change]) {
        let Some(asked) = &self.slow_path else { return };
        if !changes.iter().any(|change| matches!(change, Change::Everything | Change::Neighbor(..))) {
            return;
        }
        for change in changes {
            let Change::Neighbor(ifindex, address) = *change else { continue };
            let neighbor = self.watch.mirror().neighbor(ifindex, address);
            if neighbor.is_some_and(|neighbor| neighbor.state & state::FAILED != 0) {
                // Lost if the queue is full; the slow path gives up by itself after a while.
                let _full = asked.resolutions.try_send((ifindex, address, Resolution::Failed));
            }
        }
        asked.wake();
    }

    fn use_neighbors(&mut self, asked: &[(u32, IpAddr)]) {
        if asked.is_empty() {
            return;
        }
        let mut requested = Vec::new();
        for &(ifindex, address) in asked {
            let put = match self.watch.mirror().neighbor(ifindex, address) {
                // A packet may have waited since before it was added. The request would make the kernel forget its MAC.
                Some(neighbor) if neighbor.is_permanent() => continue,
                Some(_) => self.batch.use_neighbor(ifindex, &address),
                None => self.batch.resolve_neighbor(ifindex, &address),
            };
            match put {
                Ok(()) => requested.push((ifindex, address)),
                Err(error) => tracing::warn!(%error, ifindex, %address, "cannot request a neighbor"),
            }
        }
        match self.batch.finish() {
            Ok(outcome) => {
                if outcome.refused == 0 {
                    self.note_resolving(asked);
                }
                for refusal in outcome.first {
                    tracing::debug!(error = %refusal.error, "the kernel rejected a neighbor request");
                    if refusal.error.errno() == Some(Errno::EXIST.raw_os_error())
                        && let Some(&(ifindex, address)) = requested.get(refusal.index)
                    {
                        self.leave_unannounced(ifindex, address);
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "cannot request neighbors"),
        }
    }

    /// The kernel has a neighbor that the mirror does not know: it was just announced, or never will be.
    fn leave_unannounced(&self, ifindex: u32, address: IpAddr) {
        match bm_netlink::list::is_unannounced(ifindex, &address) {
            Ok(true) => {
                let Some(asked) = &self.slow_path else { return };
                // Lost if the queue is full; the slow path asks again.
                let _full = asked.resolutions.try_send((ifindex, address, Resolution::LeftToLinux));
                asked.wake();
            }
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, ifindex, %address, "cannot find a neighbor"),
        }
    }

    /// The kernel announces whether a neighbor answered, but not that it has begun to ask. From then on it skips the
    /// neighbor in groups of next-hop objects, so the mirror must know about that of gateways.
    fn note_resolving(&mut self, asked: &[(u32, IpAddr)]) {
        for &(ifindex, address) in asked {
            if self.compiler.is_known(ifindex, address) {
                self.watch.note_resolving(ifindex, address);
            }
        }
    }
}
