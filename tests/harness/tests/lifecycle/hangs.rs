//! Threads that hang, or a log that is not read: nothing else waits for them, and no packet is forwarded by tables that
//! are no longer kept up to date.

use bm_tests::daemon::eventually;
use bm_tests::flow::Stream;
use bm_tests::lab::{Ends, Lab, SIDES, Side, by_linux};
use bm_tests::packet::{Ip4, routed};
use bm_tests::subject::{self, Router, Subject};
use bm_tests::sys::{self, Frozen};
use bm_tests::{PATIENCE, command, report};
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Stdio};
use std::time::{Duration, Instant};

/// A daemon whose standard error is a pipe that is not read.
struct Unread<'a> {
    lab: &'a Lab,
    child: Child,
    errors: ChildStderr,
    folder: PathBuf,
}

impl<'a> Unread<'a> {
    /// Starts it on this path, with its most verbose log.
    fn start(lab: &'a Lab, path: &str) -> Self {
        let folder = std::env::temp_dir().join(lab.rtr.name());
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut command = lab.rtr.command(subject::binary().expect("a binary"));
        command.args(["-vvv", "up", "--path", path, "--socket"]).arg(folder.join("api.sock"));
        command.args(SIDES.iter().flat_map(|side| ["--port", side.router()]));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let (output, errors) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("a line of output");
        assert!(line.starts_with("ready"), "{line}");
        Self { lab, child, errors, folder }
    }

    fn ask(&self, what: &[&str]) -> std::process::Output {
        let mut command = self.lab.rtr.command(subject::binary().expect("a binary"));
        command.args(what).arg("--socket").arg(self.folder.join("api.sock"));
        command::run(&what.join(" "), &mut command, PATIENCE).expect("an answer")
    }

    /// Reads the pipe until the daemon has ended.
    fn rest(mut self) -> String {
        let mut text = Vec::new();
        self.errors.read_to_end(&mut text).expect("a pipe");
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

/// Whether a packet to this address is forwarded.
fn is_forwarded(lab: &Lab, to: &str) -> bool {
    let packet = Ip4::udp("192.0.2.2", to, 20).bytes();
    let expected = routed(&packet);
    lab.drain();
    lab.send(Side::Src, &Side::Src.to_router(&packet));
    lab.await_frame(Side::Snk, Duration::from_millis(200), |frame| frame.ends_with(&expected)).is_some()
}

#[test]
fn a_log_that_is_not_read_blocks_nothing() {
    for subject in Subject::all("unread").into_iter().filter(|subject| *subject != Subject::Linux) {
        let path = if subject.to_string() == "brickmoon" { "user" } else { "kernel" };
        let lab = Lab::new("unread", Ends::Silent);
        SIDES.iter().for_each(|side| lab.receive_offload(*side));
        let daemon = Unread::start(&lab, path);
        assert!(is_forwarded(&lab, "10.9.9.9"));
        // Each change logs some lines, until the pipe (64 KiB) and the queue in front of it (1 MiB) are full.
        eventually("the log must fill up", || {
            let moved = |turn: u32| {
                format!("route replace 10.200.{}.0/24 via 198.51.100.{}\n", turn % 250, 3 + turn % 4)
            };
            lab.rtr.ip(&(0..5000).map(moved).collect::<String>());
            let status = daemon.ask(&["status"]);
            assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
            String::from_utf8_lossy(&status.stdout).contains("log lines were lost")
        });
        // Control keeps working.
        lab.rtr.ip("route add blackhole 10.9.0.0/16");
        eventually("control does not follow", || !is_forwarded(&lab, "10.9.9.9"));
        lab.rtr.ip("route del blackhole 10.9.0.0/16");
        eventually("control does not follow", || is_forwarded(&lab, "10.9.9.9"));
        sys::signal(daemon.child.id(), libc::SIGTERM).expect("it is there");
        let text = daemon.rest();
        let missing = text.lines().find(|line| line.contains("log lines are missing here"));
        let missing = missing.unwrap_or_else(|| panic!("{path}: {} bytes of log, no loss in it", text.len()));
        report::say(&format!("hangs: {path}: {missing}"));
    }
}

/// Runs a test with the daemon on each path.
fn on_both(test: &str, action: impl Fn(&Lab, &mut Router)) {
    for subject in Subject::all(test).into_iter().filter(|subject| *subject != Subject::Linux) {
        let lab = Lab::new(test, Ends::Silent);
        let mut router = subject.start(&lab);
        action(&lab, &mut router);
    }
}

/// Frames that the ring of a port on workers holds.
const RING: u32 = 16_384;

fn stream() -> Stream {
    Stream::to_all(&["10.9.9.9", "2001:db8:a000::9"], 4000)
}

/// How long after `since` Linux forwards.
fn until_linux_forwards(lab: &Lab, before: u64, since: Instant) -> Duration {
    while by_linux(lab) == before {
        assert!(since.elapsed() < PATIENCE, "Linux does not forward");
        std::thread::sleep(Duration::from_millis(1));
    }
    since.elapsed()
}

/// Whether brickmoon forwards: a stream arrives without any help from Linux.
fn forwards(lab: &Lab) -> bool {
    let before = by_linux(lab);
    let outcome = stream().for_a_while(lab, Duration::from_millis(200));
    assert_eq!((outcome.lost(), outcome.twice), (0, 0), "{outcome}");
    by_linux(lab) == before
}

/// Generous for busy machines; on an idle one it takes 500 ms.
const BOUND: Duration = Duration::from_secs(2);

#[test]
fn linux_forwards_while_control_hangs() {
    on_both("control", |lab, router| {
        let name = router.name();
        eventually("brickmoon does not forward", || forwards(lab));
        let process = router.process().expect("a daemon");
        let (frozen, outcome) = stream().during(lab, || {
            std::thread::sleep(Duration::from_millis(100));
            let (before, since) = (by_linux(lab), Instant::now());
            let frozen = Frozen::new(process, "bm-control").expect("a thread");
            let took = until_linux_forwards(lab, before, since);
            report::say(&format!("hangs: {name}: Linux forwards {took:?} after control was stopped"));
            assert!(took < BOUND, "{name}: {took:?}");
            frozen
        });
        assert_eq!(outcome.lost(), 0, "{name}: {outcome}");
        // Control does not follow changes from now on.
        lab.rtr.ip("route add blackhole 10.9.0.0/16");
        assert!(!is_forwarded(lab, "10.9.9.9"), "{name}: forwarded by old tables");
        lab.rtr.ip("route del blackhole 10.9.0.0/16");
        let status = router.ask("status", &["--timeout", "60"]).expect("brickmoon");
        let text = String::from_utf8_lossy(&status.stderr).into_owned();
        assert_eq!(status.status.code(), Some(1), "{name}: {text}");
        assert!(text.contains("the control thread has made no progress for"), "{name}: {text}");
        let metrics = router.get("/v1/metrics").expect("metrics");
        assert!(metrics.contains("brickmoon_silent_threads{} 1"), "{name}: {metrics}");
        drop(frozen);
        eventually("brickmoon does not forward again", || forwards(lab));
        router.settle();
    });
}

/// How long a rule may be ignored because a thread hangs: the silence that is tolerated (350 ms), a check (50 ms), and
/// what a busy machine adds.
const IGNORED_MAX: Duration = Duration::from_millis(800);
/// How often it is tried: a machine that gives the watchdog no core for half a second does so rarely.
const ROUNDS: usize = 3;

/// How long a rule of Linux is ignored that is added once a thread of the daemon hangs.
fn ignored_for(lab: &Lab, process: u32, thread: &str) -> Duration {
    let ([added, removed], passed) = Stream::to("10.9.9.9", 4000).passed_during(lab, || {
        let frozen = Frozen::new(process, thread).expect("a thread");
        lab.rtr.feed("nft add rule ip t f ip daddr 10.9.9.9 drop", "").expect("nft");
        let added = sys::wall_clock();
        std::thread::sleep(IGNORED_MAX * 2);
        let removed = sys::wall_clock();
        drop(frozen);
        lab.rtr.feed("nft flush chain ip t f", "").expect("nft");
        [added, removed]
    });
    let last = passed.into_iter().map(|(_, sent)| sent).filter(|sent| *sent < removed).max();
    last.expect("packets came through before").saturating_sub(added)
}

#[test]
fn a_rule_is_not_ignored_because_a_thread_hangs() {
    if !command::has("nft") {
        return report::skip("hangs", "a rule while a thread hangs: needs nft");
    }
    on_both("ignored", |lab, router| {
        let name = router.name();
        lab.rtr
            .feed("nft add table ip t && nft add chain ip t f '{ type filter hook forward priority 0; }'", "")
            .expect("nft");
        let process = router.process().expect("a daemon");
        for thread in ["bm-firewall", "bm-control"] {
            let mut least = Duration::MAX;
            for _ in 0..ROUNDS {
                router.settle();
                eventually("brickmoon does not forward", || forwards(lab));
                least = least.min(ignored_for(lab, process, thread));
                if least < IGNORED_MAX {
                    break;
                }
            }
            report::say(&format!("hangs: {name}: a rule was ignored for {least:?} while {thread} hung"));
            assert!(least < IGNORED_MAX, "{name}: {thread}: {least:?}");
        }
        eventually("brickmoon does not forward again", || forwards(lab));
        router.settle();
    });
}

#[test]
fn a_daemon_survives_a_long_hang_of_its_control_thread() {
    on_both("outlives", |lab, router| {
        let name = router.name();
        eventually("brickmoon does not forward", || forwards(lab));
        // A port that is refused is tried again and again, which needs control.
        lab.delete(Side::Low);
        lab.rtr.run("ip tuntap add dev r2 mode tun");
        let is_refused = || router.json(&["show", "ports"])["ports"][2]["state"] == "refused";
        eventually("an interface without Ethernet headers is no port", is_refused);
        let process = router.process().expect("a daemon");
        let frozen = Frozen::new(process, "bm-control").expect("a thread");
        std::thread::sleep(Duration::from_secs(9));
        assert!(sys::signal(process, 0).is_ok() && !frozen.has_ended(), "{name}: {}", router.log());
        drop(frozen);
        lab.rtr.run("ip link del r2");
        lab.make_again(Side::Low, 0x51);
        let is_taken = || router.json(&["show", "ports"])["ports"][2]["state"] == "attached";
        eventually("the port does not come back", is_taken);
        assert!(forwards(lab), "{name}");
        router.settle();
    });
}

#[test]
fn a_daemon_whose_control_hangs_ends_on_sigterm() {
    on_both("sigterm", |lab, router| {
        let name = router.name();
        let process = router.process().expect("a daemon");
        let ((), outcome) = stream().during(lab, || {
            let frozen = Frozen::new(process, "bm-control").expect("a thread");
            let since = Instant::now();
            sys::signal(process, libc::SIGTERM).expect("it is there");
            while !frozen.has_ended() {
                assert!(since.elapsed() < PATIENCE, "{name}: the daemon must end");
                std::thread::sleep(Duration::from_millis(20));
            }
            report::say(&format!("hangs: {name}: ended {:?} after SIGTERM", since.elapsed()));
        });
        // Without control, nothing can make a port on workers stop accepting packets, so those in its ring are lost. How
        // many come until its socket is closed depends on how busy the machine is.
        let most = if router.is_kernel() { 0 } else { RING };
        assert!(outcome.lost_by_router() <= most, "{name}: {outcome}");
        eventually("the program stays", || !lab.rtr.run("ip link show").contains("xdp"));
        assert!(!forwards(lab), "{name}");
    });
}

#[test]
fn linux_forwards_while_the_whole_daemon_is_stopped() {
    on_both("still", |lab, router| {
        let name = router.name();
        let process = router.process().expect("a daemon");
        let (took, outcome) = stream().during(lab, || {
            std::thread::sleep(Duration::from_millis(100));
            let (before, since) = (by_linux(lab), Instant::now());
            sys::signal(process, libc::SIGSTOP).expect("it is there");
            until_linux_forwards(lab, before, since)
        });
        report::say(&format!("hangs: {name}: Linux forwards {took:?} after SIGSTOP: {outcome}"));
        assert!(took < BOUND, "{name}: {took:?}");
        sys::signal(process, libc::SIGCONT).expect("it is there");
        eventually("brickmoon does not forward again", || forwards(lab));
        router.settle();
    });
}

/// A switch, and a node of a cluster, with an interface each.
fn switch_and_node(key: &Path) -> String {
    format!(
        "[[switch]]\nname = 'lan'\nports = ['g0']\n\
         [cluster]\nname = 'n0'\nepoch = 1\nkey_file = '{}'\n\
         [[cluster.port]]\ndevice = 'r1'\nnumber = 0\n\
         [[cluster.member]]\nname = 'n0'\nnode = 0\n[[cluster.member]]\nname = 'n1'\nnode = 1\n\
         [[cluster.fabric]]\ndevice = 'f0'\npeer = 'n1'\n",
        key.display()
    )
}

#[test]
fn a_switch_or_a_node_that_hangs_is_reported() {
    let Some(subject) = Subject::kernel("others") else { return };
    let lab = Lab::new("others", Ends::Silent);
    lab.rtr.ip("link add g0 up type veth peer name g1\nlink add f0 up type veth peer name f1");
    let mut router = subject.start(&lab);
    router.end(&[]);
    let key = std::env::temp_dir().join(format!("{}.key", lab.rtr.name()));
    std::fs::write(&key, "an example of a key of 32 bytes!").expect("a file");
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("our file");
    router.restart_with(&["r0", "r1"], &switch_and_node(&key));
    let process = router.process().expect("a daemon");
    let silent = |router: &Router| {
        let metrics = router.get("/v1/metrics").expect("metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix("brickmoon_silent_threads{} "));
        line.and_then(|count| count.parse::<u32>().ok()).unwrap_or_else(|| panic!("{metrics}"))
    };
    assert_eq!(silent(&router), 0);
    let frozen = ["bm-switch", "bm-cluster"].map(|name| Frozen::new(process, name).expect("a thread"));
    eventually("threads that hang are counted", || silent(&router) == 2);
    let log = router.log();
    for name in ["bm-switch", "bm-cluster"] {
        assert!(log.contains(&format!("thread {name} makes no progress")), "{log}");
    }
    drop(frozen);
    eventually("both threads go on", || silent(&router) == 0);
    router.end(&[]);
    std::fs::remove_file(&key).expect("our file");
}

/// The messages that systemd gets within this time.
fn heard(systemd: &UnixDatagram, within: Duration) -> Vec<String> {
    let begin = Instant::now();
    let mut all = Vec::new();
    let mut buffer = [0; 256];
    while let left @ 1.. = within.saturating_sub(begin.elapsed()).as_millis() {
        systemd.set_read_timeout(Some(Duration::from_millis(left as u64))).expect("a time");
        if let Ok(count) = systemd.recv(&mut buffer) {
            all.push(String::from_utf8_lossy(&buffer[..count]).into_owned());
        }
    }
    all
}

#[test]
fn systemd_gets_watchdog_messages_while_no_thread_hangs() {
    on_both("systemd", |lab, router| {
        router.end(&[]);
        let path = std::env::temp_dir().join(format!("{}.sock", lab.rtr.name()));
        let systemd = UnixDatagram::bind(&path).expect("a socket");
        router.set_variable("NOTIFY_SOCKET", path.to_str().expect("a name of ours"));
        router.set_variable("WATCHDOG_USEC", "400000");
        router.restart();
        let mut all = Vec::new();
        eventually("systemd hears nothing", || {
            all.extend(heard(&systemd, Duration::from_millis(500)));
            all.first().is_some_and(|first| first == "READY=1") && all.iter().any(|text| text == "WATCHDOG=1")
        });
        let frozen = Frozen::new(router.process().expect("a daemon"), "bm-control").expect("a thread");
        // Messages that were already sent.
        heard(&systemd, BOUND);
        assert_eq!(heard(&systemd, BOUND), [""; 0], "a thread hangs");
        drop(frozen);
        eventually("systemd hears nothing more", || {
            heard(&systemd, Duration::from_millis(500)).iter().any(|text| text == "WATCHDOG=1")
        });
        router.end(&[]);
        assert!(heard(&systemd, BOUND).iter().any(|text| text == "STOPPING=1"));
        let _gone = std::fs::remove_file(&path);
    });
}
