//! More queues than workers: which worker has which queue, and queues that change workers while packets flow.

use bm_tests::flow::{Outcome, Stream};
use bm_tests::lab::{Ends, Lab};
use bm_tests::report;
use bm_tests::subject::{Forwarding, Router, Subject};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Flows of the stream: enough for every queue to have some.
const FLOWS: u32 = 64;

fn stream() -> Stream {
    stream_from(0)
}

/// The stream whose destinations begin with this one.
fn stream_from(first: u32) -> Stream {
    let destinations = (first..first + FLOWS).map(|n| format!("10.9.9.{}", n % 256)).collect();
    Stream { destinations, rate: 10_000 }
}

/// A stream of which the second queue gets a quarter at most. Which queue a flow gets is different on each machine, since
/// the kernel's hash has a random key.
fn stream_beside_the_second_queue(lab: &Lab, router: &Router) -> Stream {
    let mut streams = (0..256).step_by(16).map(stream_from);
    let found = streams.find(|stream| {
        let before = received(router);
        let outcome = stream.for_a_while(lab, Duration::from_millis(100));
        assert_eq!(outcome.lost(), 0, "{outcome}");
        let after = received(router);
        let frames: Vec<u64> = before.iter().zip(&after).map(|(before, after)| after.0 - before.0).collect();
        frames[1] * 4 <= frames.iter().sum()
    });
    found.expect("the second queue of four gets a quarter on average")
}

/// A hook that takes 150 us of its worker's time for each packet.
const SLOW_HOOK: &str = r#"
    local ffi = require("ffi")
    ffi.cdef("typedef struct { long s, ns; } bm_test_time; int clock_gettime(int, bm_test_time *);")
    local time = ffi.new("bm_test_time")
    local function now ()
       ffi.C.clock_gettime(3, time)
       return tonumber(time.s) * 1e9 + tonumber(time.ns)
    end
    return function (burst)
       for _ in burst.each() do
          local until_ns = now() + 150e3
          while now() < until_ns do end
       end
    end"#;

/// A file that is removed at the end of the test.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        // It may not exist any more.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Three ports with this many queues on two workers; `placed` may assign the first port's queues to workers.
fn config(queues: u32, placed: &str, more: &str) -> String {
    let port = |name: &str, placed: &str| format!("[[port]]\ndevice = '{name}'\nqueues = {queues}\n{placed}");
    let ports = [port("r0", placed), port("r1", ""), port("r2", "")].concat();
    format!("{ports}[daemon]\nworkers = 2\n{more}")
}

fn placed(workers: &str) -> String {
    format!("queue_workers = {workers}\n")
}

fn shown(router: &Router, what: &str) -> serde_json::Value {
    let reply = router.ask("show", &[what, "--json"]).expect("a daemon");
    serde_json::from_slice(&reply.stdout).expect("show prints JSON")
}

/// For each worker, its queues of `r0`.
fn map(router: &Router) -> Vec<Vec<u64>> {
    let workers = shown(router, "workers");
    let of_worker = |worker: &serde_json::Value| -> Vec<u64> {
        let queues = worker["queues"].as_array().into_iter().flatten().filter_map(|queue| queue.as_str());
        queues.filter_map(|queue| queue.strip_prefix("r0/")?.parse().ok()).collect()
    };
    workers["workers"].as_array().expect("workers").iter().map(of_worker).collect()
}

/// For each queue of `r0`, how many frames it has received, and its worker.
fn received(router: &Router) -> Vec<(u64, u64)> {
    let ports = shown(router, "ports");
    let ports = ports["ports"].as_array().expect("ports");
    let port = ports.iter().find(|port| port["name"] == "r0").expect("r0");
    let queue = |queue: &serde_json::Value| {
        (queue["account"]["received"].as_u64().expect("a count"), queue["worker"].as_u64().expect("a worker"))
    };
    port["queues"].as_array().expect("queues").iter().map(queue).collect()
}

fn reloads(router: &Router, config: &str) -> String {
    let done = router.reload_with(config).expect("a daemon");
    let output = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(done.status.success(), "{output}");
    output
}

#[track_caller]
fn whole(what: &str, outcome: &Outcome) {
    report::say(&format!("queues: {what}: {outcome}"));
    assert_eq!((outcome.lost(), outcome.twice), (0, 0), "{what}: {outcome}");
}

/// Runs a test on two workers and ports with four queues each, of which `queues` are used.
fn on_queues(test: &str, queues: u32, action: impl FnOnce(&Lab, &mut Router)) {
    let is_user =
        |subject: &Subject| matches!(subject, Subject::Brickmoon { forwarding: Forwarding::User, .. });
    let Some(subject) = Subject::all(test).into_iter().find(is_user) else { return };
    let lab = Lab::with_queues(test, Ends::Silent, 4);
    let mut router = subject.start(&lab);
    router.end(&[]);
    router.restart_with(&[], &config(queues, "", ""));
    action(&lab, &mut router);
    router.settle();
    router.stop();
}

#[test]
fn queues_change_workers_while_packets_flow() {
    on_queues("queues", 4, |lab, router| {
        assert_eq!(map(router), [[0, 2], [1, 3]], "queues must be assigned in turn");
        let ((), outcome) = stream().during(lab, || {
            for workers in ["[0, 1, 1, 1]", "[0, 1, 0, 0]", "[0, 1, 1, 0]", "[0, 1, 1, 1]", "[]"] {
                std::thread::sleep(Duration::from_millis(100));
                let output = reloads(router, &config(4, &placed(workers), ""));
                assert!(output.contains("queue_workers") && !output.contains("restart"), "{output}");
                let wanted: [&[u64]; 2] = match workers {
                    "[0, 1, 0, 0]" => [&[0, 2, 3], &[1]],
                    "[0, 1, 1, 0]" => [&[0, 3], &[1, 2]],
                    "[]" => [&[0, 2], &[1, 3]],
                    _ => [&[0], &[1, 2, 3]],
                };
                assert_eq!(map(router), wanted, "{workers}");
            }
        });
        whole("moved five times", &outcome);
        let received = received(router);
        assert_eq!(received.iter().map(|(_, worker)| *worker).collect::<Vec<_>>(), [0, 1, 0, 1]);
        assert!(
            received.iter().all(|(frames, _)| *frames > 0),
            "every queue must have received packets: {received:?}"
        );
    });
}

#[test]
fn a_reload_reassigns_queues_and_reports_errors() {
    on_queues("queues-reload", 2, |lab, router| {
        assert_eq!(map(router), [[0], [1]]);
        let output = reloads(router, &config(3, "", "rebalance = 'on'\n"));
        assert!(output.contains("port.xdp:r0") && output.contains("daemon.rebalance"), "{output}");
        assert_eq!(map(router), [vec![0, 2], vec![1]]);
        for (workers, why) in [("[1]", "queue 0 of r0"), ("[0, 1, 2]", "worker 2")] {
            let refused = router.reload_with(&config(3, &placed(workers), "")).expect("a daemon");
            let output = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(!refused.status.success() && output.contains(why), "{output}");
        }
        assert_eq!(map(router), [vec![0, 2], vec![1]], "nothing may change");
        let output = reloads(router, &config(3, "", "").replace("workers = 2", "workers = 1"));
        assert!(output.contains("daemon.workers"), "{output}");
        assert_eq!(map(router), [[0, 1, 2]]);
        // The fourth queue is left to Linux.
        whole("three queues on one worker", &stream().for_a_while(lab, Duration::from_millis(200)));
    });
}

#[test]
fn the_busiest_worker_gives_up_a_queue() {
    on_queues("queues-load", 4, |lab, router| {
        let file = File(std::env::temp_dir().join(format!("bm-queues-{}.lua", std::process::id())));
        std::fs::write(&file.0, SLOW_HOOK).expect("the test can write");
        let hook = format!(
            "[[hook]]\nname = 'slow'\nfile = '{}'\nstage = 'ingress'\nbudget = 0\n",
            file.0.display()
        );
        let stream = stream_beside_the_second_queue(lab, router);
        let config = config(4, &placed("[0, 1, 0, 0]"), &format!("rebalance = 'on'\n{hook}"));
        router.end(&[]);
        router.restart_with(&[], &config);
        assert_eq!(map(router), [vec![0, 2, 3], vec![1]]);
        // The load is three quarters of a core, and the first worker has three quarters of it.
        let ((), outcome) = Stream { rate: 5000, ..stream }.during(lab, || {
            let begin = Instant::now();
            while map(router)[0].len() == 3 {
                assert!(begin.elapsed() < Duration::from_secs(40), "{}", router.log());
                std::thread::sleep(Duration::from_millis(100));
            }
            report::say(&format!("queues: a queue moved after {:.1} s", begin.elapsed().as_secs_f64()));
        });
        whole("evened out", &outcome);
        let mut queues = map(router);
        assert_eq!((queues[0].len(), queues[1].len()), (2, 2), "{queues:?}");
        queues.iter_mut().for_each(|queues| queues.truncate(1));
        assert_eq!(queues, [[0], [1]], "the queues that a worker sends on must stay the same");
    });
}
