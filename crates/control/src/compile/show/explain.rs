//! `explain`: one packet tried on the compiled tables, and what they say about its way.

use std::net::IpAddr;

use bm_api::request::RouteQuery;
use bm_api::{Action, Error, Route, RouteState};
use bm_forward::tables::{Interface, Tables};
use bm_forward::{DryRun, Now, Outcome, RouteInfo};
use bm_netlink::Mirror;
use bm_netlink::route::{TABLE_LOCAL, TABLE_MAIN};

use super::{state_name, vrf_name};
use crate::compile::Compiler;

/// A packet that was tried, and the tables it was tried on.
pub(crate) struct TrialResult {
    pub outcome: Outcome,
    pub tables: Tables,
}

impl Compiler {
    /// Tries a frame that arrives on a port, on the current tables of workers.
    ///
    /// # Errors
    /// If there is no memory, or the frame is too long.
    pub(crate) fn try_frame(
        &self,
        mirror: &Mirror,
        trial: &mut DryRun,
        port: u16,
        frame: &[u8],
        now: Now,
    ) -> Result<TrialResult, Error> {
        let filters = self.filters_of_one().map_err(Error::new)?;
        let tables = self.tables(&self.vrfs(mirror)).with_filters(filters.map(Into::into));
        let outcome = trial.run(&tables, usize::from(port), frame, now).map_err(Error::new)?;
        Ok(TrialResult { outcome, tables })
    }

    /// The route to an address for packets that arrive on an interface.
    pub(crate) fn route_to(
        &self,
        mirror: &Mirror,
        ifindex: u32,
        destination: IpAddr,
    ) -> Result<Option<Route>, Error> {
        let vrf = vrf_name(mirror, mirror.table_of(ifindex));
        let address = Some(destination.to_string());
        let query = RouteQuery { address, vrf, ..RouteQuery::default() };
        Ok(self.shown_routes(mirror, &query)?.routes.into_iter().next())
    }

    /// The member of a group that gets a packet, in words; `None` if the route has one next hop.
    pub(crate) fn member(&self, mirror: &Mirror, routed: &RouteInfo, route: &Route) -> Option<String> {
        if routed.next_hop == routed.route {
            return None;
        }
        let target = self.targets.of_hop(routed.next_hop);
        let hop = target.and_then(|target| self.hop(mirror, target));
        let way = hop.map_or_else(|| "Linux".into(), |hop| way(hop.gateway, &hop.interface));
        let count = route.hops.len();
        Some(format!("{way}, one of {count} by the hash of the flow (next hop {})", routed.next_hop))
    }

    /// What happens to packets at the next hop that was found for one.
    pub(crate) fn action_of(&self, routed: &RouteInfo) -> bm_fib::next_hop::Action {
        self.targets.table().action(routed.next_hop)
    }

    /// The largest packet on the way of one, in words.
    pub(crate) fn mtu_of(&self, tried: &TrialResult, routed: &RouteInfo) -> Option<String> {
        let (out, _) = routed.neighbor?;
        let out = tried.tables.interfaces.get(usize::from(out))?;
        let whose = match self.targets.table().mtu(routed.next_hop) {
            0 => format!("of {}", out.name),
            own if usize::from(own) <= usize::from(out.mtu) => "of the route".into(),
            _ => format!("of {}, less than that of the route", out.name),
        };
        Some(match routed.mtu {
            0 => format!("{} is down", out.name),
            mtu if routed.length > mtu => {
                format!("{mtu} ({whose}): less than the {} bytes of the packet", routed.length)
            }
            mtu => format!("{mtu} ({whose})"),
        })
    }
}

/// The neighbor that a packet is sent to, as in `ip neigh`.
pub(crate) fn neighbor(mirror: &Mirror, tables: &Tables, routed: &RouteInfo) -> Option<String> {
    let (out, address) = routed.neighbor?;
    let of = tables.interfaces.get(usize::from(out));
    // An IPsec interface has no neighbors.
    let Interface { ifindex, name, .. } = of.filter(|of| of.if_id == 0)?;
    let known = mirror.neighbor(*ifindex, address);
    Some(match known.and_then(|known| Some((known.mac?, known.state))) {
        Some((mac, state)) => format!("{address} is {} on {name}, {}", bm_api::Mac(mac), state_name(state)),
        None => match known {
            Some(known) => format!("{address} on {name} has no MAC address: {}", state_name(known.state)),
            None => format!("{address} on {name} is not known yet"),
        },
    })
}

/// A route in one line, in the terms of `ip route`.
pub(crate) fn route_line(mirror: &Mirror, route: &Route, destination: IpAddr) -> String {
    if route.action == Action::NoRoute {
        return format!("none to {destination}");
    }
    let kind = if route.kind == "unicast" { String::new() } else { format!("{} ", route.kind) };
    let hops = match &route.hops[..] {
        [hop] if route.state == RouteState::Neighbor => format!(" dev {}", hop.interface),
        [] => String::new(),
        [hop] => format!(" {}", way(hop.gateway, &hop.interface)),
        hops => format!(" by {} next hops", hops.len()),
    };
    let of_neighbor = if route.state == RouteState::Neighbor { ", a neighbor on its link" } else { "" };
    let table = match route.table {
        0 => String::new(),
        TABLE_MAIN => ", table main".into(),
        TABLE_LOCAL => ", table local".into(),
        number => vrf_name(mirror, number)
            .map_or_else(|| format!(", table {number}"), |name| format!(", table {number} of VRF {name}")),
    };
    let protocol = if route.protocol.is_empty() { String::new() } else { format!(", {}", route.protocol) };
    let reason = route.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    format!("{kind}{}{hops}{of_neighbor}{table}{protocol}{reason}", route.prefix)
}

/// A next hop in the terms of `ip route`.
fn way(gateway: Option<IpAddr>, interface: &str) -> String {
    gateway.map_or_else(|| format!("dev {interface}"), |gateway| format!("via {gateway} dev {interface}"))
}

/// An address from which packets may come on an interface: a neighbor of one of its own.
pub(crate) fn neighbor_address(own: &Interface, ipv6: bool) -> Option<IpAddr> {
    if ipv6 {
        let mut addresses = own.ipv6.iter();
        let (address, length) =
            addresses.find(|(address, _)| !bm_wire::ipv6::is_link_local((*address).into()))?;
        // The last bit changed, or the one before if that gives the address of routers (RFC 4291 2.6.1).
        let other =
            u128::from(*address) ^ if u128::from(*address) & 0xffff == 1 && *length < 127 { 3 } else { 1 };
        return (*length < 128).then(|| IpAddr::from(other.to_be_bytes()));
    }
    let (address, length) = own.ipv4.iter().find(|(_, length)| *length < 32)?;
    let (address, hosts) = (u32::from(*address), u32::MAX >> length);
    let other = match address & hosts {
        // Neither the network's address nor the broadcast.
        at if hosts > 1 && at + 1 >= hosts => address - 1,
        _ if hosts == 1 => address ^ 1,
        _ => address + 1,
    };
    Some(IpAddr::from(other.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ipv4: &str, ipv6: &str) -> [Option<String>; 2] {
        let split = |text: &str| {
            text.split_once('/').map(|(address, length)| (address.to_owned(), length.parse().unwrap()))
        };
        let four = split(ipv4).map(|(address, length)| (address.parse().unwrap(), length));
        let six = split(ipv6).map(|(address, length)| (address.parse().unwrap(), length));
        let own = Interface {
            ipv4: four.into_iter().collect(),
            ipv6: six.into_iter().collect(),
            ..Interface::default()
        };
        [false, true].map(|ipv6| neighbor_address(&own, ipv6).map(|address| address.to_string()))
    }

    #[test]
    fn a_source_is_a_neighbor_on_the_link_and_no_broadcast() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of("10.1.0.1/24", "2001:db8::1/64"), [some("10.1.0.2"), some("2001:db8::2")]);
        assert_eq!(of("10.1.0.254/24", "2001:db8::5/64"), [some("10.1.0.253"), some("2001:db8::4")]);
        assert_eq!(of("10.1.0.0/31", "fe80::1/64"), [some("10.1.0.1"), None]);
        assert_eq!(of("10.1.0.2/30", "2001:db8::1/127"), [some("10.1.0.1"), some("2001:db8::")]);
        assert_eq!(of("10.1.0.1/32", "2001:db8::1/128"), [None, None]);
    }
}
