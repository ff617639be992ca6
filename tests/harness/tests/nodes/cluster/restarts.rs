//! Frames of nodes that go by an old announcement: they reach the right host or none, whatever became of the output node.

use crate::cluster::mesh::{MOMENT, Mesh};
use bm_tests::daemon::{Daemon, eventually, mac};
use bm_tests::packet::{Ip4, ip_frame};
use bm_wire::Mac;
use std::collections::BTreeSet;

/// The node whose hosts change, and the one that hears nothing of it.
const FAR: usize = 3;
const DEAF: usize = 0;
/// Hosts at the far node, by the last byte of their address: before and after.
const OLD: [u8; 6] = [50, 51, 52, 53, 54, 55];
const NEW: [u8; 8] = [30, 31, 32, 60, 61, 62, 63, 64];
/// How many packets each gets.
const PACKETS: u16 = 20;
/// How often MACs change.
const VERSIONS: u8 = 5;

fn mac_of(host: u8, version: u8) -> Mac {
    Mac([2, 0, 0, 3, version, host])
}

/// Adds hosts to the far node, as an administrator does.
fn bind(mesh: &Mesh, hosts: &[u8], version: u8) {
    let lines = hosts.iter().map(|host| {
        let mac = mac_of(*host, version);
        format!("neigh replace 10.0.3.{host} lladdr {mac} dev ext0 nud permanent\n")
    });
    mesh.routers[FAR].ip(&lines.collect::<String>());
}

/// Sends packets from the host of the deaf node to each of these; returns the MACs at which they arrive, with the hosts.
fn arrivals(mesh: &Mesh, hosts: &[u8]) -> BTreeSet<(u8, Mac)> {
    let (own, router) = (mac(&mesh.hosts[DEAF], "e"), mac(&mesh.routers[DEAF], "ext0"));
    let (source, sink) = (mesh.hosts[DEAF].packet_socket("e"), mesh.hosts[FAR].packet_socket("e"));
    for id in 0..PACKETS {
        for host in hosts {
            let packet = Ip4::udp("10.0.0.2", &format!("10.0.3.{host}"), 18).id(id).bytes();
            source.send(&ip_frame(router, own, &packet)).unwrap();
        }
    }
    std::thread::sleep(MOMENT);
    let frames = std::iter::from_fn(|| sink.receive().unwrap()).map(|captured| captured.frame);
    let of_hosts =
        frames.filter(|frame| frame[12..14] == [8, 0] && frame[23] == 17 && frame[30..33] == [10, 0, 3]);
    of_hosts.map(|frame| (frame[33], Mac(*frame.first_chunk().unwrap()))).collect()
}

/// A mesh in which one node has heard of hosts of another, and hears no more.
fn deaf(mesh: &Mesh) -> Option<Vec<Daemon<'_>>> {
    let mut daemons = mesh.start_all()?;
    mesh.until_known(&daemons);
    bind(mesh, &OLD, 0);
    for host in OLD {
        eventually(&format!("n{DEAF} knows 10.0.3.{host}"), || {
            mesh.routers[DEAF].run(&format!("ip route show 10.0.3.{host}")).contains("dev fab3")
        });
    }
    let expected: BTreeSet<_> = OLD.into_iter().map(|host| (host, mac_of(host, 0))).collect();
    eventually("packets arrive", || arrivals(mesh, &OLD) == expected);
    daemons.remove(DEAF).kill();
    Some(daemons)
}

#[test]
fn a_node_that_starts_anew_mistakes_no_host_for_another() {
    let Some(mesh) = Mesh::new("cl-anew") else { return };
    let Some(mut daemons) = deaf(&mesh) else { return };
    daemons.pop().unwrap().stop();
    mesh.routers[FAR].ip(&OLD.map(|host| format!("neigh del 10.0.3.{host} dev ext0\n")).concat());
    bind(&mesh, &NEW, 0);
    let far = mesh.start(FAR, "key", 7).unwrap();
    eventually("the node has its hosts", || {
        far.ask(&["show", "cluster"])["neighbors"].as_u64() >= Some(NEW.len() as u64)
    });
    let arrived = arrivals(&mesh, &OLD);
    let others: Vec<_> = arrived.iter().filter(|(host, mac)| *mac != mac_of(*host, 0)).collect();
    assert!(others.is_empty(), "packets for hosts that are gone, and where they went: {others:?}");
    // Hosts that are still there, or again, are reached by the old announcement.
    bind(&mesh, &OLD, 0);
    let expected: BTreeSet<_> = OLD.into_iter().map(|host| (host, mac_of(host, 0))).collect();
    eventually("hosts that are back are reached", || arrivals(&mesh, &OLD) == expected);
    daemons.into_iter().for_each(Daemon::stop);
    far.stop();
}

#[test]
fn a_changed_mac_is_reached_by_nodes_that_have_not_heard_of_it() {
    let Some(mesh) = Mesh::new("cl-newmac") else { return };
    let Some(daemons) = deaf(&mesh) else { return };
    for version in 1..=VERSIONS {
        bind(&mesh, &OLD, version);
        let expected: BTreeSet<_> = OLD.into_iter().map(|host| (host, mac_of(host, version))).collect();
        eventually("packets arrive at the new MAC", || arrivals(&mesh, &OLD) == expected);
    }
    let far = daemons.last().unwrap().ask(&["show", "cluster"]);
    assert_eq!(far["neighbors_without_index"], 0, "{far}");
    daemons.into_iter().for_each(Daemon::stop);
}
