//! Announcements of other nodes, as routes and neighbors of Linux.
//!
//! | announced | in Linux, on the fabric link to that node |
//! |---|---|
//! | neighbor 192.0.2.9, index 7 with check 3 | `192.0.2.9 dev fab1`, a permanent neighbor with the MAC *neighbor 7, check 3* |
//! | address 192.0.2.1 of the node | `192.0.2.1 dev fab1`, a permanent neighbor with the MAC *host* |
//! | prefix 192.0.2.0/24 on port 3 | `192.0.2.0/24 via 169.254.0.35 dev fab1 onlink`, and for that gateway the MAC *resolve, port 3* |
//!
//! So each longest match gives the MAC that the frame needs. Every route has the MTU of the port that packets leave by.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bm_vlb::address::{Destination, Node, Port, To};
use bm_vlb::membership::Epoch;

use crate::message::Entry;

/// A route to a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The fabric link.
    pub ifindex: u32,
    /// The gateway; `None` if the destination is a neighbor on the link.
    pub gateway: Option<IpAddr>,
    /// Largest packet.
    pub mtu: u32,
}

/// Routes and permanent neighbors of this node's Linux.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// By prefix.
    pub routes: BTreeMap<(IpAddr, u8), Route>,
    /// MACs by interface and address.
    pub neighbors: BTreeMap<(u32, IpAddr), [u8; 6]>,
}

/// A node at the other end of a fabric link.
#[derive(Clone, Copy, Debug)]
pub struct RemoteNode {
    pub node: Node,
    /// Index of our interface to it.
    pub ifindex: u32,
    /// MTU of that interface.
    pub mtu: u32,
    /// The epoch of frames to that node: its own.
    pub epoch: Epoch,
}

impl RemoteNode {
    /// `port`: that of the node, or the check of an index.
    fn mac(&self, port: u8, to: To) -> Option<[u8; 6]> {
        let port = Port::new(port)?;
        Some(Destination { epoch: self.epoch, output: self.node, port, to }.mac().0)
    }

    /// The gateway that stands for a port of the node whose neighbors are not resolved yet.
    fn gateway(&self, port: u8, six: bool) -> IpAddr {
        let number = self.node.number() << 5 | u16::from(port);
        let [high, low] = number.to_be_bytes();
        match six {
            false => Ipv4Addr::new(169, 254, high, low).into(),
            true => Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xb1, self.node.number(), port.into()).into(),
        }
    }
}

impl Objects {
    /// Adds what a node announces, except for prefixes that are `ours` and for those that another node has. With `present`
    /// only the routes that lead to this node already.
    pub fn add(
        &mut self,
        remote: &RemoteNode,
        entries: &[Entry],
        is_ours: impl Fn((IpAddr, u8)) -> bool,
        present: Option<&Self>,
    ) {
        let mtus: BTreeMap<u8, u32> = entries
            .iter()
            .filter_map(|entry| match *entry {
                Entry::Port(port, mtu) => Some((port, remote.mtu.min(mtu.into()))),
                _ => None,
            })
            .collect();
        let mtu = |port: u8| mtus.get(&port).copied().unwrap_or(remote.mtu);
        for entry in entries {
            let (prefix, gateway, mac, mtu) = match *entry {
                Entry::Own(address) => (host_prefix(address), None, remote.mac(0, To::Host), remote.mtu),
                Entry::Neighbor(port, address, index) => (
                    host_prefix(address),
                    None,
                    remote.mac(index.check, To::Neighbor(index.number)),
                    mtu(port),
                ),
                Entry::Prefix(port, address, length) => {
                    let gateway = remote.gateway(port, address.is_ipv6());
                    ((address, length), Some(gateway), remote.mac(port, To::Resolve), mtu(port))
                }
                Entry::Port(..) | Entry::NoLink(_) | Entry::Drained | Entry::Claim(_) | Entry::Bound(_) => {
                    continue;
                }
            };
            let leads_elsewhere = present.is_some_and(|present| {
                present.routes.get(&prefix).is_none_or(|route| route.ifindex != remote.ifindex)
            });
            if is_ours(prefix) || leads_elsewhere {
                continue;
            }
            let Some(mac) = mac else { continue };
            self.routes.entry(prefix).or_insert_with(|| {
                self.neighbors.insert((remote.ifindex, gateway.unwrap_or(prefix.0)), mac);
                Route { ifindex: remote.ifindex, gateway, mtu }
            });
        }
    }
}

fn host_prefix(address: IpAddr) -> (IpAddr, u8) {
    (address, if address.is_ipv4() { 32 } else { 128 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::neighbor::Index;

    const INDEX: Index = Index { number: 1, check: 0 };

    fn remote(node: u16) -> RemoteNode {
        RemoteNode { node: Node::new(node).expect("small"), ifindex: 4, mtu: 1600, epoch: Epoch::new(0x12) }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn entries_become_routes_and_neighbors() {
        let entries = [
            Entry::Port(3, 1500),
            Entry::Prefix(3, ip("192.0.2.0"), 24),
            Entry::Prefix(3, ip("2001:db8::"), 64),
            Entry::Own(ip("192.0.2.1")),
            Entry::Neighbor(3, ip("192.0.2.9"), Index { number: 0x0708, check: 5 }),
        ];
        let mut objects = Objects::default();
        objects.add(&remote(0x2a), &entries, |_| false, None);
        let route = |gateway, mtu| Route { ifindex: 4, gateway, mtu };
        let (four, six) = (ip("169.254.5.67"), ip("fe80::b1:2a:3"));
        let routes = [
            ((ip("192.0.2.0"), 24), route(Some(four), 1500)),
            ((ip("192.0.2.1"), 32), route(None, 1600)),
            ((ip("192.0.2.9"), 32), route(None, 1500)),
            ((ip("2001:db8::"), 64), route(Some(six), 1500)),
        ];
        assert_eq!(objects.routes.into_iter().collect::<Vec<_>>(), routes);
        let neighbors = [
            ((4, four), [0xb6, 0x12, 0x05, 0x43, 0, 0]),
            ((4, ip("192.0.2.1")), [0xba, 0x12, 0x05, 0x40, 0, 0]),
            ((4, ip("192.0.2.9")), [0xb2, 0x12, 0x05, 0x45, 7, 8]),
            ((4, six), [0xb6, 0x12, 0x05, 0x43, 0, 0]),
        ];
        assert_eq!(objects.neighbors, neighbors.into());
    }

    #[test]
    fn own_and_earlier_entries_have_priority() {
        let entries = ["192.0.2.9", "192.0.2.10"].map(|text| Entry::Neighbor(0, ip(text), INDEX));
        let mut objects = Objects::default();
        objects.add(&remote(1), &entries[..1], |_| false, None);
        let two = RemoteNode { ifindex: 5, ..remote(2) };
        objects.add(&two, &entries, |prefix| prefix == (ip("192.0.2.10"), 32), None);
        assert_eq!(objects.routes.len(), 1);
        assert_eq!(objects.routes[&(ip("192.0.2.9"), 32)].ifindex, 4);
        assert_eq!(objects.neighbors.len(), 1);
    }

    #[test]
    fn of_two_nodes_with_the_same_address_the_one_in_use_stays() {
        let entries = [Entry::Neighbor(0, ip("192.0.2.9"), INDEX)];
        let two = RemoteNode { ifindex: 5, ..remote(2) };
        let mut present = Objects::default();
        present.add(&two, &entries, |_| false, None);
        let mut objects = Objects::default();
        for present in [Some(&present), None] {
            [remote(1), two].iter().for_each(|remote| objects.add(remote, &entries, |_| false, present));
        }
        assert_eq!(objects, present);
    }
}
