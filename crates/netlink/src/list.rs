//! Neighbors, addresses and routes as they are now, for callers that need no mirror.

use crate::dump::{self, Dumped};
use crate::error::Error;
use crate::message::Message;
use crate::neighbor::{self, Neighbor};
use crate::route::RouteMessage;
use crate::{Address, Family};
use netlink_sys::protocols::NETLINK_ROUTE;
use std::net::IpAddr;

/// How often a list is read again because it changed meanwhile. After that, what was read last counts: an event about
/// the change is still to come.
const PASSES: usize = 5;
/// Lengths of `struct ifaddrmsg` and `struct rtmsg`.
const IFADDRMSG: usize = 8;
const RTMSG: usize = 12;
/// Where `struct rtmsg` has the protocol.
const PROTOCOL_AT: usize = 5;

/// The neighbors on all interfaces, of both families.
///
/// # Errors
/// The kernel's error.
pub fn neighbors() -> Result<Vec<Neighbor>, Error> {
    both("list neighbors", libc::RTM_GETNEIGH, neighbor::HEADER, |message| match message {
        Message::Neighbor(neighbor) => Some(neighbor),
        _ => None,
    })
}

/// Whether the kernel has made a neighbor for an address itself, which it neither announces nor resolves: one that was a
/// broadcast address when something was sent there. Packets go to its MAC address as long as it exists.
///
/// # Errors
/// The kernel's error.
pub fn is_unannounced(ifindex: u32, address: &IpAddr) -> Result<bool, Error> {
    let Some(mut socket) = dump::open(NETLINK_ROUTE)? else { return Ok(false) };
    let mut body = Vec::new();
    neighbor::write_which(ifindex, address, &mut body);
    let mut found = false;
    let asked = dump::request(&mut socket, "find a neighbor", libc::RTM_GETNEIGH, &body, |raw| {
        found |= neighbor::is_unannounced(raw.body);
        Ok(())
    });
    match asked {
        // It is gone meanwhile.
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(false),
        asked => asked.map(|()| found),
    }
}

/// The addresses of this machine.
///
/// # Errors
/// The kernel's error.
pub fn addresses() -> Result<Vec<Address>, Error> {
    both("list addresses", libc::RTM_GETADDR, IFADDRMSG, |message| match message {
        Message::Address(address) => Some(address),
        _ => None,
    })
}

/// Routes of both families.
#[derive(Debug, Default)]
pub struct RouteList {
    pub ipv4: Vec<RouteMessage<u32>>,
    pub ipv6: Vec<RouteMessage<u128>>,
}

/// The IPv4 and IPv6 routes of one protocol (`RTPROT_*`) in all tables.
///
/// # Errors
/// The kernel's error.
pub fn routes(protocol: u8) -> Result<RouteList, Error> {
    let ipv4 =
        list("list routes", libc::RTM_GETROUTE, &request(Family::V4, protocol), |message| match message {
            Message::Route4(route) if route.body.protocol == protocol => Some(route),
            _ => None,
        })?;
    let ipv6 =
        list("list routes", libc::RTM_GETROUTE, &request(Family::V6, protocol), |message| match message {
            Message::Route6(route) if route.body.protocol == protocol => Some(route),
            _ => None,
        })?;
    Ok(RouteList { ipv4, ipv6 })
}

/// `struct rtmsg` that asks for the routes of a protocol.
fn request(family: Family, protocol: u8) -> [u8; RTMSG] {
    let mut body = [0; RTMSG];
    (body[0], body[PROTOCOL_AT]) = (family.number(), protocol);
    body
}

/// A list of both families.
fn both<T>(
    name: &'static str,
    kind: u16,
    header: usize,
    pick: impl Fn(Message) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let mut all = Vec::new();
    for family in [Family::V4, Family::V6] {
        let mut body = vec![0; header];
        body[0] = family.number();
        all.extend(list(name, kind, &body, &pick)?);
    }
    Ok(all)
}

fn list<T>(
    name: &'static str,
    kind: u16,
    body: &[u8],
    pick: impl Fn(Message) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let Some(mut socket) = dump::open(NETLINK_ROUTE)? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for _ in 0..PASSES {
        all.clear();
        let dumped = dump::dump(&mut socket, name, kind, body, |raw| {
            all.extend(Message::read(raw)?.and_then(&pick));
            Ok(())
        })?;
        if dumped == Dumped::Whole {
            break;
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{self, LinkEvents};
    use crate::{Batch, Hop, Link, RouteBody, Via};
    use bm_wire::prefix::Prefix;

    #[test]
    fn lists_neighbors_and_routes() {
        const PROTOCOL: u8 = 178;
        const MAC: [u8; 6] = [0xb2, 0, 0, 0, 0, 9];
        std::thread::spawn(|| {
            if let Err(error) = bm_sys::Namespace::Network.unshare() {
                return eprintln!("skipped: needs root for a network namespace: {error}");
            }
            link::make_veth("one", "two").unwrap();
            let interfaces = bm_sys::Interfaces::open().unwrap();
            for name in ["one", "two"] {
                interfaces.set_flag(name, bm_sys::Flag::Up, true).unwrap();
            }
            let one = Link::list().unwrap().iter().find(|link| &*link.name == "one").unwrap().ifindex;
            let mut events = LinkEvents::listen_with_neighbors().unwrap();
            let address = IpAddr::from([192, 0, 2, 9]);
            let hop = Hop::link(one);
            let body =
                RouteBody { protocol: PROTOCOL, scope: 253, via: Via::One(hop), ..RouteBody::default() };
            let prefix = Prefix::host(u32::from_be_bytes([192, 0, 2, 9]));
            let mut batch = Batch::open().unwrap();
            batch.put_neighbor(one, &address, MAC).unwrap();
            batch.replace_route(254, prefix, &body).unwrap();
            let outcome = batch.finish().unwrap();
            assert_eq!(outcome.refused, 0, "{:?}", outcome.first);
            assert!(events.drain());
            let found = neighbors().unwrap();
            let ours = found.iter().find(|neighbor| neighbor.address == address).unwrap();
            assert_eq!((ours.ifindex, ours.reachable_at()), (one, Some(MAC)));
            let RouteList { ipv4, ipv6 } = routes(PROTOCOL).unwrap();
            assert_eq!((ipv4.len(), ipv6.len(), ipv4[0].prefix), (1, 0, prefix));
            assert_eq!(routes(PROTOCOL + 1).unwrap().ipv4, []);
            assert_eq!(addresses().unwrap().iter().filter(|address| address.local.is_ipv4()).count(), 0);
            batch.delete_route(254, prefix, &body).unwrap();
            batch.delete_neighbor(one, &address).unwrap();
            assert_eq!(batch.finish().unwrap().refused, 0);
            assert_eq!(routes(PROTOCOL).unwrap().ipv4, []);
            assert!(neighbors().unwrap().iter().all(|neighbor| neighbor.address != address));
        })
        .join()
        .unwrap();
    }
}
