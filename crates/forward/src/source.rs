//! Checks of the source address (RFC 3704; Linux's `fib_validate_source`).
//!
//! Two checks, both for packets that would be forwarded: is the source an address of this machine, and, if
//! `rp_filter` is on, does a route lead back to it through the interface on which it arrived?

use bm_fib::NextHop;
use bm_fib::next_hop::{Action, NextHops};

use crate::tables::{ReversePath, Tables};

/// Whether an IPv4 source is an address of this machine in the routing table `vrf`.
///
/// The list covers all VRFs, so it is not enough: another VRF may use the same address for a host.
pub(crate) fn is_own_ipv4(tables: &Tables, vrf: u16, source: u32) -> bool {
    tables.compiled.local.holds(source)
        && tables
            .vrfs
            .get(usize::from(vrf))
            .is_some_and(|vrf| tables.next_hops.action(vrf.ipv4.lookup(source)) == Action::Host)
}

/// Whether the route back to a source allows it on `interface`; `hop` is the result of looking up the source.
pub(crate) fn passes(next_hops: &NextHops, hop: NextHop, filter: ReversePath, interface: u16) -> bool {
    let entry = next_hops.entry(hop);
    match (filter, entry.action()) {
        (ReversePath::Off, _) => true,
        // A reject route is not a valid reverse path.
        (_, Action::None | Action::Blackhole | Action::Unreachable | Action::Prohibit) => false,
        (ReversePath::Loose, _) => true,
        (ReversePath::Strict, Action::Group { count, .. }) => {
            (0..count).any(|hash| leads_out_of(next_hops, next_hops.select(entry, hash), interface))
        }
        (ReversePath::Strict, _) => leads_out_of(next_hops, hop, interface),
    }
}

fn leads_out_of(next_hops: &NextHops, hop: NextHop, interface: u16) -> bool {
    match next_hops.action(hop) {
        Action::Forward { interface: out, .. } => out == interface,
        Action::Resolve | Action::LinuxOnly => next_hops.gateway(hop).interface == u32::from(interface),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_fib::next_hop::{Gateway, NextHopWriter};
    use bm_fib::published::Readers;

    #[test]
    fn strict_wants_the_same_interface_and_loose_any_route() {
        let mut writer = NextHopWriter::with_room(16, 10, &Readers::new()).unwrap();
        let forward = |interface| Action::Forward { mac: [2; 6], interface };
        let gateway = Gateway { address: None, interface: 1 };
        let mut add = |action| writer.add(action, gateway, 0).unwrap();
        let [one, two, resolve, host] = [forward(1), forward(2), Action::Resolve, Action::Host].map(&mut add);
        let rejects = [Action::Blackhole, Action::Unreachable, Action::Prohibit].map(&mut add);
        let group = writer.add_group(&[(one, 1), (two, 1)]).unwrap();
        let table = writer.table();
        let strict = |hop| passes(table, hop, ReversePath::Strict, 1);
        let loose = |hop| passes(table, hop, ReversePath::Loose, 1);
        assert_eq!([one, two, resolve, host, group].map(strict), [true, false, true, false, true]);
        assert_eq!([one, two, resolve, host, group].map(loose), [true; 5]);
        assert!(!passes(table, group, ReversePath::Strict, 3));
        for reject in rejects.into_iter().chain([NextHop::NONE]) {
            assert_eq!((strict(reject), loose(reject)), (false, false));
            assert!(passes(table, reject, ReversePath::Off, 1));
        }
    }
}
