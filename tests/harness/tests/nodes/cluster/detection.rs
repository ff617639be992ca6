//! How soon a node that no longer forwards is found, that nobody is taken for dead who is only slow, and that a node can leave
//! without loss.

use super::balancing::{Path, balanced};
use super::mesh::{Mesh, NODES, link, links, total};
use bm_tests::daemon::{Daemon, eventually};
use bm_tests::report;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longer than it takes on a quiet machine (50 ms), shorter than the second after which a daemon counts as gone.
const FOUND_MAX: Duration = Duration::from_millis(500);

#[test]
fn a_silent_node_is_found_within_milliseconds() {
    let Some(mesh) = balanced("cl-silent") else { return };
    let Some(mut daemons) = mesh.start_all() else { return };
    mesh.until_known(&daemons);
    let path = Path::new(&mesh);
    // All that the port may receive goes to node 3, half of it over nodes 1 and 2. Node 1 loses its program: its links keep
    // their carrier, and nothing answers there.
    let (found, lost) = std::thread::scope(|scope| {
        let sent = scope.spawn(|| path.send_all(1500, 1400, 250, Duration::from_millis(1)));
        std::thread::sleep(Duration::from_millis(500));
        std::fs::remove_dir_all(mesh.routers[1].cluster_pins()).unwrap();
        daemons.remove(1).kill();
        let sent = sent.join().unwrap();
        let lost: Vec<_> = sent.iter().filter(|packet| !packet.1).map(|packet| packet.0).collect();
        (lost.last().zip(lost.first()).map_or(Duration::ZERO, |(last, first)| *last - *first), lost.len())
    });
    report::say(&format!(
        "cluster: a node that fell silent: {lost} of 1500 packets lost, within {} ms",
        found.as_millis()
    ));
    assert!(found < FOUND_MAX, "{found:?}");
    let state = || link(&daemons[0].ask(&["show", "cluster"]), "fab1").clone();
    eventually("n0 finds n1 down", || state()["state"] == "down");
    assert_eq!(state()["failures"], 1);
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn a_drained_node_ends_and_joins_without_loss() {
    let Some(mesh) = balanced("cl-drain") else { return };
    let Some(mut daemons) = mesh.start_all() else { return };
    mesh.until_known(&daemons);
    let path = Path::new(&mesh);
    let transit = |daemon: &Daemon<'_>| total(daemon, "transit");
    let node = |daemon: &Daemon<'_>, device: &str| link(&daemon.ask(&["show", "cluster"]), device).clone();
    // All that the port may receive goes to node 3, half of it over nodes 1 and 2. Meanwhile node 1 is drained, ends, starts
    // again and joins.
    let done = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut sent = Vec::new();
            while !done.load(Ordering::Relaxed) {
                sent.extend(path.send_all(300, 1400, 250, Duration::from_millis(1)));
            }
            sent
        });
        eventually("packets go over node 1", || transit(&daemons[1]) > 20);
        let reply = daemons[1].ask(&["cluster", "drain"]);
        assert_eq!(reply["drained"], true, "{reply}");
        let before = transit(&daemons[1]);
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(transit(&daemons[1]), before, "nothing goes over a drained node");
        assert_eq!(node(&daemons[0], "fab1")["drained"], true);
        daemons[1].ask(&["cluster", "join"]);
        eventually("packets go over node 1 again", || transit(&daemons[1]) > before + 20);
        // One that ends is drained before.
        daemons.remove(1).stop();
        std::thread::sleep(Duration::from_millis(300));
        daemons.insert(1, mesh.start(1, "key", 7).unwrap());
        eventually("packets go over the new node 1", || transit(&daemons[1]) > 20);
        done.store(true, Ordering::Relaxed);
        sending.join().unwrap()
    });
    let lost = sent.iter().filter(|packet| !packet.1).count();
    report::say(&format!(
        "cluster: an intermediate drained, ended and started: {lost} of {} packets lost",
        sent.len()
    ));
    assert_eq!(lost, 0);
    daemons.into_iter().for_each(Daemon::stop);
}

/// How long cores are kept busy.
fn busy_time() -> Duration {
    let seconds = std::env::var("BM_BUSY_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(5))
}

#[test]
fn nobody_is_found_dead_on_a_busy_machine() {
    let Some(mesh) = Mesh::new("cl-busy") else { return };
    let Some(daemons) = mesh.start_all() else { return };
    mesh.until_known(&daemons);
    let failures = |daemon: &Daemon<'_>| {
        let node = daemon.ask(&["show", "cluster"]);
        links(&node).iter().map(|link| link["failures"].as_u64().unwrap()).sum::<u64>()
    };
    let before: u64 = daemons.iter().map(failures).sum();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..cores {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        std::thread::sleep(busy_time());
        done.store(true, Ordering::Relaxed);
    });
    let after: u64 = daemons.iter().map(failures).sum();
    let node = daemons[0].ask(&["show", "cluster"]);
    let of = |name: &str| links(&node).iter().map(|link| link[name].as_u64().unwrap() / 1000).max();
    report::say(&format!(
        "cluster: {} s with all cores busy: {} of {} links found dead, timeouts of up to {} ms",
        busy_time().as_secs(),
        after - before,
        NODES * (NODES - 1),
        of("timeout_us").unwrap_or(0)
    ));
    assert_eq!(after, before, "a link was found dead: {node}");
    daemons.into_iter().for_each(Daemon::stop);
}
