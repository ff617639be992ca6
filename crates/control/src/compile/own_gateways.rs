//! Gateways that are addresses of this machine, through which only Linux knows the way.

use std::net::{IpAddr, Ipv4Addr};

use super::Compiler;
use super::interfaces::Interfaces;
use super::pending::Pending;

impl Compiler {
    /// Notes the machine's own addresses, and those that it had while a route led through them. Next hops with a new one have
    /// to be compiled again, as if that neighbor had changed.
    pub(super) fn note_own_gateways(
        &self,
        interfaces: &mut Interfaces,
        own: &[Ipv4Addr],
        pending: &mut Pending,
    ) {
        let before = &self.state.interfaces.own_gateways;
        let kept = before.iter().filter(|address| self.targets.has_gateway(IpAddr::V4(**address)));
        interfaces.own_gateways = kept.chain(own).copied().collect();
        for address in interfaces.own_gateways.difference(before) {
            pending.neighbors.extend(interfaces.ifindices().map(|link| (link, IpAddr::V4(*address))));
        }
    }
}
