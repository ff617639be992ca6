//! Other members while packets pass: from etcd, and by another configuration on one node after the other.

use crate::cluster::etcd::Etcd;
use crate::cluster::mesh::{MOMENT, Mesh, NODES, link, links};
use bm_tests::daemon::{Daemon, eventually, ping};
use bm_tests::netns::Namespace;
use bm_tests::sys;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Child, Stdio};

/// A ping every 20 ms.
struct Pings(Child);

impl Pings {
    fn start(from: &Namespace, to: &str) -> Self {
        let mut command = from.command("ping");
        command.args(["-n", "-i", "0.02", to]).stdin(Stdio::null()).stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Ends them; none may be lost, but the last ones may be on their way.
    fn end(self, what: &str) {
        sys::signal(self.0.id(), libc::SIGINT).unwrap();
        let output = self.0.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let answered = text.split("icmp_seq=").skip(1).map(|rest| rest.split(' ').next().unwrap_or(rest));
        let answered: BTreeSet<usize> = answered.map(|number| number.parse().unwrap()).collect();
        assert!(!answered.is_empty() && answered.last() == Some(&answered.len()), "{what}: {text}");
    }
}

/// Between the hosts of all these nodes.
fn pings(mesh: &Mesh, nodes: usize) -> Vec<(String, Pings)> {
    let pairs = (0..nodes).flat_map(|n| (0..nodes).map(move |m| (n, m))).filter(|(n, m)| n != m);
    let start = |(n, m): (usize, usize)| {
        (format!("from {n} to {m}"), Pings::start(&mesh.hosts[n], &format!("10.0.{m}.2")))
    };
    pairs.map(start).collect()
}

fn cluster(daemon: &Daemon<'_>) -> Value {
    daemon.ask(&["show", "cluster"])
}

/// Waits until these nodes, and no others, know each other's hosts.
fn until_members(mesh: &Mesh, daemons: &[Daemon<'_>]) {
    for n in 0..daemons.len() {
        ping(&mesh.hosts[n], &format!("10.0.{n}.1"), 56, 64);
        ping(&mesh.hosts[n], &format!("fd00:{n}::1"), 56, 64);
    }
    let others = daemons.len() - 1;
    for (n, daemon) in daemons.iter().enumerate() {
        eventually(&format!("n{n} does not know the members"), || {
            let node = cluster(daemon);
            node["members"] == others + 1
                && node["routes"] == others * 6
                && links(&node).len() == others
                && links(&node).iter().all(|link| link["state"] == "up")
        });
        eventually("the kernel path has the routes", || {
            daemon.ask(&["status"])["routes_ipv4"].as_u64().unwrap() >= (others * 3) as u64
        });
    }
}

#[test]
fn members_come_from_etcd_and_change_without_loss() {
    let Some(mut mesh) = Mesh::new("cl-etcd") else { return };
    let Some(mut etcd) = Etcd::start("cl-etcd", &mesh) else { return };
    mesh.store = Some(etcd.section());
    let start = |n| mesh.start(n, "key", 0);
    let Some(mut daemons) = (0..3).map(start).collect::<Option<Vec<_>>>() else { return };
    until_members(&mesh, &daemons);
    let node = cluster(&daemons[1]);
    assert_eq!((&node["node"], &node["epoch"]), (&1.into(), &3.into()), "{node}");
    assert_eq!(node["member_list"], serde_json::json!({ "n0": 0, "n1": 1, "n2": 2 }));
    assert_eq!(node["not_members"], serde_json::json!(["n3"]));
    let pinging = pings(&mesh, 3);
    // A node joins.
    daemons.push(start(3).unwrap());
    until_members(&mesh, &daemons);
    let fourth = Pings::start(&mesh.hosts[3], "10.0.0.2");
    assert_eq!(cluster(&daemons[0])["epoch"], 4);
    eventually("all have registered", || {
        cluster(&daemons[0])["store"]["registered"].as_array().map(Vec::len) == Some(NODES)
    });
    // Without etcd everything goes on, and the members stay.
    etcd.kill();
    eventually("n0 notices it", || cluster(&daemons[0])["store"]["connected"] == false);
    let why = daemons[0].refused(&["cluster", "remove", "n3"]);
    assert!(why.contains("10.9.0.254:2379 does not answer"), "{why}");
    // A daemon starts with the copy of the members.
    daemons.remove(1).kill();
    daemons.insert(1, start(1).unwrap());
    until_members(&mesh, &daemons);
    assert!(daemons[1].log().contains("the store cannot be reached"), "{}", daemons[1].log());
    etcd.resume();
    for daemon in &daemons {
        eventually("etcd is back", || {
            let node = cluster(daemon);
            node["store"]["connected"] == true
                && node["store"]["trouble"] == Value::Null
                && node["store"]["registered"].as_array().map(Vec::len) == Some(NODES)
        });
    }
    // A node leaves: first its traffic, then the node.
    fourth.end("from the fourth node");
    daemons.pop().unwrap().stop();
    daemons[0].ask(&["cluster", "remove", "n3"]);
    until_members(&mesh, &daemons);
    assert!(daemons.iter().all(|daemon| cluster(daemon)["epoch"] == 5));
    std::thread::sleep(MOMENT);
    pinging.into_iter().for_each(|(what, pings)| pings.end(&what));
    for daemon in daemons {
        daemon.stop();
    }
}

#[test]
fn nodes_without_the_key_or_with_a_number_that_is_taken_are_no_members() {
    let Some(mut mesh) = Mesh::new("cl-stranger") else { return };
    let Some(etcd) = Etcd::start("cl-stranger", &mesh) else { return };
    mesh.key("other", "another key of sufficient length");
    mesh.store = Some(etcd.section() + "node = 5\n");
    let Some(first) = mesh.start(0, "key", 0) else { return };
    assert_eq!(cluster(&first)["node"], 5);
    let why = mesh.fails(1, "other");
    assert!(why.contains("/test/members, are authenticated with another key"), "{why}");
    let why = mesh.fails(1, "key");
    assert!(why.contains("n0 has the number 5: choose another `node`"), "{why}");
    first.stop();
}

#[test]
fn nodes_change_their_epoch_in_any_order_without_loss() {
    for balances in [None, Some(10_000)] {
        let Some(mut mesh) = Mesh::new(if balances.is_some() { "cl-epochv" } else { "cl-epoch" }) else {
            return;
        };
        mesh.balances = [balances; NODES];
        let Some(daemons) = mesh.start_all() else { return };
        mesh.until_known(&daemons);
        let pinging = pings(&mesh, NODES);
        for n in [2, 0, 3, 1] {
            mesh.configure(n, "key", 8);
            daemons[n].ask(&["reload"]);
            if n == 2 {
                eventually("n0 sends with the epoch of n2", || {
                    link(&cluster(&daemons[0]), "fab2")["epoch"] == 8
                });
            }
            std::thread::sleep(MOMENT);
        }
        for daemon in &daemons {
            eventually("all have the same epoch", || {
                let node = cluster(daemon);
                node["epoch"] == 8 && links(&node).iter().all(|link| link["epoch"] == Value::Null)
            });
        }
        pinging.into_iter().for_each(|(what, pings)| pings.end(&what));
        let drops: Vec<_> = daemons.iter().map(|daemon| daemon.ask(&["show", "drops"]).to_string()).collect();
        assert!(drops.iter().all(|drops| !drops.contains("cluster from")), "{drops:?}");
        daemons.into_iter().for_each(Daemon::stop);
    }
}

#[test]
fn a_neighbor_that_moves_to_another_node_is_found_there() {
    let Some(mesh) = Mesh::new("cl-moved") else { return };
    let Some(daemons) = mesh.start_all() else { return };
    mesh.until_known(&daemons);
    // 10.0.50.9 is an address of the hosts of nodes 1 and 2; first the router of node 1 has it as a neighbor.
    let place = |n: usize| {
        let mac = bm_tests::daemon::mac(&mesh.hosts[n], "e");
        let mac = mac.0.map(|byte| format!("{byte:02x}")).join(":");
        mesh.routers[n].ip(&format!(
            "neigh replace 10.0.50.9 lladdr {mac} dev ext0\nroute replace 10.0.50.9 dev ext0\n"
        ));
    };
    let remove =
        |n: usize| mesh.routers[n].ip("neigh del 10.0.50.9 dev ext0\nroute del 10.0.50.9 dev ext0\n");
    for n in [1, 2] {
        mesh.hosts[n].ip("addr add 10.0.50.9/32 dev lo\n");
    }
    place(1);
    let leads_to =
        |n: usize| mesh.routers[0].run("ip route show 10.0.50.9").contains(&format!("dev fab{n} "));
    eventually("node 0 knows where it is", || leads_to(1));
    ping(&mesh.hosts[0], "10.0.50.9", 56, 63);
    remove(1);
    place(2);
    let began = std::time::Instant::now();
    eventually("node 0 knows where it is now", || leads_to(2));
    println!("found after {} ms", began.elapsed().as_millis());
    ping(&mesh.hosts[0], "10.0.50.9", 56, 63);
    assert!(!leads_to(1));
    daemons.into_iter().for_each(Daemon::stop);
}
