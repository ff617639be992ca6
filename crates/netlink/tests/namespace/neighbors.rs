//! Neighbors: added by commands, resolved on request, failed.

use super::netns::Namespace;
use super::support::{agrees, alone, settle, until, watch};
use bm_netlink::neighbor::state;
use bm_netlink::{Batch, Mirror};
use std::net::IpAddr;

fn state_of(mirror: &Mirror, address: &str) -> u16 {
    let (a, address) = (mirror.link_named("a").unwrap().ifindex, address.parse().unwrap());
    mirror.neighbor(a, address).map_or(0, |neighbor| neighbor.state)
}

#[test]
fn added_changed_and_deleted_by_commands() {
    let Some(namespace) = Namespace::new("neigh").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = watch(alone());
    for (command, expected) in [
        ("neigh add 192.0.2.7 lladdr 02:00:00:00:00:07 dev a", state::PERMANENT),
        ("neigh replace 192.0.2.7 lladdr 02:00:00:00:00:08 dev a nud stale", state::STALE),
        ("neigh change 192.0.2.7 lladdr 02:00:00:00:00:08 dev a nud reachable", state::REACHABLE),
        ("neigh change 192.0.2.7 lladdr 02:00:00:00:00:08 dev a nud noarp", state::NOARP),
        ("neigh change 192.0.2.7 dev a nud failed", state::FAILED),
        ("neigh del 192.0.2.7 dev a", 0),
        ("neigh add proxy 192.0.2.8 dev a", 0),
    ] {
        namespace.ip(command);
        agrees(&mut watch, command);
        assert_eq!(state_of(watch.mirror(), "192.0.2.7"), expected, "{command}");
    }
    assert_eq!(state_of(watch.mirror(), "192.0.2.8"), 0);
}

/// With `arp off` Linux makes entries without asking and without announcing them.
#[test]
fn entries_of_a_link_without_arp_are_no_difference() {
    let Some(namespace) = Namespace::new("noarp").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = watch(alone());
    namespace.ip("link set dev a arp off");
    agrees(&mut watch, "arp off");
    for (own, to) in [("192.0.2.1:0", "192.0.2.50:9"), ("[2001:db8:a::1]:0", "[2001:db8:a::50]:9")] {
        let socket = std::net::UdpSocket::bind(own).unwrap();
        socket.send_to(b"hi", to).unwrap();
    }
    agrees(&mut watch, "silent entries");
    namespace.ip("link set dev a arp on");
    agrees(&mut watch, "arp on");
    for address in ["192.0.2.50", "2001:db8:a::50"] {
        assert_eq!(state_of(watch.mirror(), address), 0);
    }
}

#[test]
fn the_kernel_resolves_and_confirms_neighbors_in_use() {
    let Some(namespace) = Namespace::new("use").map(Namespace::with_links) else { return };
    let Some(peer) = Namespace::new("peer") else { return };
    namespace.ip(&format!("link set dev a2 netns {}", peer.name));
    peer.ip("link set dev a2 address 02:00:00:00:00:02 up");
    peer.ip("addr add 192.0.2.2/24 dev a2");
    peer.ip("addr add 2001:db8:a::2/64 dev a2 nodad");
    namespace.enter();
    let mut watch = watch(alone());
    until(&mut watch, "carrier", |mirror| mirror.link_named("a").is_some_and(|link| link.running()));
    let a = watch.mirror().link_named("a").unwrap().ifindex;
    let mac = Some([2, 0, 0, 0, 0, 2]);
    let mut batch = Batch::open().unwrap();
    let ask = |batch: &mut Batch, addresses: &[&str]| {
        for address in addresses {
            batch.use_neighbor(a, &address.parse().unwrap()).unwrap();
        }
        let outcome = batch.finish().unwrap();
        assert_eq!(outcome.refused, 0, "{:?}", outcome.first);
    };
    ask(&mut batch, &["192.0.2.2", "2001:db8:a::2", "192.0.2.99"]);
    for address in ["192.0.2.2", "2001:db8:a::2"] {
        let address: IpAddr = address.parse().unwrap();
        until(&mut watch, "resolution", |mirror| {
            mirror.neighbor(a, address).is_some_and(|neighbor| neighbor.reachable_at() == mac)
        });
    }
    until(&mut watch, "failure", |mirror| state_of(mirror, "192.0.2.99") == state::FAILED);
    // A stale entry is confirmed again once it is used.
    namespace.ip("neigh change 192.0.2.2 dev a nud stale");
    until(&mut watch, "staleness", |mirror| state_of(mirror, "192.0.2.2") == state::STALE);
    assert!(watch.mirror().neighbor(a, "192.0.2.2".parse().unwrap()).unwrap().needs_use());
    ask(&mut batch, &["192.0.2.2"]);
    until(&mut watch, "confirmation", |mirror| state_of(mirror, "192.0.2.2") == state::REACHABLE);
    // A changed MAC address is a single change, that of the neighbor (docs/conformance.md 70).
    settle(&mut watch);
    namespace.ip("neigh replace 192.0.2.2 lladdr 02:00:00:00:00:03 dev a nud reachable");
    let changes = settle(&mut watch);
    assert_eq!(changes, [bm_netlink::Change::Neighbor(a, "192.0.2.2".parse().unwrap())]);
    agrees(&mut watch, "all that");
}

#[test]
fn a_permanent_neighbor_stays_permanent() {
    let Some(namespace) = Namespace::new("kept").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = watch(alone());
    namespace.ip("neigh add 192.0.2.7 lladdr 02:00:00:00:00:07 dev a nud permanent");
    until(&mut watch, "the neighbor", |mirror| state_of(mirror, "192.0.2.7") == state::PERMANENT);
    let a = watch.mirror().link_named("a").unwrap().ifindex;
    let address: IpAddr = "192.0.2.7".parse().unwrap();
    assert!(watch.mirror().neighbor(a, address).unwrap().is_permanent());
    // As if it had been added after the caller looked.
    let mut batch = Batch::open().unwrap();
    batch.resolve_neighbor(a, &address).unwrap();
    let outcome = batch.finish().unwrap();
    assert_eq!((outcome.refused, outcome.first[0].error.errno()), (1, Some(libc::EEXIST)));
    let neighbors = namespace.ip_output("neigh show 192.0.2.7");
    assert!(neighbors.contains("02:00:00:00:00:07") && neighbors.contains("PERMANENT"), "{neighbors}");
    agrees(&mut watch, "the request");
}

#[test]
fn a_refused_request_has_the_kernels_error_message() {
    let Some(namespace) = Namespace::new("refused").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut batch = Batch::open().unwrap();
    batch.use_neighbor(1_000_000, &"192.0.2.2".parse().unwrap()).unwrap();
    let body = bm_netlink::RouteBody {
        via: bm_netlink::Via::One(bm_netlink::Hop::via("203.0.113.1".parse().unwrap(), 0)),
        ..Default::default()
    };
    batch.add_route::<u32>(254, "10.0.0.0/8".parse().unwrap(), &body).unwrap();
    let outcome = batch.finish().unwrap();
    assert_eq!((outcome.sent, outcome.refused), (2, 2));
    let output: Vec<_> =
        outcome.first.iter().map(|refusal| (refusal.index, refusal.error.to_string())).collect();
    assert_eq!((output[0].0, output[1].0), (0, 1));
    assert!(output[1].1.contains("Nexthop has invalid gateway"), "{output:?}");
}
