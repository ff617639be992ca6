//! `show routes`: the entries of a table, with the kernel's routes that they come from.
//!
//! A full table has a million entries, so replies are pages. The start of a page is found by prefix, not by counting:
//! the control thread has other work to do.

use super::shown;
use crate::compile::check::shortage_text;
use crate::compile::family;
use crate::compile::fib_info::RouteFamily;
use crate::compile::table::Table;
use crate::compile::{Compiler, LinuxReason};
use bm_api::request::{ROUTES_MAX, RouteQuery};
use bm_api::{Action, Error, Route, RouteState, Routes};
use bm_fib::NextHop;
use bm_netlink::route::TABLE_MAIN;
use bm_netlink::{Kind, Mirror, RouteBody, RouteKind};
use bm_wire::prefix::{Address, NotAPrefix, Prefix};
use std::net::IpAddr;
use std::str::FromStr;

impl Compiler {
    /// The routes that a query selects.
    ///
    /// # Errors
    /// If there is no such VRF, or an address or prefix in the query is invalid.
    pub fn shown_routes(&self, mirror: &Mirror, query: &RouteQuery) -> Result<Routes, Error> {
        let vrf = match query.vrf.as_deref() {
            Some(name) => Some(table_of_vrf(mirror, name)?).filter(|table| *table != TABLE_MAIN),
            None => None,
        };
        if !self.ipv4.vrfs.contains_key(&vrf) {
            let name = query.vrf.as_deref().unwrap_or("main");
            return Err(Error::new(format_args!(
                "no port is in the VRF {name:?}: Linux forwards its packets"
            ))
            .hint("use `ip link set dev PORT master VRF` to add a port"));
        }
        let limit = query.limit.unwrap_or(ROUTES_MAX).min(ROUTES_MAX);
        let mut page = Page { routes: Routes::default(), limit };
        if query.family != Some(6) {
            let wanted = FamilyQuery::<u32>::from_query(query)?;
            page.routes.total_ipv4 = self.list(mirror, &self.ipv4, vrf, &wanted, &mut page);
            page.routes.lookup.extend(self.ipv4.lookup(vrf));
        }
        if query.family != Some(4) {
            let wanted = FamilyQuery::<u128>::from_query(query)?;
            page.routes.total_ipv6 = self.list(mirror, &self.ipv6, vrf, &wanted, &mut page);
            page.routes.lookup.extend(self.ipv6.lookup(vrf));
        }
        Ok(page.routes)
    }

    /// Adds the matching entries, as far as there is room. Returns the total number of entries.
    fn list<A: RouteFamily>(
        &self,
        mirror: &Mirror,
        family: &family::Tables<A>,
        vrf: Option<u32>,
        wanted: &FamilyQuery<A>,
        page: &mut Page,
    ) -> usize {
        let Some(table) = family.vrfs.get(&vrf) else { return 0 };
        let rib = table.fib().rib();
        let route = |prefix, hop| self.route(mirror, family, table, prefix, hop);
        match *wanted {
            FamilyQuery::Address(address) => {
                // The result of the lookup itself, with the prefix that it comes from.
                let hop = table.fib().reader().lookup(address);
                let prefix = rib.longest_match(address).map_or(Prefix::default(), |(prefix, _)| prefix);
                page.add(|| route(prefix, hop));
            }
            FamilyQuery::Within { prefix, after: None } => {
                let _more = rib.within(prefix).all(|(prefix, hop)| page.add(|| route(prefix, hop)));
            }
            FamilyQuery::Within { prefix, after: Some(after) } => {
                let (holding, behind) = rib.around(after.first());
                let on = holding.into_iter().filter(|(entry, _)| *entry > after);
                let on = on.chain(behind).take_while(|(entry, _)| entry.first() <= prefix.last());
                let mut within = on.filter(|(entry, _)| prefix.covers(entry));
                let _more = within.all(|(prefix, hop)| page.add(|| route(prefix, hop)));
            }
            FamilyQuery::None => {}
        }
        rib.len()
    }

    fn route<A: RouteFamily>(
        &self,
        mirror: &Mirror,
        family: &family::Tables<A>,
        table: &Table<A>,
        prefix: Prefix<A>,
        hop: NextHop,
    ) -> Route {
        let routes = A::routes(mirror);
        let found = table.stages().tables.iter().find_map(|number| {
            let ids = routes.get(*number, prefix);
            let why = ids.iter().find_map(|id| family.shared.fib_infos.why(*id));
            let body = mirror.active(routes, *number, prefix).map(|(_, body)| body);
            let body = body.or_else(|| routes.body(*ids.first().filter(|_| why.is_some())?));
            Some((*number, body?, why))
        });
        let body = found.map(|(_, body, _)| body);
        let target = self.targets.of_hop(hop);
        let neighbor =
            prefix.length() == A::WIDTH && table.is_neighbor_entry(prefix.first()) && body.is_none();
        let shortage = table.refused().find(|(refused, _)| *refused == prefix).map(|(_, shortage)| shortage);
        let why = found.and_then(|(.., why)| why);
        let linux = self.is_left_to_linux::<A>();
        let action = if linux { Action::Host } else { shown(self.targets.table().action(hop)) };
        let refused = shortage.is_some() || why.is_some_and(|why| why.is_fault());
        let state = match (refused, neighbor) {
            (true, _) => RouteState::Refused,
            (false, true) => RouteState::Neighbor,
            (false, false) => RouteState::Route,
        };
        let reason = match shortage {
            _ if linux => {
                Some("the family has routing rules that match more than the destination".to_string())
            }
            Some(shortage) => Some(shortage_text(shortage).to_string()),
            None => why_linux(action, body, why),
        };
        Route {
            prefix: prefix.to_string(),
            state,
            table: found.map_or(0, |(table, ..)| table),
            kind: body.map_or_else(|| "unicast".into(), |body| body.kind.to_string()),
            protocol: body.map_or_else(String::new, |body| protocol_name(body.protocol)),
            metric: body.map_or(0, |body| body.priority),
            next_hop: hop.0,
            action,
            hops: target.map(|target| self.hops(mirror, target)).unwrap_or_default(),
            mtu_bytes: u32::from(self.targets.table().mtu(hop)),
            reason,
        }
    }
}

/// Why packets of a route that forwards are left to Linux.
fn why_linux(action: Action, body: Option<&RouteBody>, why: Option<LinuxReason>) -> Option<String> {
    match (why, body) {
        (Some(why), _) => Some(why.to_string()),
        (None, Some(body)) if action == Action::Host && body.kind == RouteKind::Unicast => {
            Some("its interface is not a port, or it needs an encapsulation".into())
        }
        _ => None,
    }
}

/// A reply under construction.
struct Page {
    routes: Routes,
    limit: usize,
}

impl Page {
    /// Adds a route. `false` if there is no room: then the reply says where to continue.
    fn add(&mut self, route: impl FnOnce() -> Route) -> bool {
        let routes = &mut self.routes;
        if routes.routes.len() < self.limit {
            routes.routes.push(route());
            return true;
        }
        routes.next = routes.routes.last().map(|last| last.prefix.clone());
        false
    }
}

/// What a request asks for in the tables of one address family.
enum FamilyQuery<A> {
    Address(A),
    Within {
        prefix: Prefix<A>,
        after: Option<Prefix<A>>,
    },
    /// The query is for the other family.
    None,
}

impl<A: RouteFamily> FamilyQuery<A>
where
    Prefix<A>: FromStr<Err = NotAPrefix>,
{
    fn from_query(query: &RouteQuery) -> Result<Self, Error> {
        if let Some(text) = &query.address {
            let address: IpAddr =
                text.parse().map_err(|_| Error::new(format_args!("{text:?} is not an IP address")))?;
            return Ok(A::number(address).map_or(Self::None, Self::Address));
        }
        let after = query.after.as_deref().map(parse::<A>).transpose()?;
        let prefix = match query.prefix.as_deref().map(parse::<A>).transpose()? {
            Some(Some(prefix)) => prefix,
            Some(None) => return Ok(Self::None),
            None => Prefix::default(),
        };
        Ok(match after {
            // IPv6 comes after all of IPv4: with an IPv6 cursor no IPv4 routes are left.
            Some(None) if A::WIDTH == u32::WIDTH => Self::None,
            after => Self::Within { prefix, after: after.flatten() },
        })
    }
}

/// Parses a prefix; `None` if it is of the other family.
fn parse<A: RouteFamily>(text: &str) -> Result<Option<Prefix<A>>, Error>
where
    Prefix<A>: FromStr<Err = NotAPrefix>,
{
    let address = text.split_once('/').map_or(text, |(address, _)| address);
    let other = address.parse::<IpAddr>().is_ok_and(|address| A::number(address).is_none());
    match text.parse::<Prefix<A>>() {
        Ok(prefix) => Ok(Some(prefix)),
        Err(_) if other => Ok(None),
        Err(why) => {
            Err(Error::new(format_args!("{text:?}: {why}")).hint("write it as 192.0.2.0/24 or 2001:db8::/32"))
        }
    }
}

fn table_of_vrf(mirror: &Mirror, name: &str) -> Result<u32, Error> {
    match mirror.link_named(name).map(|link| &link.kind) {
        Some(Kind::Vrf { table }) => Ok(*table),
        _ => Err(Error::new(format_args!("unknown VRF {name:?}")).hint("`ip vrf` lists VRFs")),
    }
}

/// Protocol names of `ip route` (`/etc/iproute2/rt_protos`); others by number.
fn protocol_name(number: u8) -> String {
    let names = [
        (1, "redirect"),
        (2, "kernel"),
        (3, "boot"),
        (4, "static"),
        (8, "gated"),
        (9, "ra"),
        (11, "zebra"),
        (12, "bird"),
        (16, "dhcp"),
        (42, "babel"),
        (186, "bgp"),
        (187, "isis"),
        (188, "ospf"),
        (189, "rip"),
        (192, "eigrp"),
        (196, "zstatic"),
    ];
    let known = names.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| number.to_string(), |(_, name)| (*name).into())
}
