//! IPv4 gateways that are, or were, local: only Linux knows the way through them.
//!
//! Linux ignores the gateway of a route if it was local when the route was added, by an address or by any other route of
//! type `local`, and asks for the destination on the link instead. It stays so when the gateway is local no more, and no
//! message tells.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use bm_netlink::route::TABLE_LOCAL;
use bm_netlink::{Mirror, RouteBody, RouteKind};
use bm_wire::prefix::Prefix;

use super::settings::BY_KERNEL;

/// Which gateways these are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnGateways {
    /// Addresses of this machine, and gateways that were local while a route led through them.
    single: BTreeSet<Ipv4Addr>,
    /// What routes of the administrator's make local.
    prefixes: Vec<Prefix<u32>>,
}

impl OwnGateways {
    /// The gateways of now. `own` are the machine's addresses; `in_use`, with their links, are the neighbors that next hops
    /// lead to, and stay among these if they were `before`.
    pub fn now(
        mirror: &Mirror,
        own: &[Ipv4Addr],
        before: &Self,
        in_use: impl Iterator<Item = (u32, IpAddr)>,
    ) -> Self {
        let kept = in_use.filter_map(|(_, gateway)| match gateway {
            IpAddr::V4(address) => before.contains(gateway).then_some(address),
            IpAddr::V6(_) => None,
        });
        Self { single: kept.chain(own.iter().copied()).collect(), prefixes: local_prefixes(mirror) }
    }

    /// The neighbors of `in_use` that are among these and were not before.
    pub fn new_since(
        &self,
        before: &Self,
        in_use: impl Iterator<Item = (u32, IpAddr)>,
    ) -> impl Iterator<Item = (u32, IpAddr)> {
        in_use.filter(|(_, gateway)| self.contains(*gateway) && !before.contains(*gateway))
    }

    /// Whether Linux may ignore a gateway.
    pub fn contains(&self, gateway: IpAddr) -> bool {
        let IpAddr::V4(gateway) = gateway else { return false };
        self.single.contains(&gateway) || self.prefixes.iter().any(|prefix| prefix.contains(gateway.into()))
    }

    /// Whether local routes have changed.
    pub fn are_outdated(&self, mirror: &Mirror) -> bool {
        self.prefixes != local_prefixes(mirror)
    }
}

/// The prefixes in the table of local routes that are not the kernel's own.
fn local_prefixes(mirror: &Mirror) -> Vec<Prefix<u32>> {
    let routes = mirror.ipv4();
    if !routes.bodies().any(|(_, body)| is_given(body)) {
        return Vec::new();
    }
    let table = routes.table(TABLE_LOCAL).into_iter().flat_map(|table| table.iter());
    let given = table.filter(|(_, ids)| ids.iter().filter_map(|id| routes.body(*id)).any(is_given));
    let mut prefixes: Vec<_> = given.map(|(prefix, _)| prefix).collect();
    prefixes.sort_unstable();
    prefixes
}

/// Whether an administrator or a routing daemon has added a local route.
fn is_given(body: &RouteBody) -> bool {
    body.kind == RouteKind::Local && body.protocol != BY_KERNEL
}
