//! Neighbours asked for on behalf of the slow path, kept fresh on behalf of the fast path, and given up on.

use super::control::Control;
use bm_netlink::Change;
use bm_netlink::neighbour::state;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

impl Control {
    /// Passes on what the slow path asks for. A scan of a subnet asks for very many: of neighbours that
    /// nobody knew, the kernel is asked for a few, and the slow path asks again for those it waits for.
    pub(super) fn ask_for_neighbours(&mut self) {
        let Some(asked) = &self.slow_path else { return };
        let asked: BTreeSet<_> = asked.wanted.try_iter().collect();
        let now = Instant::now();
        let mut any = false;
        for (ifindex, address) in asked {
            if self.compiler.is_known(ifindex, address) || self.budget.take(now) {
                self.use_neighbour(ifindex, address);
                any = true;
            }
        }
        if any {
            self.send_batch();
        }
    }

    /// Has the kernel resolve or confirm neighbours that routes lead through, or that packets went to
    /// since the last time: it sees none of those packets, and would forget them.
    pub(super) fn keep_fresh(&mut self) {
        let in_use = self.compiler.take_in_use();
        let mirror = self.watch.mirror();
        let wanting = |&(ifindex, address): &(u32, IpAddr)| {
            mirror.neighbour(ifindex, address).is_none_or(|neighbour| neighbour.needs_use())
                && mirror.link(ifindex).is_some_and(bm_netlink::Link::running)
        };
        let wanting: Vec<_> = in_use.into_iter().filter(wanting).collect();
        for &(ifindex, address) in &wanting {
            self.use_neighbour(ifindex, address);
        }
        if !wanting.is_empty() {
            self.send_batch();
        }
    }

    /// Tells the slow path of neighbours that the kernel has given up on, and wakes it for those that have
    /// answered, whose MACs are in the tables by now: packets wait for them.
    pub(super) fn tell_slow_path(&self, changes: &[Change]) {
        let Some(asked) = &self.slow_path else { return };
        let neighbours = |change: &Change| matches!(change, Change::Everything | Change::Neighbour(..));
        if !changes.iter().any(neighbours) {
            return;
        }
        for change in changes {
            let Change::Neighbour(ifindex, address) = *change else { continue };
            let failed = |neighbour: &bm_netlink::Neighbour| neighbour.state & state::FAILED != 0;
            if self.watch.mirror().neighbour(ifindex, address).is_some_and(failed) {
                // A full queue forgets: the slow path gives up by itself after a while.
                let _full = asked.failed.try_send((ifindex, address));
            }
        }
        asked.wake();
    }

    fn use_neighbour(&mut self, ifindex: u32, address: IpAddr) {
        if let Err(error) = self.batch.use_neighbour(ifindex, &address) {
            tracing::warn!(%error, ifindex, %address, "a neighbour could not be asked for");
        }
    }

    fn send_batch(&mut self) {
        match self.batch.finish() {
            Ok(outcome) => {
                for refusal in outcome.first {
                    tracing::debug!(error = %refusal.error, "the kernel refused to use a neighbour");
                }
            }
            Err(error) => tracing::warn!(%error, "neighbours could not be asked for"),
        }
    }
}
