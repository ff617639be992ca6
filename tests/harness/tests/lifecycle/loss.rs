//! No loss where Linux loses nothing, and rings and priority as configured.
//!
//! The traffic is that of `brickmoon bench loss`, with a busy process on each core and a sender that waits for room, so
//! that only the router loses packets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use bm_tests::flow::Stream;
use bm_tests::lab::{Ends, Lab};
use bm_tests::netns::Namespace;
use bm_tests::subject::{self, Forwarding, Router, Subject};
use bm_tests::{command, report, sys};
use serde_json::Value;
use std::collections::HashMap;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a bench may take on a busy machine; on an idle one it takes a tenth of this.
const PATIENCE: Duration = Duration::from_secs(120);
/// Percentage of packets that may be lost: a machine, especially a virtual one, may stop for longer than any ring
/// lasts. Without rings and priority it was 4 to 20 % here.
const LOST_PERCENT_MAX: f64 = 0.5;

/// Results of the bench for each subject of a case; `None`, with a message, without root or a binary.
fn bench(case: &str) -> Option<HashMap<String, Value>> {
    if !sys::is_root() {
        report::skip("loss", "namespaces need root");
        return None;
    }
    let Some(mut brickmoon) = command::brickmoon() else {
        report::skip("loss", "there is no binary; build one, or name it in BRICKMOON");
        return None;
    };
    // One at a time, since each makes the machine busy.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let arguments = ["bench", "loss", "--case", case, "--seconds", "1", "--json"];
    let output = command::run(case, brickmoon.args(arguments), PATIENCE).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rows: HashMap<_, _> = rows.map(|row| (row["subject"].as_str().unwrap().to_owned(), row)).collect();
    for (subject, row) in &rows {
        report::say(&format!("loss: {case}: {subject}: {}", row["detail"]));
    }
    assert_eq!(rows.len(), 3, "{text}");
    Some(rows)
}

fn detail(row: &Value, name: &str) -> f64 {
    row["detail"][name].as_f64().unwrap_or_else(|| panic!("no {name} in {row}"))
}

/// Asserts that neither path loses more than Linux does, with an allowance for a machine that stops.
fn loses_no_more_than_linux(case: &str, sent: f64) {
    let Some(rows) = bench(case) else { return };
    let linux = detail(&rows["linux"], "lost_percent");
    for path in ["user-path", "kernel-path"] {
        let row = &rows[path];
        assert!(detail(row, "sent") >= sent, "{row}");
        assert!(detail(row, "lost_percent") <= linux + LOST_PERCENT_MAX, "Linux lost {linux} %: {row}");
    }
}

#[test]
fn bursts_of_a_thousand_frames() {
    loses_no_more_than_linux("bursts-1000", 20_000.0);
}

#[test]
fn a_hundred_and_fifty_thousand_a_second() {
    loses_no_more_than_linux("rate-150k", 65_536.0);
}

#[test]
fn more_packets_than_it_can_forward() {
    let Some(rows) = bench("uniform-flood") else { return };
    let row = &rows["user-path"];
    // Throughput does not collapse: it stays near that of Linux, which cannot be overloaded over a veth.
    let (user, linux) = (detail(row, "mpps"), detail(&rows["linux"], "mpps"));
    assert!(user >= linux / 2.0, "Linux: {linux} Mpps; {row}");
    // Forwarded packets have waited at most for a full ring, and for some time slices of other programs.
    assert!(detail(row, "delay_ms_max") < 1_000.0, "{row}");
}

/// The first worker or port in the output of `show`.
fn first(router: &Router, what: &str) -> Value {
    let reply = router.ask("show", &[what, "--json"]).expect("a daemon");
    serde_json::from_slice::<Value>(&reply.stdout).unwrap()[what][0].take()
}

/// Whether this machine gives this process real-time priority.
fn may_have_real_time() -> bool {
    Command::new("chrt").args(["-f", "1", "true"]).status().is_ok_and(|status| status.success())
}

/// Starts a daemon with workers in a lab.
fn with_workers(test: &str, config: &str, look: impl FnOnce(&Router)) {
    let is_user =
        |subject: &Subject| matches!(subject, Subject::Brickmoon { forwarding: Forwarding::User, .. });
    let Some(subject) = Subject::all(test).into_iter().find(is_user) else { return };
    let lab = Lab::new(test, Ends::Silent);
    let mut router = subject.start(&lab);
    router.end(&[]);
    router.restart_with(&["r0", "r1"], config);
    look(&router);
    let outcome = Stream::to("10.9.9.9", 1_000).for_a_while(&lab, Duration::from_millis(200));
    assert_eq!(outcome.lost(), 0, "{outcome}");
    router.stop();
}

#[test]
fn rings_and_priority_are_shown() {
    with_workers("loss-default", "", |router| {
        let (worker, port) = (first(router, "workers"), first(router, "ports"));
        assert_eq!(port["ring"], 16_384, "{port}");
        assert_eq!(worker["priority"], u8::from(may_have_real_time()), "{worker}");
    });
    with_workers("loss-set", "[daemon]\nring = 1024\npriority = 0\n", |router| {
        let (worker, port) = (first(router, "workers"), first(router, "ports"));
        assert_eq!((&port["ring"], &worker["priority"]), (&1024.into(), &0.into()), "{port} {worker}");
        assert!(!router.log().contains("normal priority"), "{}", router.log());
    });
}

#[test]
fn runs_without_real_time_priority_and_logs_it() {
    if !sys::is_root() {
        return report::skip("loss-refused", "namespaces need root");
    }
    let Some(binary) = subject::binary() else { return };
    let router = Namespace::new("loss-refused", "rtr");
    router.run("ip link add r0 type veth peer name r1");
    let mut daemon = router.command("setpriv");
    daemon
        .args(["--bounding-set=-sys_nice", "--inh-caps=-sys_nice"])
        .arg(binary)
        .args(["up", "--path", "user"]);
    let folder = std::env::temp_dir().join(router.name());
    std::fs::create_dir_all(&folder).unwrap();
    let _folder = Folder(folder.clone());
    let (socket, log) = (folder.join("api.sock"), std::fs::File::create(folder.join("log")).unwrap());
    daemon.args(["--port", "r0", "--port", "r1", "--socket"]).arg(&socket);
    daemon.stdin(std::process::Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let mut child = Killed(daemon.spawn().unwrap());
    let text = || std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    // A worker says it when it begins, which may be after the daemon is ready.
    bm_tests::daemon::eventually("it is ready and says so", || {
        text().contains("ready: ") && text().contains("normal priority")
            || child.0.try_wait().unwrap().is_some()
    });
    let log = text();
    assert!(log.contains("ready: "), "{log}");
    assert_eq!(log.matches("workers run at normal priority").count(), 1, "{log}");
    assert!(log.contains("CAP_SYS_NICE"), "{log}");
}

/// A folder that is removed at the end of the test.
struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// A process that is killed at the end of the test.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}
