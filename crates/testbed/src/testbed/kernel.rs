//! Adds a table of a million routes to the kernel, and removes it.
//!
//! `ip -batch` takes 30 to 40 us per route, most of it in `ip` itself; `bm_netlink::Batch` sends thousands of routes
//! in one call. IPv4 and IPv6 have separate locks in recent kernels, so each family has its own thread.
//! Shorter prefixes come first: the kernel's trie is then rebuilt far less often than in the order of addresses,
//! which halves the time.

use std::net::IpAddr;

use bm_netlink::{Batch, Error, Hop, Outcome, RouteBody, Via};

use super::{Testbed, TestbedError, next_hop_ipv4, next_hop_ipv6};
use crate::interrupt;
use crate::tables::{Route, Table};

/// What to do with each route of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Add it; an existing one is an error.
    Add,
    /// Add it, or replace its next hop.
    Replace,
    /// Remove it.
    Delete,
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteChanges {
    /// Routes that the kernel accepted.
    pub done: usize,
    /// Routes that it rejected.
    pub refused: usize,
    /// The error of the first one that it rejected.
    pub first_error: Option<String>,
}

impl RouteChanges {
    fn from_outcome(outcome: &Outcome) -> Self {
        Self {
            done: outcome.sent - outcome.refused,
            refused: outcome.refused,
            first_error: outcome.first.first().map(|refusal| refusal.error.to_string()),
        }
    }

    fn plus(mut self, other: Self) -> Self {
        self.done += other.done;
        self.refused += other.refused;
        self.first_error = self.first_error.or(other.first_error);
        self
    }
}

impl Testbed {
    /// Changes the main table of the router's kernel. Next hops must be among those of the test bed.
    pub fn change_routes(&self, change: Change, table: &Table) -> Result<RouteChanges, TestbedError> {
        debug_assert!(table.next_hop_max() <= self.next_hops);
        let index = self.router.index(&self.interfaces.router_out)?;
        let numbers = 0..=self.next_hops;
        let bodies4: Vec<_> =
            numbers.clone().map(|number| body(index, next_hop_ipv4(number).into())).collect();
        let bodies6: Vec<_> = numbers.map(|number| body(index, next_hop_ipv6(number).into())).collect();
        std::thread::scope(|scope| {
            let ipv6 = scope.spawn(|| self.router.enter(|| send_all(change, &table.ipv6, &bodies6)));
            let ipv4 = self.router.enter(|| send_all(change, &table.ipv4, &bodies4));
            let ipv6 = ipv6.join().expect("the sender has no panic to pass on");
            Ok(ipv4?.plus(ipv6?))
        })
    }
}

/// The kernel's numbers for its main table, and for routes of a BGP daemon, which these routes imitate.
const TABLE_MAIN: u32 = 254;
const PROTOCOL_BGP: u8 = 186;
/// Number of routes between two checks for signals.
const STEP: usize = 10_000;

fn body(index: u32, gateway: IpAddr) -> RouteBody {
    RouteBody { protocol: PROTOCOL_BGP, via: Via::One(Hop::via(gateway, index)), ..RouteBody::default() }
}

/// Sends the routes; `bodies` has the body of each next hop by its number.
fn send_all<A: bm_wire::prefix::Address>(
    change: Change,
    routes: &[Route<A>],
    bodies: &[RouteBody],
) -> Result<RouteChanges, TestbedError> {
    let mut routes: Vec<&Route<A>> = routes.iter().collect();
    routes.sort_by_key(|route| route.prefix.length());
    let mut batch = Batch::open().map_err(failed)?;
    for step in routes.chunks(STEP) {
        interrupt::check()?;
        for route in step {
            let body = &bodies[usize::from(route.next_hop)];
            match change {
                Change::Add => batch.add_route(TABLE_MAIN, route.prefix, body),
                Change::Replace => batch.replace_route(TABLE_MAIN, route.prefix, body),
                Change::Delete => batch.delete_route(TABLE_MAIN, route.prefix, body),
            }
            .map_err(failed)?;
        }
    }
    Ok(RouteChanges::from_outcome(&batch.finish().map_err(failed)?))
}

fn failed(error: Error) -> TestbedError {
    TestbedError::System {
        what: "change the kernel's routes".into(),
        error: std::io::Error::other(error.to_string()),
    }
}
