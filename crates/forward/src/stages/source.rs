//! Checks of the source address (RFC 3704; Linux's `fib_validate_source`).
//!
//! Two checks, both for packets that would be forwarded: is the source an address of this machine, and, if
//! `rp_filter` is on, does a route lead back to it through the interface on which it arrived?

use bm_fib::NextHop;
use bm_fib::next_hop::{Action, NextHops};

use bm_stats::Reason;

use crate::compiled::Ingress;
use crate::tables::{ReversePath, Tables};
use crate::verdict::{Refusal, Verdict};

/// Why a packet that came in on `on`, the interface with this index, is not forwarded because of its source.
pub(crate) fn refused(tables: &Tables, on: &Ingress, interface: u16, source: u32) -> Option<Refusal> {
    if let Some(refusal) = refused_ipv4(tables, on, source) {
        return Some(refusal);
    }
    if on.reverse_path == ReversePath::Off {
        return None;
    }
    let back = tables.vrfs.get(usize::from(on.vrf)).map_or(NextHop::NONE, |vrf| vrf.ipv4.lookup(source));
    refused_path(&tables.next_hops, back, on.reverse_path, interface)
}

/// Why a packet that came in on `on` is not forwarded because of its source, whatever the reverse path.
///
/// An address of this machine is refused, as in Linux. The list of them covers all VRFs, so it is not enough: another
/// VRF may use the same address for a host. Other sources without a unicast route (broadcast, or covered by a local
/// route) are for Linux to judge, and so are its own with `accept_local`: what else it accepts then depends on whether
/// any route has a realm.
fn refused_ipv4(tables: &Tables, on: &Ingress, source: u32) -> Option<Refusal> {
    let local = &tables.compiled.local;
    if !local.may_hold(source) {
        return None;
    }
    let table = tables.vrfs.get(usize::from(on.vrf))?;
    if tables.next_hops.action(table.ipv4.lookup(source)) != Action::Host {
        return None;
    }
    Some(match !on.accept_local && local.holds(source) {
        true => Refusal::Drop(Reason::Ipv4Source),
        false => Refusal::Slow(Verdict::Host),
    })
}

/// Why a packet is not forwarded because of the reverse path of its source. Linux judges a source whose route only it
/// knows: a route with a TOS, for example, may not be one for this packet.
fn refused_path(next_hops: &NextHops, hop: NextHop, filter: ReversePath, interface: u16) -> Option<Refusal> {
    if filter != ReversePath::Off && next_hops.action(hop) == Action::Host {
        return Some(Refusal::Slow(Verdict::Host));
    }
    (!passes(next_hops, hop, filter, interface)).then_some(Refusal::Drop(Reason::ReversePath))
}

/// Whether the best route back to a source allows it on `interface`; `hop` is the result of looking up the source.
pub(crate) fn passes(next_hops: &NextHops, hop: NextHop, filter: ReversePath, interface: u16) -> bool {
    let entry = next_hops.entry(hop);
    match (filter, entry.action()) {
        (ReversePath::Off, _) => true,
        // A reject route is not a valid reverse path.
        (_, Action::None | Action::Blackhole | Action::Unreachable | Action::Prohibit) => false,
        (ReversePath::Loose, _) => true,
        (ReversePath::Strict | ReversePath::Feasible, Action::Group { count, .. }) => {
            (0..count).any(|hash| leads_out_of(next_hops, next_hops.select(entry, hash), interface))
        }
        (ReversePath::Strict | ReversePath::Feasible, _) => leads_out_of(next_hops, hop, interface),
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
    use crate::tables::DoubtfulSources;
    use bm_fib::next_hop::{Gateway, NextHopWriter};
    use bm_fib::published::Readers;

    #[test]
    fn sources_without_a_unicast_route_are_for_linux_to_judge() {
        let lab = crate::testing::Lab::new(
            "interface left 0 02:00:00:00:00:01 192.0.2.1/24
            route 192.0.2.1/32 host
            route 192.0.2.255/32 host
            route 10.99.0.0/24 host
            route 10.0.0.0/8 blackhole",
        );
        let (own, broadcast, anyip, other): (u32, u32, u32, u32) =
            (0xc000_0201, 0xc000_02ff, 0x0a63_0005, 0x0a01_0101);
        let judge = |doubtful: DoubtfulSources, accept_local, reverse_path| {
            let tables = lab.tables().with_doubtful_sources(&doubtful);
            let on = Ingress { accept_local, reverse_path, ..tables.compiled.ingress[0] };
            [own, broadcast, anyip, other].map(|source| refused_ipv4(&tables, &on, source))
        };
        let (drop, slow) = (Some(Refusal::Drop(Reason::Ipv4Source)), Some(Refusal::Slow(Verdict::Host)));
        let single = DoubtfulSources::Single(vec![broadcast.into()]);
        assert_eq!(judge(DoubtfulSources::default(), false, ReversePath::Off)[0], drop);
        assert_eq!(judge(single, false, ReversePath::Off)[..2], [drop, slow]);
        assert_eq!(judge(DoubtfulSources::All, false, ReversePath::Off), [drop, slow, slow, None]);
        for reverse_path in [ReversePath::Off, ReversePath::Strict] {
            assert_eq!(judge(DoubtfulSources::All, true, reverse_path), [slow, slow, slow, None]);
        }
    }

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
        let refused = |hop, filter| refused_path(table, hop, filter, 1);
        let by_linux = Some(Refusal::Slow(Verdict::Host));
        assert_eq!(
            [ReversePath::Strict, ReversePath::Loose].map(|filter| refused(host, filter)),
            [by_linux; 2]
        );
        assert_eq!(refused(host, ReversePath::Off), None);
        assert_eq!(refused(one, ReversePath::Loose), None);
        assert_eq!(refused(two, ReversePath::Strict), Some(Refusal::Drop(Reason::ReversePath)));
    }
}
