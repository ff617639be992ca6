//! The route of one packet, for the slow path: what the fast path finds for bursts, decoded.

use std::net::IpAddr;

use bm_fib::NextHop;
use bm_fib::next_hop::{Action, Entry};
use bm_frame::Meta;
use bm_wire::Family;

use crate::stages::rewrite;
use crate::tables::Tables;

/// A neighbor: an address on a logical interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Neighbor {
    pub interface: u16,
    pub address: IpAddr,
}

/// Where packets to a destination go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Through a neighbor whose MAC address is known.
    Forward { hop: NextHop, entry: Entry },
    /// Through a neighbor, or to one, whose MAC address must be resolved.
    Resolve { hop: NextHop, neighbor: Neighbor },
    /// To Linux.
    Host,
    /// Nowhere, without an error (blackhole).
    Blackhole,
    /// Unreachable, as a route says.
    Unreachable,
    /// Prohibited, as a route says.
    Prohibit,
    /// There is no route.
    None,
}

impl Route {
    /// The next hop and the interface through which a packet leaves, if it leaves.
    pub fn out(&self) -> Option<(NextHop, u16)> {
        match *self {
            Self::Forward { hop, entry } => Some((hop, entry.interface())),
            Self::Resolve { hop, neighbor } => Some((hop, neighbor.interface)),
            _ => None,
        }
    }
}

/// Whether Linux gets a packet that came in on this interface: by its route, or since Linux may send a redirect.
pub(crate) fn is_linuxs(tables: &Tables, family: Family, came_in: u16, way: &Route) -> bool {
    *way == Route::Host
        || way.out().is_some_and(|(_, out)| tables.compiled.may_redirect(family, came_in, out))
}

/// The route to a destination; `hash` is called if there are several next hops.
pub(crate) fn to(tables: &Tables, vrf: u16, destination: IpAddr, hash: impl FnOnce() -> u32) -> Route {
    let hop = tables.vrfs.get(usize::from(vrf)).map_or(NextHop::NONE, |vrf| match destination {
        IpAddr::V4(address) => vrf.ipv4.lookup(address.into()),
        IpAddr::V6(address) => vrf.ipv6.lookup(address.into()),
    });
    way(tables, hop, destination, hash)
}

/// The way of a packet to `destination`: that of the table, or another that a hook chose on the fast path.
pub(crate) fn of_packet(tables: &Tables, meta: &Meta, vrf: u16, destination: IpAddr, packet: &[u8]) -> Route {
    let hash = || rewrite::hash(tables, packet);
    let found = to(tables, vrf, destination, hash);
    chosen(tables, meta, found, destination, hash)
}

/// The way that `found` in the table is, or another that a hook chose on the fast path.
fn chosen(
    tables: &Tables,
    meta: &Meta,
    found: Route,
    destination: IpAddr,
    hash: impl FnOnce() -> u32,
) -> Route {
    if meta.chosen == 0 {
        return found;
    }
    let chosen = way(tables, NextHop(meta.next_hop), destination, hash);
    match chosen {
        // No neighbor yet, but on a link: the table has an entry for each neighbor of the link.
        Route::Resolve { hop, neighbor } if tables.next_hops.gateway(hop).address.is_none() => {
            let there = found.out().is_some_and(|(_, interface)| interface == neighbor.interface);
            if there { found } else { chosen }
        }
        // A number that is not a next hop, or no longer.
        Route::None if meta.next_hop != NextHop::NONE.0 => found,
        _ => chosen,
    }
}

fn way(tables: &Tables, hop: NextHop, destination: IpAddr, hash: impl FnOnce() -> u32) -> Route {
    let next_hops = &tables.next_hops;
    let entry = next_hops.entry(hop);
    let (hop, entry) = if entry.is_group() { next_hops.resolve(hop, hash()) } else { (hop, entry) };
    match entry.action() {
        Action::Forward { .. } => Route::Forward { hop, entry },
        Action::Resolve => {
            let gateway = next_hops.gateway(hop);
            let address = gateway.address.unwrap_or(destination);
            match u16::try_from(gateway.interface) {
                Ok(interface) => Route::Resolve { hop, neighbor: Neighbor { interface, address } },
                // An interface that the tables cannot represent is not used for sending.
                Err(_) => Route::Host,
            }
        }
        Action::Host | Action::LinuxOnly => Route::Host,
        Action::Blackhole => Route::Blackhole,
        Action::Unreachable => Route::Unreachable,
        Action::Prohibit => Route::Prohibit,
        Action::Group { .. } | Action::None => Route::None,
    }
}
