//! A table for a family whose routing rules only Linux supports: all packets go to Linux, but which of them are for this
//! machine remains known, since filters pass those.

use bm_fib::{Fib, NextHop};
use bm_wire::prefix::Address;
use std::sync::Arc;

/// Two next hops, depending on the one in another table.
pub(super) struct LinuxFib<A> {
    /// For all other packets.
    host: NextHop,
    /// For packets to this machine.
    local: NextHop,
    routes: Option<Arc<dyn Fib<Address = A>>>,
}

impl<A: Address> LinuxFib<A> {
    /// A table that knows as much of these routes, with the next hops to Linux and to this machine.
    pub fn over(
        routes: Option<Arc<dyn Fib<Address = A>>>,
        [host, local]: [NextHop; 2],
    ) -> Arc<dyn Fib<Address = A>> {
        Arc::new(Self { host, local, routes })
    }
}

impl<A: Address> Fib for LinuxFib<A> {
    type Address = A;

    fn lookup(&self, address: A) -> NextHop {
        match &self.routes {
            Some(routes) if routes.lookup(address) == self.local => self.local,
            _ => self.host,
        }
    }
}
