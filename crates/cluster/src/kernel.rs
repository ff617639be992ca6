//! Adds and removes the routes and neighbors that lead to other nodes.
//!
//! Routes are recognized by their protocol, neighbors by being permanent, on a fabric link, with the address of a cluster.
//! Both outlive the daemon, as the fabric program does.

use std::collections::BTreeSet;
use std::net::IpAddr;

use bm_netlink::neighbor::state;
use bm_netlink::{Batch, Error, Hop, HopFlags, RouteBody, Via, list};
use bm_vlb::address::Destination;
use bm_wire::ethernet::Mac;
use bm_wire::prefix::Prefix;

use crate::remote::{Objects, Route};

/// The protocol of the routes (`ip route show proto 178`).
pub const PROTOCOL: u8 = 178;
/// Their metric: connected routes of Linux are better for IPv4, and routes of FRR are worse only for longer prefixes.
const METRIC: u32 = 20;
const MAIN: u32 = 254;
const SCOPE_LINK: u8 = 253;

/// The routes and neighbors of the cluster that are in Linux.
///
/// # Errors
/// If the kernel rejects a dump.
pub fn present(links: &BTreeSet<u32>) -> Result<Objects, Error> {
    let mut objects = Objects::default();
    let list::RouteList { ipv4, ipv6 } = list::routes(PROTOCOL)?;
    let ipv4 = ipv4.into_iter().map(|route| (route.table, v4(route.prefix), route.body));
    let ipv6 = ipv6.into_iter().map(|route| (route.table, v6(route.prefix), route.body));
    for (_, prefix, body) in ipv4.chain(ipv6).filter(|(table, ..)| *table == MAIN) {
        let Via::One(hop) = body.via else { continue };
        objects.routes.insert(prefix, Route { ifindex: hop.ifindex, gateway: hop.gateway, mtu: body.mtu });
    }
    for neighbor in list::neighbors()? {
        let ours = neighbor.state == state::PERMANENT && links.contains(&neighbor.ifindex);
        let mac = neighbor.mac.filter(|mac| ours && Destination::parse(Mac(*mac)).is_ok());
        objects.neighbors.extend(mac.map(|mac| ((neighbor.ifindex, neighbor.address), mac)));
    }
    Ok(objects)
}

fn v4(prefix: Prefix<u32>) -> (IpAddr, u8) {
    (IpAddr::V4(prefix.first().into()), prefix.length())
}

fn v6(prefix: Prefix<u128>) -> (IpAddr, u8) {
    (IpAddr::V6(prefix.first().into()), prefix.length())
}

/// Changes what is present into what is wanted; entries of interfaces for which `is_kept` holds are not removed.
///
/// # Errors
/// If netlink fails: some of the changes may have been made.
pub fn change(
    present: &Objects,
    wanted: &Objects,
    is_kept: impl Fn(u32) -> bool,
) -> Result<bm_netlink::Outcome, Error> {
    let mut batch = Batch::open()?;
    // A neighbor comes before the routes that need it, and goes after them.
    for ((ifindex, address), mac) in &wanted.neighbors {
        if present.neighbors.get(&(*ifindex, *address)) != Some(mac) {
            batch.put_neighbor(*ifindex, address, *mac)?;
        }
    }
    for (prefix, route) in &wanted.routes {
        if present.routes.get(prefix) != Some(route) {
            change_route(&mut batch, prefix.0, prefix.1, route, true)?;
        }
    }
    for (prefix, route) in &present.routes {
        if !wanted.routes.contains_key(prefix) && !is_kept(route.ifindex) {
            change_route(&mut batch, prefix.0, prefix.1, route, false)?;
        }
    }
    for (ifindex, address) in present.neighbors.keys() {
        if !wanted.neighbors.contains_key(&(*ifindex, *address)) && !is_kept(*ifindex) {
            batch.delete_neighbor(*ifindex, address)?;
        }
    }
    batch.finish()
}

/// Removes all routes and neighbors of the cluster.
///
/// # Errors
/// If the kernel rejects a dump.
pub fn remove(links: &BTreeSet<u32>) -> Result<(), Error> {
    change(&present(links)?, &Objects::default(), |_| false).map(drop)
}

fn change_route(
    batch: &mut Batch,
    address: IpAddr,
    length: u8,
    route: &Route,
    wanted: bool,
) -> Result<(), Error> {
    let mut hop = Hop { gateway: route.gateway, ..Hop::link(route.ifindex) };
    if route.gateway.is_some_and(|gateway| gateway.is_ipv4()) {
        hop.flags.0 |= HopFlags::ONLINK;
    }
    let scope = if address.is_ipv4() && route.gateway.is_none() { SCOPE_LINK } else { 0 };
    let (mtu, via) = (route.mtu, Via::One(hop));
    let body = RouteBody { protocol: PROTOCOL, priority: METRIC, scope, mtu, via, ..RouteBody::default() };
    match address {
        IpAddr::V4(address) => {
            let Some(prefix) = Prefix::containing(u32::from(address), length) else { return Ok(()) };
            match wanted {
                true => batch.replace_route(MAIN, prefix, &body),
                false => batch.delete_route(MAIN, prefix, &body),
            }
        }
        IpAddr::V6(address) => {
            let Some(prefix) = Prefix::containing(u128::from(address), length) else { return Ok(()) };
            match wanted {
                true => batch.replace_route(MAIN, prefix, &body),
                false => batch.delete_route(MAIN, prefix, &body),
            }
        }
    }
}

/// Makes Linux resolve neighbors again before it sends them anything.
///
/// # Errors
/// If the kernel rejects a dump.
pub fn forget(neighbors: &[(u32, IpAddr)]) -> Result<(), Error> {
    if neighbors.is_empty() {
        return Ok(());
    }
    let mut batch = Batch::open()?;
    for (ifindex, address) in neighbors {
        batch.delete_neighbor(*ifindex, address)?;
    }
    // Those that are gone already are refused.
    batch.finish().map(drop)
}

/// Makes Linux confirm neighbors as if it had sent packets to them: it does not see those that the program sends.
///
/// # Errors
/// If the kernel rejects a dump.
pub(crate) fn confirm(neighbors: &[(u32, IpAddr)]) -> Result<(), Error> {
    let mut batch = Batch::open()?;
    for (ifindex, address) in neighbors {
        batch.use_neighbor(*ifindex, address)?;
    }
    batch.finish().map(drop)
}
