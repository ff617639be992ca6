//! Which neighbors Linux must keep: it does not see the packets that we send to them, and would let them expire.

use super::Compiler;
use super::targets::{State, Target};
use bm_fib::NextHop;
use bm_fib::next_hop::Action;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

impl Compiler {
    /// The neighbors, by link, that packets were sent to since the last call, and all gateways of routes, which are
    /// resolved before the first packet arrives.
    pub fn take_in_use(&mut self) -> BTreeSet<(u32, IpAddr)> {
        let hosts = self.uses_by_neighbor_entries();
        let mut in_use = BTreeSet::new();
        let mut marked = Vec::new();
        for (target, entry) in self.targets.iter() {
            let State::Plain(place) = &entry.state else { continue };
            let Some(gateway) = place.gateway else { continue };
            // An IPsec interface has no neighbors.
            if self.interfaces().by_ifindex(place.ifindex).is_some_and(|own| own.if_id != 0) {
                continue;
            }
            if entry.users > hosts.get(&target).copied().unwrap_or(0) {
                in_use.insert((place.ifindex, gateway));
            }
            marked.push((entry.hop, (place.ifindex, gateway)));
        }
        let writer = self.targets.writer();
        self.used = marked.into_iter().filter(|(hop, _)| writer.take_used(*hop)).map(|(_, at)| at).collect();
        in_use.extend(self.used.iter().copied());
        in_use
    }

    /// Whether a route leads to this neighbor, or packets may be sent to it now.
    pub fn is_known(&self, ifindex: u32, address: IpAddr) -> bool {
        self.targets.of_neighbor(ifindex, address).is_some()
    }

    /// The link and the neighbor that a packet to `destination` waits for at a next hop; `None` if it has another action
    /// by now.
    pub fn unresolved(&self, hop: NextHop, destination: IpAddr) -> Option<(u32, IpAddr)> {
        if self.targets.table().action(hop) != Action::Resolve {
            return None;
        }
        let State::Plain(place) = &self.targets.get(self.targets.of_hop(hop)?).state else { return None };
        Some((place.ifindex, place.gateway.unwrap_or(destination)))
    }

    fn uses_by_neighbor_entries(&self) -> BTreeMap<Target, u32> {
        let mut uses = BTreeMap::new();
        let of_family = self.ipv4.vrfs.values().flat_map(|table| table.neighbor_targets());
        let of_family = of_family.chain(self.ipv6.vrfs.values().flat_map(|table| table.neighbor_targets()));
        of_family.for_each(|target| *uses.entry(target).or_default() += 1);
        uses
    }
}
