//! Privileges that the daemon and the process that watches its tables have dropped once they run, and who may send
//! which requests to the control socket.

use bm_tests::lab::{Ends, Lab};
use bm_tests::subject::Subject;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A user without privileges, and a group that it may be a member of.
const NOBODY: u32 = 65534;
const GROUP: u32 = 47_110;
/// The socket to which the process of another user sends requests.
const ASK: &str = "BM_ASK";

/// Capabilities that the daemon keeps, with their names in capabilities(7) and their numbers.
const DAEMON: [(&str, u64); 7] = [
    ("NET_ADMIN", 12),
    ("NET_RAW", 13),
    ("IPC_LOCK", 14),
    ("SYS_ADMIN", 21),
    ("SYS_NICE", 23),
    ("PERFMON", 38),
    ("BPF", 39),
];
/// Those that the watching process does not keep.
const NOT_OF_WATCHER: [&str; 2] = ["NET_RAW", "IPC_LOCK"];

fn bits(names: impl Iterator<Item = &'static (&'static str, u64)>) -> u64 {
    names.fold(0, |bits, (_, number)| bits | 1 << number)
}

/// A line of `/proc/PID/status`.
fn line(status: &str, name: &str) -> String {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {name} in {status}")).trim().into()
}

/// Asserts that a thread has dropped its privileges.
fn assert_confined(status: &str, most: u64, filters: u32) {
    let who = line(status, "Name");
    for set in ["CapPrm", "CapEff"] {
        let has = u64::from_str_radix(&line(status, set), 16).expect("a set");
        assert_eq!(has & !most, 0, "{set} of {who} is {has:x}");
    }
    let kept = u64::from_str_radix(&line(status, "CapEff"), 16).expect("a set");
    assert_ne!(kept, 0, "{who} must keep some capabilities");
    // A program that it executes gets no more capabilities than this set has.
    let bounds = u64::from_str_radix(&line(status, "CapBnd"), 16).expect("a set");
    assert_eq!(bounds & !bits(DAEMON.iter()), 0, "CapBnd of {who} is {bounds:x}");
    assert_eq!(line(status, "CapInh"), "0000000000000000", "{who}");
    assert_eq!(line(status, "NoNewPrivs"), "1", "{who}");
    assert_eq!((line(status, "Seccomp"), line(status, "Seccomp_filters")), ("2".into(), filters.to_string()));
}

fn threads(process: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("the daemon's threads");
    tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok()).collect()
}

#[test]
fn every_thread_has_dropped_privileges() {
    let test = "every_thread_has_dropped_privileges";
    for subject in Subject::all(test) {
        let lab = Lab::new("privileges", Ends::Silent);
        let mut router = subject.start(&lab);
        let Some(process) = router.process() else { continue };
        let threads = threads(process);
        assert!(threads.len() > 3, "{threads:?}");
        threads.iter().for_each(|status| assert_confined(status, bits(DAEMON.iter()), 2));
        let status = router.json(&["status"]);
        if let Some(by) = status["tables_watched_by"].as_str() {
            let watcher = by.trim_start_matches("process ");
            let watcher = std::fs::read_to_string(format!("/proc/{watcher}/status")).expect("the watcher");
            let most = bits(DAEMON.iter().filter(|(name, _)| !NOT_OF_WATCHER.contains(name)));
            assert_confined(&watcher, most, 3);
        } else {
            assert!(!router.is_kernel(), "{status}");
        }
        assert!(!status["notes"].to_string().contains("privileges"), "{status}");
        router.end(&[]);
    }
}

#[test]
fn the_sandbox_can_be_turned_off() {
    for subject in Subject::all("the_sandbox_can_be_turned_off") {
        let lab = Lab::new("privileges-off", Ends::Silent);
        let mut router = subject.start(&lab);
        if !router.is_brickmoon() {
            continue;
        }
        router.end(&[]);
        let way = if router.is_kernel() { "kernel" } else { "user" };
        router.restart_with(&["r0", "r1"], &format!("[daemon]\nsandbox = \"off\"\npath = \"{way}\"\n"));
        let process = router.process().expect("a daemon");
        let status = &threads(process)[0];
        assert_eq!((line(status, "Seccomp"), line(status, "NoNewPrivs")), ("0".into(), "0".into()));
        let notes = router.json(&["status"])["notes"].to_string();
        let note = "sandbox = \\\"off\\\": the daemon keeps all privileges that it was started with";
        assert!(notes.contains(note), "{notes}");
        router.end(&[]);
    }
}

/// Sends requests as a user of this group; returns the status of each reply.
fn answers_to(socket: &str, group: u32) -> String {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "privileges::asks_as_another_user", "--nocapture"]).env(ASK, socket);
    let output = command.uid(NOBODY).gid(group).output().expect("this program once more");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|line| line.strip_prefix("answer: ")).collect::<Vec<_>>().join(", ")
}

/// Part of the test below that runs as another user.
#[test]
fn asks_as_another_user() {
    let Ok(socket) = std::env::var(ASK) else { return };
    // Ends the line that the test runner has begun.
    println!();
    for question in
        ["GET /v1/status", "GET /v1/metrics", "POST /v1/verify", "POST /v1/reload", "POST /v1/stop"]
    {
        let asked = UnixStream::connect(&socket).and_then(|mut stream| {
            write!(stream, "{question} HTTP/1.1\r\nHost: brickmoon\r\nConnection: close\r\n\r\n")?;
            let mut reply = String::new();
            stream.read_to_string(&mut reply).map(|_| reply)
        });
        match asked {
            Ok(reply) => println!("answer: {}", reply.split(' ').nth(1).unwrap_or_default()),
            Err(error) => println!("answer: {:?}", error.kind()),
        }
    }
}

#[test]
fn a_group_may_read_and_others_have_no_access() {
    for subject in Subject::all("a_group_may_read_and_others_have_no_access") {
        let lab = Lab::new("readers", Ends::Silent);
        let mut router = subject.start(&lab);
        let Some(socket) = router.socket() else { continue };
        let denied = ["PermissionDenied"; 5].join(", ");
        assert_eq!(answers_to(&socket, GROUP), denied, "without a group only root has access");
        router.end(&[]);
        let way = if router.is_kernel() { "kernel" } else { "user" };
        let config = format!("[daemon]\nread_group = \"{GROUP}\"\npath = \"{way}\"\n");
        router.restart_with(&["r0", "r1"], &config);
        let socket = router.socket().expect("a daemon");
        assert_eq!(answers_to(&socket, GROUP), "200, 200, 403, 403, 403");
        assert_eq!(answers_to(&socket, NOBODY), "403, 403, 403, 403, 403");
        // Access for the group does not replace that of root.
        assert_eq!(router.json(&["status"])["ready"], true);
        router.end(&[]);
    }
}
