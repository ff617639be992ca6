//! Four nodes as one router: a full mesh of veth pairs, and a host on the external port of each.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod balancing;
mod cable;
mod detection;
mod etcd;
mod hosts;
mod members;
mod mesh;
mod restarts;

use bm_tests::daemon::{Daemon, eventually, mac, ping};
use bm_tests::netns::Namespace;
use bm_tests::packet::{Ip4, Ip6, ip_frame, routed};
use bm_wire::Mac;
use mesh::{MOMENT, Mesh, NODES, all_output, assert_closed, expect, link, parsed, source_via, total};

#[test]
fn four_nodes_forward_as_one_router() {
    let Some(mesh) = Mesh::new("cl-four") else { return };
    let Some(daemons) = mesh.start_all() else { return };
    mesh.until_known(&daemons);
    let resolved: u64 = daemons.iter().map(|daemon| total(daemon, "linux_resolve")).sum();
    // From each host to each other: one hop less, whatever the number of nodes.
    for (n, m) in (0..NODES).flat_map(|n| (0..NODES).map(move |m| (n, m))).filter(|(n, m)| n != m) {
        ping(&mesh.hosts[n], &format!("10.0.{m}.2"), 1400, 63);
        ping(&mesh.hosts[n], &format!("fd00:{m}::2"), 1400, 63);
    }
    // An address of another node: its Linux answers, straight to the host.
    ping(&mesh.hosts[0], "10.0.3.1", 56, 64);
    let now: u64 = daemons.iter().map(|daemon| total(daemon, "linux_resolve")).sum();
    assert_eq!(now, resolved, "all neighbors were known");
    assert!(total(&daemons[3], "linux_host") >= 5);
    // Packets byte by byte: only the TTL and the checksum change.
    let [near, far] = [0, 3].map(|n| (mac(&mesh.hosts[n], "e"), mac(&mesh.routers[n], "ext0")));
    let [source, sink] = [0, 3].map(|n| mesh.hosts[n].packet_socket("e"));
    let before = (parsed(&daemons), all_output(&daemons));
    let packets = [
        Ip4::udp("10.0.0.2", "10.0.3.2", 18).id(1).bytes(),
        Ip4::udp("10.0.0.2", "10.0.3.2", 1472).id(2).bytes(),
        Ip6::udp("fd00:0::2", "fd00:3::2", 1452).bytes(),
    ];
    for packet in &packets {
        source.send(&ip_frame(near.1, near.0, packet)).unwrap();
        expect(&sink, &ip_frame(far.0, far.1, &routed(packet)), "a packet through the cluster");
    }
    // The hosts answer with ICMP errors. One header is parsed for each packet, at its input node.
    eventually("as many headers were parsed as packets have left", || {
        let (headers, packets) = (parsed(&daemons) - before.0, all_output(&daemons) - before.1);
        headers >= 3 && headers == packets
    });
    daemons.iter().for_each(assert_closed);
    links_lose_nothing(&daemons);
    other_nodes_can_be_asked(&daemons);
    let pins: Vec<_> = mesh.routers.iter().map(Namespace::cluster_pins).collect();
    daemons.into_iter().for_each(Daemon::stop);
    for (n, pins) in pins.iter().enumerate() {
        assert!(!pins.exists(), "the program of n{n} is still pinned");
        let routes = mesh.routers[n].run("ip route show proto 178");
        let neighbors = mesh.routers[n].run("ip neigh show nud permanent");
        assert_eq!((routes.as_str(), neighbors.as_str()), ("", ""), "n{n}");
    }
}

/// What each end of a link has sent, has arrived at the other.
fn links_lose_nothing(daemons: &[Daemon<'_>]) {
    for daemon in daemons {
        eventually("the frames of all links are counted at both ends", || {
            let node = daemon.ask(&["show", "cluster"]);
            mesh::links(&node).iter().all(|link| {
                let count = |key: &str| link["from_peer"][key].as_u64().unwrap_or(0);
                count("sent") > 100 && count("lost") == 0 && count("arrived") >= count("sent")
            })
        });
    }
}

/// `--node` shows what that node shows itself.
fn other_nodes_can_be_asked(daemons: &[Daemon<'_>]) {
    for what in [&["show", "nexthops"][..], &["show", "routes"], &["show", "routes", "10.0.1.2"]] {
        let there = daemons[3].ask(what);
        assert_eq!(daemons[0].ask(&[what, &["--node", "n3"][..]].concat()), there, "{what:?}");
    }
    let node = daemons[0].ask(&["status", "--node", "n2"]);
    assert_eq!(node["pid"], daemons[2].ask(&["status"])["pid"], "{node}");
    let error = daemons[0].refused(&["show", "ports", "--node", "x"]);
    assert!(error.contains("there is no fabric link to a node x"), "{error}");
    let error = daemons[0].refused(&["reload", "--node", "n2"]);
    assert!(error.contains("--node is only for commands that show something"), "{error}");
    let error = daemons[0].refused(&["show", "routes", "10.0.1.x", "--node", "n2"]);
    assert!(error.contains("10.0.1.x"), "the other node's own error: {error}");
}

#[test]
fn intermediates_forward_by_mac_addresses() {
    let Some(mesh) = Mesh::new("cl-transit") else { return };
    let Some(daemons) = mesh.start_all() else { return };
    mesh.until_known(&daemons);
    let packet = routed(&Ip4::udp("10.0.0.2", "10.0.2.2", 64).id(7).bytes());
    let sink = mesh.hosts[2].packet_socket("e");
    let to = mesh.mac_of(0, "10.0.2.2");
    assert_eq!((to.0[0], to.0[1]), (0xb2, 7), "a neighbor, under epoch 7");
    let expected = ip_frame(mac(&mesh.hosts[2], "e"), mac(&mesh.routers[2], "ext0"), &packet);
    // Over node 1, as VLB does: neither it nor node 2 changes the packet.
    mesh.inject(0, "fab1", &ip_frame(to, source_via(1), &packet));
    expect(&sink, &expected, "over an intermediate");
    assert_eq!((total(&daemons[1], "transit"), total(&daemons[2], "transit")), (1, 0));
    // Of an epoch that node 2 does not know, with an unknown index, not for node 1, from a node that is not a member.
    let epoch = Mac([to.0[0], 6, to.0[2], to.0[3], to.0[4], to.0[5]]);
    let index = Mac([to.0[0], to.0[1], to.0[2], to.0[3], 0xff, 0xff]);
    let own = source_via(0x7ff);
    let stranger = Mac([0xb2, 9, own.0[2], own.0[3], own.0[4], own.0[5]]);
    for (node, reason, to, from) in [
        (2, "epoch", epoch, own),
        (2, "neighbor", index, own),
        (1, "stray", to, own),
        (2, "member", to, stranger),
    ] {
        mesh.inject(0, &format!("fab{node}"), &ip_frame(to, from, &packet));
        eventually(reason, || {
            link(&daemons[node].ask(&["show", "cluster"]), "fab0")["account"]["drops"][reason] == 1
        });
    }
    // What the link onward cannot take is no transit.
    let transit = total(&daemons[1], "transit");
    mesh.routers[1].ip("link set fab2 mtu 500\n");
    let large = routed(&Ip4::udp("10.0.0.2", "10.0.2.2", 1000).bytes());
    mesh.inject(0, "fab1", &ip_frame(to, source_via(1), &large));
    eventually("a frame that is too large for the link onward", || {
        link(&daemons[1].ask(&["show", "cluster"]), "fab0")["account"]["drops"]["link"] == 1
    });
    assert_eq!(total(&daemons[1], "transit"), transit);
    std::thread::sleep(MOMENT);
    let same = std::iter::from_fn(|| sink.receive().unwrap()).filter(|captured| captured.frame == expected);
    assert_eq!(same.count(), 0, "nothing that is dropped is delivered");
    let drops = daemons[2].ask(&["show", "drops"]).to_string();
    assert!(drops.contains("cluster from fab0"), "{drops}");
    daemons.iter().for_each(assert_closed);
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn a_node_forwards_without_its_daemon() {
    let Some(mesh) = Mesh::new("cl-killed") else { return };
    let Some(mut daemons) = mesh.start_all() else { return };
    mesh.until_known(&daemons);
    let state = |daemons: &[Daemon<'_>], wanted: &str| {
        eventually(&format!("n0 finds n3 {wanted}"), || {
            link(&daemons[0].ask(&["show", "cluster"]), "fab3")["state"] == wanted
        });
    };
    let last = mesh.mac_of(0, "10.0.3.2");
    std::thread::scope(|scope| {
        // Meanwhile packets pass: none is lost, neither without the daemon nor when the next one takes over.
        let pinging = scope.spawn(|| mesh.hosts[0].run("ping -q -i 0.02 -c 300 10.0.3.2"));
        daemons.pop().unwrap().kill();
        state(&daemons, "no-daemon");
        // Other nodes keep their routes to it.
        assert_eq!(daemons[0].ask(&["show", "cluster"])["routes"], 18);
        daemons.push(mesh.start(3, "key", 7).unwrap());
        state(&daemons, "up");
        let message = pinging.join().unwrap();
        assert!(message.contains(" 300 received"), "{message}");
    });
    mesh.until_known(&daemons);
    assert_eq!(mesh.mac_of(0, "10.0.3.2"), last, "neighbors keep their indices");
    ping(&mesh.hosts[0], "10.0.3.2", 56, 63);
    // After it has been stopped, it is down.
    daemons.pop().unwrap().stop();
    state(&daemons, "down");
    eventually("routes to n3 are gone", || daemons[0].ask(&["show", "cluster"])["routes"] == 12);
    assert_eq!(mesh.routers[0].run("ip route show 10.0.3.0/24"), "");
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn reports_wrong_peers_keys_and_epochs() {
    let Some(mesh) = Mesh::new("cl-wrong") else { return };
    mesh.key("other", "another key of sufficient length");
    // Two links are crossed: fab1 of node 0 leads to node 2 now, and fab2 to node 1.
    mesh.routers[0].ip("link set fab1 down\nlink set fab1 name x\nlink set fab2 down\nlink set fab2 name fab1\nlink set x name fab2\nlink set fab1 up\nlink set fab2 up\n");
    let daemons = [
        mesh.start(0, "key", 7),
        mesh.start(1, "key", 7),
        mesh.start(2, "other", 7),
        mesh.start(3, "key", 8),
    ];
    let Some(daemons) = daemons.into_iter().collect::<Option<Vec<_>>>() else { return };
    let trouble = |n: usize, device: &str, expected: &str| {
        eventually(&format!("n{n} says of {device}: {expected}"), || {
            let node = daemons[n].ask(&["show", "cluster"]);
            link(&node, device)["trouble"].as_str().is_some_and(|message| message.contains(expected))
        });
    };
    trouble(0, "fab2", "n1 (node 1) is at the other end instead of n2");
    trouble(0, "fab1", "another key");
    trouble(0, "fab3", "n3 has epoch 8");
    trouble(3, "fab1", "n1 has epoch 7");
    assert!(daemons.iter().all(|daemon| daemon.ask(&["show", "cluster"])["routes"] == 0));
    assert!(daemons[0].log().contains("check the cable"), "{}", daemons[0].log());
    daemons.into_iter().for_each(Daemon::stop);
}
