//! What was compiled, as replies of the control socket.

use super::Compiler;
use super::body::Side;
use super::family;
use super::stages;
use super::targets::{Entry, State, Target};
use bm_api::request::{ROUTES_MAX, RouteQuery};
use bm_api::{Error, Hop, Mac, Neighbor, Neighbors, NextHop, NextHops, Route, RouteState, Routes, Share};
use bm_fib::next_hop::Action;
use bm_fib::{BuildFib, Fib};
use bm_netlink::neighbour::state;
use bm_netlink::{Family, Kind, Mirror};
use bm_wire::prefix::Prefix;
use std::net::IpAddr;
use std::str::FromStr;

/// How much was compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// IPv4 routes of all tables, neighbours' entries among them.
    pub ipv4: usize,
    /// IPv6 routes likewise.
    pub ipv6: usize,
    /// Routes without room.
    pub refused: usize,
    /// Next hops in use.
    pub next_hops: usize,
    /// Bytes of the lookup structures.
    pub bytes: usize,
}

impl<B4, B6> Compiler<B4, B6>
where
    B4: BuildFib<Address = u32>,
    B6: BuildFib<Address = u128>,
    B4::Fib: 'static,
    B6::Fib: 'static,
{
    /// How much was compiled.
    pub fn counts(&self) -> Counts {
        let [four, six] = [self.ipv4.size(), self.ipv6.size()];
        Counts {
            ipv4: four.routes,
            ipv6: six.routes,
            refused: four.refused + six.refused,
            next_hops: self.targets.iter().count(),
            bytes: four.bytes + six.bytes,
        }
    }

    /// What the operator should know of what Linux does in our place.
    pub fn notes(&self, mirror: &Mirror) -> Vec<String> {
        let mut notes = Vec::new();
        for family in Family::BOTH {
            if let Some(rule) = stages::unsupported(mirror, family).next() {
                notes.push(format!(
                    "{family} is left to Linux: the rule of priority {} looks at more than the destination",
                    rule.priority
                ));
            }
        }
        notes
    }

    /// A port's interfaces.
    pub fn shown_interfaces(&self, mirror: &Mirror, port: u16) -> Vec<bm_api::Interface> {
        let show = |(index, interface): (u16, &bm_forward::tables::Interface)| {
            let table = mirror.table_of(interface.ifindex);
            let addresses = mirror.addresses(interface.ifindex).iter();
            bm_api::Interface {
                index,
                name: interface.name.clone(),
                ifindex: interface.ifindex,
                vlan: interface.vlan.map(|vlan| bm_api::Vlan { protocol: vlan.protocol, id: vlan.id }),
                mac: Mac(interface.mac),
                mtu_bytes: u32::from(interface.mtu),
                up: interface.up,
                vrf: vrf_name(mirror, table),
                forward_ipv4: interface.forward_ipv4,
                forward_ipv6: interface.forward_ipv6,
                reverse_path: match interface.reverse_path {
                    bm_forward::tables::ReversePath::Off => bm_api::ReversePath::Off,
                    bm_forward::tables::ReversePath::Strict => bm_api::ReversePath::Strict,
                    bm_forward::tables::ReversePath::Loose => bm_api::ReversePath::Loose,
                },
                addresses: addresses.map(|address| format!("{}/{}", address.local, address.length)).collect(),
            }
        };
        self.interfaces().of_port(port).map(show).collect()
    }

    /// The kernel's neighbours on interfaces of ours.
    pub fn shown_neighbors(&self, mirror: &Mirror) -> Neighbors {
        let ours =
            mirror.neighbours().filter(|neighbour| self.interfaces().index_of(neighbour.ifindex).is_some());
        let show = |neighbour: &bm_netlink::Neighbour| {
            let link = mirror.link(neighbour.ifindex);
            Neighbor {
                address: neighbour.address,
                interface: link.map_or_else(String::new, |link| link.name.to_string()),
                ifindex: neighbour.ifindex,
                mac: neighbour.mac.map(Mac),
                state: state_name(neighbour.state).into(),
                usable: neighbour.reachable_at().is_some(),
                router: neighbour.router,
                used: false,
                next_hop: self
                    .targets
                    .of_place(neighbour.ifindex, neighbour.address)
                    .map(|target| self.targets.hop(target).0),
            }
        };
        let mut neighbors: Vec<_> = ours.map(show).collect();
        neighbors.sort_by_key(|neighbor| (neighbor.address, neighbor.ifindex));
        Neighbors { neighbors }
    }

    /// Next hops and groups in use.
    pub fn shown_next_hops(&self, mirror: &Mirror) -> NextHops {
        let mut next_hops: Vec<_> =
            self.targets.iter().map(|(target, entry)| self.next_hop(mirror, target, entry)).collect();
        next_hops.sort_by_key(|next_hop| next_hop.index);
        NextHops { next_hops, capacity: self.targets.table().capacity() }
    }

    fn next_hop(&self, mirror: &Mirror, target: Target, entry: &Entry) -> NextHop {
        let members = match &entry.state {
            State::Members(members) => members.iter().filter(|member| member.alive).collect(),
            _ => Vec::new(),
        };
        let share = |member: &&super::targets::Member| Share {
            index: self.targets.hop(member.target).0,
            weight: u32::from(member.weight),
            hop: self.hop(mirror, member.target),
        };
        NextHop {
            index: entry.hop.0,
            action: shown(self.targets.table().action(entry.hop)),
            hop: self.hop(mirror, target),
            object: entry.shape.object(),
            members: members.iter().map(share).collect(),
            mtu_bytes: u32::from(self.targets.table().mtu(entry.hop)),
            users: u64::from(entry.users),
        }
    }

    /// Where a target leads, if it is one adjacency.
    fn hop(&self, mirror: &Mirror, target: Target) -> Option<Hop> {
        let entry = self.targets.get(target);
        let State::Plain(adjacency) = &entry.state else { return None };
        let mac = match self.targets.table().action(entry.hop) {
            Action::Forward { mac, .. } => Some(Mac(mac)),
            _ => None,
        };
        let link = mirror.link(adjacency.ifindex);
        Some(Hop {
            gateway: adjacency.gateway,
            interface: link.map_or_else(String::new, |link| link.name.to_string()),
            ifindex: adjacency.ifindex,
            mac,
        })
    }

    /// Routes, as asked for.
    ///
    /// # Errors
    /// If there is no such VRF, or what should be an address or a prefix is none.
    pub fn shown_routes(&self, mirror: &Mirror, query: &RouteQuery) -> Result<Routes, Error> {
        let vrf = query.vrf.as_deref().map(|name| table_of_vrf(mirror, name)).transpose()?;
        let mut routes = Routes::default();
        let mut left = query.limit.unwrap_or(ROUTES_MAX).min(ROUTES_MAX);
        if query.family != Some(6) {
            let wanted = Wanted::<u32>::of(query)?;
            routes.total_ipv4 = self.list(mirror, &self.ipv4, vrf, &wanted, &mut left, &mut routes);
        }
        if query.family != Some(4) && routes.next.is_none() {
            let wanted = Wanted::<u128>::of(query)?;
            routes.total_ipv6 = self.list(mirror, &self.ipv6, vrf, &wanted, &mut left, &mut routes);
        }
        Ok(routes)
    }

    fn list<B: BuildFib>(
        &self,
        mirror: &Mirror,
        family: &family::Tables<B>,
        vrf: Option<u32>,
        wanted: &Wanted<B::Address>,
        left: &mut usize,
        routes: &mut Routes,
    ) -> usize
    where
        B::Address: Side,
    {
        let Some(table) = family.vrfs.get(&vrf) else { return 0 };
        let rib = table.fib().rib();
        let mut add = |prefix, hop| {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            routes.routes.push(self.route(mirror, table, prefix, hop));
            true
        };
        match wanted {
            Wanted::Address(address) => {
                // What the lookup itself says, by the prefix that it comes from.
                let hop = table.fib().reader().lookup(*address);
                let prefix = rib.longest_match(*address).map_or(Prefix::default(), |(prefix, _)| prefix);
                add(prefix, hop);
            }
            Wanted::Within { prefix, after } => {
                let behind =
                    rib.within(*prefix).skip_while(|(prefix, _)| after.is_some_and(|after| *prefix <= after));
                let mut last = None;
                for (prefix, hop) in behind {
                    if !add(prefix, hop) {
                        routes.next = last;
                        break;
                    }
                    last = Some(prefix.to_string());
                }
            }
            Wanted::None => {}
        }
        rib.len()
    }

    fn route<B: BuildFib>(
        &self,
        mirror: &Mirror,
        table: &super::table::Table<B>,
        prefix: Prefix<B::Address>,
        hop: bm_fib::NextHop,
    ) -> Route
    where
        B::Address: Side,
    {
        let of_ours = B::Address::routes(mirror);
        let stages = table.stages().tables.iter();
        let body =
            stages.filter_map(|number| Some((*number, mirror.active(of_ours, *number, prefix)?.1))).next();
        let target = self.targets.of_hop(hop);
        let is_host = prefix.length() == <B::Address as bm_wire::prefix::Address>::WIDTH
            && table.is_host_entry(prefix.first());
        let lack = table
            .refused()
            .find(|(refused, _)| *refused == prefix)
            .map(|(_, lack)| format!("no room: {lack:?}"));
        let hops = target.map(|target| self.hops(mirror, target)).unwrap_or_default();
        Route {
            prefix: prefix.to_string(),
            state: match (&lack, is_host) {
                (Some(_), _) => RouteState::Refused,
                (None, true) => RouteState::Neighbor,
                (None, false) => RouteState::Route,
            },
            table: body.map_or(0, |(table, _)| table),
            kind: body.map_or_else(|| "unicast".into(), |(_, body)| body.kind.to_string()),
            protocol: body.map_or_else(String::new, |(_, body)| protocol_name(body.protocol)),
            metric: body.map_or(0, |(_, body)| body.priority),
            next_hop: hop.0,
            action: shown(self.targets.table().action(hop)),
            hops,
            mtu_bytes: u32::from(self.targets.table().mtu(hop)),
            reason: lack,
        }
    }

    /// All places that a target leads to.
    fn hops(&self, mirror: &Mirror, target: Target) -> Vec<Hop> {
        match &self.targets.get(target).state {
            State::Members(members) => {
                let alive = members.iter().filter(|member| member.alive);
                alive.filter_map(|member| self.hop(mirror, member.target)).collect()
            }
            _ => self.hop(mirror, target).into_iter().collect(),
        }
    }
}

/// Which routes of a family are asked for.
enum Wanted<A> {
    Address(A),
    Within {
        prefix: Prefix<A>,
        after: Option<Prefix<A>>,
    },
    /// The question is about the other family.
    None,
}

impl<A: Side> Wanted<A>
where
    Prefix<A>: FromStr<Err = bm_wire::prefix::NotAPrefix>,
{
    fn of(query: &RouteQuery) -> Result<Self, Error> {
        if let Some(text) = &query.address {
            let address: IpAddr =
                text.parse().map_err(|_| Error::new(format_args!("{text:?} is no address")))?;
            return Ok(A::number(address).map_or(Self::None, Self::Address));
        }
        let parse = |text: &String| -> Result<Option<Prefix<A>>, Error> {
            let other = |why| {
                Error::new(format_args!("{text:?}: {why}")).mend("write it as 192.0.2.0/24 or 2001:db8::/32")
            };
            match text.parse::<Prefix<A>>() {
                Ok(prefix) => Ok(Some(prefix)),
                // Of the other family, it says nothing about this one.
                Err(bm_wire::prefix::NotAPrefix::Address) if is_of_other_family::<A>(text) => Ok(None),
                Err(why) => Err(other(why)),
            }
        };
        let after = match &query.after {
            Some(text) => parse(text)?,
            None => None,
        };
        let prefix = match &query.prefix {
            Some(text) => match parse(text)? {
                Some(prefix) => prefix,
                None => return Ok(Self::None),
            },
            // IPv6 comes behind all of IPv4: a cursor there leaves nothing of IPv4.
            None if after.is_none() && query.after.is_some() && A::WIDTH == 32 => return Ok(Self::None),
            None => Prefix::default(),
        };
        Ok(Self::Within { prefix, after })
    }
}

fn is_of_other_family<A: Side>(text: &str) -> bool {
    let address = text.split_once('/').map_or(text, |(address, _)| address);
    address.parse::<IpAddr>().is_ok_and(|address| A::number(address).is_none())
}

fn table_of_vrf(mirror: &Mirror, name: &str) -> Result<u32, Error> {
    match mirror.link_named(name).map(|link| &link.kind) {
        Some(Kind::Vrf { table }) => Ok(*table),
        _ => Err(Error::new(format_args!("no VRF is called {name:?}")).mend("`ip vrf` lists them")),
    }
}

fn vrf_name(mirror: &Mirror, table: u32) -> Option<String> {
    let is = |kind: &Kind| matches!(kind, Kind::Vrf { table: of } if *of == table);
    mirror.links().find(|link| is(&link.kind)).map(|link| link.name.to_string())
}

fn shown(action: Action) -> bm_api::Action {
    match action {
        Action::Forward { .. } => bm_api::Action::Forward,
        Action::Host => bm_api::Action::Host,
        Action::Resolve => bm_api::Action::Resolve,
        Action::Blackhole => bm_api::Action::Blackhole,
        Action::Unreachable => bm_api::Action::Unreachable,
        Action::Prohibit => bm_api::Action::Prohibit,
        Action::Group { .. } => bm_api::Action::Group,
        Action::None => bm_api::Action::NoRoute,
    }
}

/// As `ip neigh` names states.
fn state_name(number: u16) -> &'static str {
    match number {
        state::INCOMPLETE => "incomplete",
        state::REACHABLE => "reachable",
        state::STALE => "stale",
        state::DELAY => "delay",
        state::PROBE => "probe",
        state::FAILED => "failed",
        state::NOARP => "noarp",
        state::PERMANENT => "permanent",
        _ => "none",
    }
}

/// As `ip route` names those who make routes (`/etc/iproute2/rt_protos`); others by their number.
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
