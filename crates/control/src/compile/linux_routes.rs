//! The prefixes of the main table that lead where only Linux can send, so that ports of workers can leave packets there in
//! the kernel.
//!
//! Nothing depends on whether they are complete, since workers hand such packets to Linux as well. So large tables have
//! none: looking through them after each change would take too long.

use super::Compiler;
use super::family::Tables;
use super::fib_info::RouteFamily;
use super::targets::Targets;
use bm_fib::NextHop;
use bm_fib::next_hop::Action;
use bm_port::LinuxRoute;
use bm_wire::prefix::Prefix;

/// The largest table that is looked through.
const ROUTES_MAX: usize = 4096;

impl Compiler {
    /// Whether the tables are small enough that [`Compiler::linux_routes`] looks through them.
    pub fn has_linux_routes(&self) -> bool {
        is_small(&self.ipv4) || is_small(&self.ipv6)
    }

    /// These prefixes, and longer ones within them that lead elsewhere.
    pub fn linux_routes(&self) -> Vec<LinuxRoute> {
        let mut routes = of_family(&self.ipv4, &self.targets, LinuxRoute::IPV4_MIN);
        routes.extend(of_family(&self.ipv6, &self.targets, LinuxRoute::IPV6_MIN));
        routes
    }
}

fn is_small<A: RouteFamily>(tables: &Tables<A>) -> bool {
    tables.vrfs.get(&None).is_some_and(|table| table.fib().rib().len() <= ROUTES_MAX)
}

fn of_family<A: RouteFamily>(tables: &Tables<A>, targets: &Targets, length_min: u8) -> Vec<LinuxRoute> {
    let Some(table) = tables.vrfs.get(&None).filter(|_| is_small(tables)) else { return Vec::new() };
    let rib = table.fib().rib();
    let mut routes: Vec<LinuxRoute> = Vec::new();
    for (prefix, hop) in rib.iter() {
        if prefix.length() < length_min || !leads_to_linux(targets, hop) {
            continue;
        }
        routes.push(linux_route(prefix, true));
        let others = rib.within(prefix).filter(|(_, hop)| !leads_to_linux(targets, *hop));
        routes.extend(others.map(|(prefix, _)| linux_route(prefix, false)));
    }
    routes.sort_unstable_by_key(|route| (route.address, route.length));
    routes.dedup();
    routes
}

fn leads_to_linux(targets: &Targets, hop: NextHop) -> bool {
    matches!(targets.table().action(hop), Action::Host | Action::LinuxOnly)
}

fn linux_route<A: RouteFamily>(prefix: Prefix<A>, to_linux: bool) -> LinuxRoute {
    LinuxRoute { address: prefix.first().show(), length: prefix.length(), to_linux }
}
