//! A daemon keeps working when a resource is exhausted, and reports what it cannot get as an error with a reason.

use bm_tests::daemon::eventually;
use bm_tests::flow::Stream;
use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::netlink::Requests;
use bm_tests::subject::{self, Router, Subject};
use bm_tests::usage::Usage;
use bm_tests::{PATIENCE, command, report, sys};
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Number of connections that send nothing.
const IDLE: usize = 980;

fn on_kernel(test: &str, config: &str, action: impl FnOnce(&Lab, &mut Router)) {
    let Some(subject) = Subject::kernel(test) else { return };
    let lab = Lab::new(test, Ends::Silent);
    lab.rtr.run("ip link set lo up");
    let mut router = subject.start(&lab);
    router.end(&[]);
    router.restart_with(&SIDES.map(|side| side.router()), config);
    action(&lab, &mut router);
}

/// The text of a scrape, or as much of it as arrived.
fn scrape(lab: &Lab) -> String {
    lab.rtr.within(|| {
        let mut stream = TcpStream::connect("127.0.0.1:9187").expect("the daemon listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        let asked = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let mut text = String::new();
        // What arrived before a connection was closed is still worth showing.
        let _broken = asked.and_then(|()| stream.read_to_string(&mut text));
        text
    })
}

fn descriptors(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).expect("a process").count()
}

#[test]
fn idle_connections_do_not_affect_others() {
    on_kernel("idle", "[daemon]\nmetrics = \"127.0.0.1:9187\"\n", |lab, router| {
        let process = router.process().expect("a daemon");
        let before = descriptors(process);
        let connect = |_| TcpStream::connect("127.0.0.1:9187").expect("the daemon listens");
        let idle: Vec<TcpStream> = lab.rtr.within(|| (0..IDLE).map(connect).collect());
        let begin = Instant::now();
        let text = scrape(lab);
        assert!(text.contains("brickmoon_ready{} 1"), "{text}");
        report::say(&format!("exhaustion: scraped {:?} behind {IDLE} idle connections", begin.elapsed()));
        assert!(descriptors(process) < before + 100, "{} of {IDLE}", descriptors(process) - before);
        // Meanwhile a setting changes, which ports must follow.
        lab.rtr.run("sysctl -qw net.ipv4.ip_default_ttl=77");
        router.settle();
        let metrics = router.get("/v1/metrics").expect("metrics");
        assert!(metrics.contains("brickmoon_mirror_unread_total{} 0"), "{metrics}");
        // They are closed after a while even if nobody else wants to connect.
        eventually("idle connections must be closed", || descriptors(process) <= before + 2);
        drop(idle);
    });
}

/// The soft and the hard limit on descriptors of a process.
fn limits(process: u32) -> [u64; 2] {
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).expect("a process");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    let mut numbers = line.split_whitespace().skip(3).map(|number| number.parse().expect("a number"));
    [(); 2].map(|()| numbers.next().expect("soft and hard"))
}

#[test]
fn the_daemon_raises_its_limit_on_descriptors() {
    on_kernel("limit", "", |lab, router| {
        router.end(&[]);
        let socket = std::env::temp_dir().join(format!("{}.sock", lab.rtr.name()));
        let mut up = lab.rtr.command("sh");
        up.args(["-c", "ulimit -Sn 256; exec $BM up --path kernel --port r0 --port r1 --socket $SOCKET"]);
        up.env("BM", subject::binary().expect("a binary")).env("SOCKET", &socket);
        let mut daemon = command::Running::start(up.stdin(Stdio::null()).stdout(Stdio::null()));
        eventually("the daemon does not listen", || socket.exists());
        let [soft, hard] = limits(daemon.id());
        report::say(&format!("exhaustion: {soft} descriptors instead of 256, of {hard}"));
        assert_eq!(soft, hard.min(65_536));
        assert!(daemon.terminate(PATIENCE));
    });
}

/// Runs a shell's command line in the lab's router with a folder of 64 KiB; `$DIR` is the folder, `$BM` the binary.
fn in_small_folder(lab: &Lab, line: &str) -> Output {
    let folder = std::env::temp_dir().join(lab.rtr.name());
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut command = lab.rtr.command("unshare");
    command.args(["-m", "sh", "-c"]).arg(format!("mount -t tmpfs -o size=64k none $DIR && {line}"));
    command.env("DIR", &folder).env("BM", subject::binary().expect("a binary"));
    let output = command::run(line, &mut command, PATIENCE).expect("it ends");
    let _gone = std::fs::remove_dir_all(&folder);
    output
}

#[test]
fn a_full_file_system_is_an_error() {
    let Some(_) = Subject::kernel("full") else { return };
    let lab = Lab::new("full", Ends::Silent);
    let up = in_small_folder(&lab, "exec $BM up --port r0 --port r1 --socket $DIR/api.sock");
    let text = String::from_utf8_lossy(&up.stderr).into_owned();
    assert_eq!(up.status.code(), Some(1), "{}: {text}", up.status);
    assert!(text.contains("/api.stats: No space left on device"), "{text}");
    let program = "local sys = require('brickmoon.sys') \
        local at, why = sys.map_file(os.getenv('DIR')..'/x', 2^20, false, true) print(at, why)";
    let line = format!("echo \"{program}\" > $DIR/p.lua && exec $BM run --socket $DIR/p.sock $DIR/p.lua");
    let run = in_small_folder(&lab, &line.replace("--socket $DIR/p.sock", "--socket /tmp/$$.sock"));
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    assert_eq!(text, "nil\tNo space left on device\n", "{run:?}");
}

#[test]
fn a_full_or_closed_output_does_not_panic() {
    on_kernel("output", "", |lab, router| {
        let full = || std::fs::File::create("/dev/full").expect("a device");
        let folder = std::env::temp_dir().join(lab.rtr.name());
        std::fs::create_dir_all(&folder).expect("a folder");
        router.end(&[]);
        let socket = folder.join("api.sock");
        let mut up = lab.rtr.command(subject::binary().expect("a binary"));
        up.args(["up", "--path", "kernel", "--port", "r0", "--port", "r1", "--socket"]).arg(&socket);
        up.stdin(Stdio::null()).stdout(full()).stderr(full());
        let mut daemon = command::Running::start(&mut up);
        let ask = |command: &str| -> Command {
            let mut asked = lab.rtr.command("sh");
            asked
                .args(["-c", command])
                .env("BM", subject::binary().expect("a binary"))
                .env("SOCKET", &socket);
            asked
        };
        let run = |line: &str| command::run(line, &mut ask(line), PATIENCE).expect("it ends");
        eventually("the daemon does not answer", || run("$BM status --socket $SOCKET").status.success());
        let text = run("$BM status --socket $SOCKET > /dev/full");
        let why = String::from_utf8_lossy(&text.stderr).into_owned();
        assert_eq!(
            (text.status.code(), why.as_str()),
            (Some(1), "brickmoon: No space left on device (os error 28)\n")
        );
        for closed in ["$BM status --socket $SOCKET >&-", "$BM status --socket $SOCKET >&- 2>&-"] {
            assert!(run(closed).status.success(), "{closed}");
        }
        assert_eq!(run("$BM status --socket /nowhere 2> /dev/full").status.code(), Some(1));
        assert!(run("$BM stop --socket $SOCKET").status.success());
        assert!(daemon.wait(PATIENCE));
        let _gone = std::fs::remove_dir_all(&folder);
    });
}

/// Every command that prints more than a line; `SOCKET` and `FILE` stand for those of the test.
const TALKATIVE: &[&str] = &[
    "status",
    "show ports",
    "show routes",
    "show routes 10.9.9.9",
    "show neighbors",
    "show nexthops",
    "show apps",
    "show links",
    "show workers",
    "show drops",
    "show hooks",
    "show switch",
    "show macs",
    "show filters",
    "verify",
    "reload",
];
/// The same of commands that ask no daemon.
const ALONE: &[&str] = &[
    "--help",
    "--version",
    "up --help",
    "show --help",
    "bench --help",
    "demo --help",
    "run --help",
    "run FILE",
    "snabb -t lib.ipv4",
    "check /nonexistent.toml",
    "nonsense",
];

/// As with `brickmoon ... | head -1`: whoever reads goes away, which is no reason to fail or to complain.
#[test]
fn nobody_reads_to_the_end() {
    on_kernel("head", "[filter]\nunmatched = \"accept\"\n", |_, router| {
        let binary = subject::binary().expect("a binary");
        let socket = router.socket().expect("a daemon");
        let program = std::env::temp_dir().join(format!("bm-head-{}.lua", std::process::id()));
        std::fs::write(&program, "for line = 1, 100000 do print('line', line) end\n").expect("a file");
        let closed = || {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            drop(reader);
            writer
        };
        // The status with its output closed, and with its output read; what it said to standard error meanwhile.
        let run = |line: &str, output: Stdio, errors: Stdio| {
            let mut command = command::brickmoon().expect("a binary");
            let words = line.split(' ').map(|word| word.replace("FILE", &program.to_string_lossy()));
            command.args(words).stdin(Stdio::null()).stdout(output).stderr(errors);
            let done = command.spawn().and_then(std::process::Child::wait_with_output);
            let done = done.unwrap_or_else(|error| panic!("{}: {error}", binary.display()));
            (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
        };
        let asked = TALKATIVE.iter().flat_map(|line| {
            [format!("{line} --socket {socket}"), format!("{line} --json --socket {socket}")]
        });
        for line in asked.chain(ALONE.iter().map(|line| line.to_string())) {
            let read = run(&line, Stdio::null(), Stdio::piped());
            assert!(
                TALKATIVE.iter().all(|asked| !line.starts_with(asked)) || read.0 == Some(0),
                "{line}: {read:?}"
            );
            assert_eq!(run(&line, closed().into(), Stdio::piped()), read, "{line}");
            let silent = run(&line, closed().into(), closed().into());
            assert_eq!(silent, (read.0, String::new()), "{line} 2>&1");
        }
        let _gone = std::fs::remove_file(program);
    });
}

/// Changes to interfaces that are not ports, unless `BM_EVENTS` says another number, such as 100,000.
const EVENTS: usize = 20_000;
/// The most changes in one run of `ip`.
const BATCH: usize = 10_000;

#[test]
fn changes_to_thousands_of_other_interfaces_delay_nothing() {
    let events = std::env::var("BM_EVENTS").ok().and_then(|events| events.parse().ok()).unwrap_or(EVENTS);
    subject::each("noise", Ends::Silent, |lab, router| {
        let batches = |line: &dyn Fn(usize) -> String| {
            for first in (0..events).step_by(BATCH) {
                lab.rtr.ip(&(first..first + BATCH).map(line).collect::<String>());
            }
        };
        lab.rtr.ip("link add n0 type veth peer name n1\nlink set n0 up\nlink set n1 up");
        let begin = Instant::now();
        let ((), outcome) = Stream::to("10.9.9.9", 1000).during(lab, || {
            batches(&|number| format!("link set n{} mtu {}\n", number % 2, 1400 + number / 2 % 2));
            // Some of them come and go.
            for _ in 0..2 {
                let add = |n| format!("link add m{n} type veth peer name k{n}\nlink set m{n} up\n");
                lab.rtr.ip(&(0..250).map(add).collect::<String>());
                lab.rtr.ip(&(0..250).map(|n| format!("link del m{n}\n")).collect::<String>());
            }
            // What comes last is followed all the same.
            lab.rtr.ip("route add blackhole 10.66.0.0/16");
            router.settle();
        });
        report::say(&format!(
            "noise: {}: {events} changes in {:?}; {outcome}",
            router.name(),
            begin.elapsed()
        ));
        assert_eq!(outcome.lost(), 0, "{}: {outcome}", router.name());
        let routes = router.json(&["show", "routes", "10.66.1.1"]).to_string();
        assert!(!router.is_brickmoon() || routes.contains("blackhole"), "{routes}");
        lab.rtr.ip("route del blackhole 10.66.0.0/16\nlink del n0");
    });
}

/// A group of processes whose further memory is limited (cgroups); deleted when dropped.
struct Limited(PathBuf);

impl Limited {
    /// None where this machine has no such groups, or lets nobody make one.
    fn new(bytes: usize) -> Option<Self> {
        let name = format!("bm-limited-p{}", std::process::id());
        let folders = [("memory", "memory.limit_in_bytes"), ("", "memory.max")];
        folders.into_iter().find_map(|(controller, limit)| {
            let folder = Path::new("/sys/fs/cgroup").join(controller).join(&name);
            std::fs::create_dir(&folder).ok()?;
            let group = Self(folder);
            std::fs::write(group.0.join(limit), bytes.to_string()).ok()?;
            Some(group)
        })
    }

    fn take(&self, process: u32) {
        let file = self.0.join("cgroup.procs");
        std::fs::write(&file, process.to_string())
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // Its processes have ended, or end with the test.
        let _busy = std::fs::remove_dir(&self.0);
    }
}

/// Whether a child has ended that nobody has waited for yet.
fn has_ended(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses.
    status.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

/// Memory that a daemon may use beside what it has, and routes that need more.
const MORE_MEMORY: usize = 8 << 20;
const ROUTES_TOO_MANY: u32 = 400_000;

/// The system ends a daemon that needs more memory than its cgroup allows. Linux forwards from then on, and a daemon
/// that is started again does.
#[test]
fn a_limit_of_memory_leaves_packets_to_linux() {
    for subject in Subject::all("memory").iter().filter(|subject| **subject != Subject::Linux) {
        let Some(group) = Limited::new(MORE_MEMORY) else {
            return report::skip("exhaustion", "a limit of memory: no cgroup for memory can be made");
        };
        let lab = Lab::new("memory", Ends::Silent);
        let mut router = subject.start(&lab);
        group.take(router.process().expect("a daemon"));
        let mut requests = Requests::about(&lab.rtr, "r1");
        let via = Side::Snk.v4(2).parse().expect("an address");
        let prefix = |number: u32| (IpAddr::from((0x1400_0000 + (number << 8)).to_be_bytes()), 24);
        (0..ROUTES_TOO_MANY).for_each(|number| requests.replace_route(prefix(number), via));
        assert_eq!(requests.finish().0, 0);
        let process = router.process().expect("a daemon");
        eventually("the daemon lives within its limit", || has_ended(process));
        lab.rtr.ip("route add blackhole 10.9.9.0/24");
        let blackholed = Stream::to("10.9.9.9", 500);
        eventually("a change is not followed", || {
            blackholed.for_a_while(&lab, Duration::from_millis(100)).received == 0
        });
        let last = IpAddr::from((0x1400_0000 + ((ROUTES_TOO_MANY - 1) << 8) + 9).to_be_bytes());
        let passes = Stream::to(&last.to_string(), 1000);
        let outcome = passes.for_a_while(&lab, Duration::from_millis(500));
        assert_eq!(outcome.lost(), 0, "{}: {outcome}", router.name());
        router.kill();
        router.restart();
        router.settle();
        let outcome = passes.for_a_while(&lab, Duration::from_millis(500));
        assert_eq!(outcome.lost(), 0, "{}: {outcome}", router.name());
        router.stop();
    }
}

/// Lets a process open this many more descriptors, and then no more.
fn leave_descriptors(process: u32, more: usize) {
    let number = |name: std::ffi::OsString| name.to_string_lossy().parse::<u64>().expect("a number");
    let open = || -> std::collections::BTreeSet<u64> {
        let entries = std::fs::read_dir(format!("/proc/{process}/fd")).expect("a process").flatten();
        entries.map(|entry| number(entry.file_name())).collect()
    };
    // Connections of the test itself may still be closing.
    let steady = || {
        let before = open();
        std::thread::sleep(Duration::from_millis(500));
        before == open()
    };
    eventually("descriptors come and go", steady);
    let open = open();
    // The limit is on the numbers of descriptors; the kernel always uses the lowest free number.
    let limit = (0..).filter(|number| !open.contains(number)).nth(more).expect("a free number");
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--pid={process}")).arg(format!("--nofile={limit}:"));
    let done = command::run("prlimit", &mut limited, PATIENCE).expect("it ends");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// The thread of a process's first worker, if there is one.
fn worker(process: u32) -> Option<String> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("a process").flatten();
    let name = |path: std::path::PathBuf| std::fs::read_to_string(path.join("comm")).unwrap_or_default();
    let first = threads.map(|thread| thread.path()).find(|path| name(path.clone()).trim() == "bm-worker-0");
    first.map(|path| path.display().to_string())
}

#[test]
fn workers_start_again_without_new_descriptors() {
    let Some(subject) = Subject::user("restart-fds") else { return };
    let lab = Lab::new("restart-fds", Ends::Silent);
    lab.rtr.run("ip link set lo up");
    let mut router = subject.start(&lab);
    router.end(&[]);
    let config = |ring: u32| format!("[daemon]\nring = {ring}\nmetrics = \"127.0.0.1:9187\"\n");
    router.restart_with(&SIDES.map(|side| side.router()), &config(512));
    let process = router.process().expect("a daemon");
    let flows =
        |lab: &Lab| Stream::to(&Side::Snk.v4(2), 1000).for_a_while(lab, Duration::from_millis(500)).received;
    assert!(flows(&lab) > 0);
    leave_descriptors(process, 0);
    // Accepted connections use up all descriptors that become free.
    let connect = |_| TcpStream::connect("127.0.0.1:9187").expect("the daemon listens");
    let idle: Vec<TcpStream> = lab.rtr.within(|| (0..100).map(connect).collect());
    for ring in [1024, 512] {
        let before = worker(process);
        assert!(before.is_some());
        router.write_config(&config(ring));
        // SIGHUP needs no connection.
        let done = Command::new("kill").args(["-HUP", &process.to_string()]).status().expect("kill");
        assert!(done.success());
        let is_another = |now: Option<String>| now.is_some() && now != before;
        eventually("the worker is the same", || {
            assert!(!router.log().contains("cannot reload the configuration"), "{}", router.log());
            is_another(worker(process))
        });
        eventually("workers forward nothing", || flows(&lab) > 0);
    }
    assert!(flows(&lab) > 0, "{}", router.log());
    // With free descriptors it answers again.
    leave_descriptors(process, 300);
    eventually("status must answer", || router.ask("status", &[]).expect("a daemon").status.success());
    drop(idle);
    let before = router.sent();
    let received = u64::from(flows(&lab));
    assert!(received > 0 && router.sent() >= before + received, "{received} packets, not all by workers");
    router.stop();
}

#[test]
fn a_route_changes_without_descriptors() {
    on_kernel("route-fds", "[daemon]\nmetrics = \"127.0.0.1:9187\"\n", |lab, router| {
        let process = router.process().expect("a daemon");
        leave_descriptors(process, 2);
        let connect = |_| TcpStream::connect("127.0.0.1:9187").expect("the daemon listens");
        let idle: Vec<TcpStream> = lab.rtr.within(|| (0..100).map(connect).collect());
        lab.rtr.ip(&format!("route add 32.7.0.0/16 via {}", Side::Snk.v4(2)));
        let flows = || Stream::to("32.7.0.9", 1000).for_a_while(lab, Duration::from_millis(500)).received;
        eventually("the new route is not followed", || flows() > 0);
        lab.rtr.ip("route add blackhole 32.7.0.0/24");
        eventually("the blackhole is not followed", || flows() == 0);
        // A client of the control socket waits like those of the metrics, whose connections all end while the daemon
        // does not run. It may not have to wait until the last of them has been accepted.
        let took = std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let begin = Instant::now();
                router.ask("status", &[]).expect("a daemon");
                begin.elapsed()
            });
            std::thread::sleep(Duration::from_millis(300));
            sys::signal(process, libc::SIGSTOP).expect("a daemon");
            drop(idle);
            std::thread::sleep(Duration::from_secs(2));
            sys::signal(process, libc::SIGCONT).expect("a daemon");
            asking.join().expect("no panic")
        });
        report::say(&format!("exhaustion: status answered in {took:?}, while stopped for 2 s"));
        eventually("status must answer", || router.ask("status", &[]).expect("a daemon").status.success());
        leave_descriptors(process, 300);
        router.settle();
        router.assert_verified();
    });
}

#[test]
fn long_answers_do_not_leak_memory() {
    if std::env::var_os("ASAN_OPTIONS").is_some() {
        return report::skip(
            "exhaustion",
            "memory of long answers: AddressSanitizer keeps memory that was freed",
        );
    }
    on_kernel("answers", "", |lab, router| {
        let mut requests = Requests::about(&lab.rtr, Side::Snk.router());
        let via = Side::Snk.v4(2).parse().expect("an address");
        let prefix = |number: u32| (IpAddr::from(((32 << 24) + (number << 8)).to_be_bytes()), 24);
        (0..20_000).for_each(|number| requests.replace_route(prefix(number), via));
        assert_eq!(requests.finish().0, 0);
        router.settle();
        let process = router.process().expect("a daemon");
        let ask = || {
            let answer = router.get("/v1/routes?limit=20000").expect("routes");
            assert!(answer.len() > 1 << 20, "{} bytes", answer.len());
        };
        ask();
        let before = Usage::of(process).expect("a daemon");
        std::thread::scope(|scope| {
            let asking = || (0..4).for_each(|_| ask());
            (0..32).for_each(|_| drop(scope.spawn(asking)));
        });
        // At most eight are written at the same time, and the allocator reuses their memory for the next ones.
        let grown = || Usage::of(process).expect("a daemon").pss_kib.saturating_sub(before.pss_kib);
        eventually("answers stay in memory", || grown() < 32 << 10);
        let after = Usage::of(process).expect("a daemon");
        report::say(&format!("exhaustion: before 128 long answers {before}; after them {after}"));
        assert!(after.threads <= before.threads + 12, "{before}; {after}");
    });
}
