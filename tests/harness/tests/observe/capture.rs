//! `brickmoon capture` and `brickmoon trace`: received and sent packets, byte by byte, and what happened to each.
//!
//! Most of it needs a kernel that lets programs run before and after others (fentry); `make test-vm` has one.

use bm_tests::PATIENCE;
use bm_tests::command::{Running, has};
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::packet::{Ip4, routed};
use bm_tests::report;
use bm_tests::subject::{Router, Subject, binary};
use serde_json::Value;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

/// The bytes of a packet as it came and as it left.
type Pair = (Vec<u8>, Vec<u8>);

const COUNT: u8 = 20;
/// What all packets of these tests match, and the fence of an exchange does not.
const FILTER: &str = "udp dst port 7001";

/// A command of brickmoon that shows packets until it is ended.
struct Shown {
    process: Running,
    out: PathBuf,
    err: PathBuf,
}

impl Shown {
    /// Starts it and waits until it is attached; `None`, with a message, if the kernel refuses.
    fn start(lab: &Lab, router: &Router, words: &[&str]) -> Option<Self> {
        let name = |kind: &str| {
            let unique = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos();
            std::env::temp_dir().join(format!("bm-capture-{}-{unique}.{kind}", std::process::id()))
        };
        let (out, err) = (name("out"), name("err"));
        let mut command = lab.rtr.command(binary()?);
        command.args(words).arg("--socket").arg(router.socket()?).stdin(Stdio::null());
        command.stdout(File::create(&out).expect("a file")).stderr(File::create(&err).expect("a file"));
        let mut shown = Self { process: Running::start(&mut command), out, err };
        let begin = Instant::now();
        while !shown.said().contains("showing packets at ") {
            if let Ok(Some(status)) = shown.process.child().try_wait() {
                let said = shown.said();
                assert!(
                    said.contains("does not let programs run before and after others"),
                    "{status}: {said}"
                );
                report::skip("capture", said.trim());
                return None;
            }
            assert!(begin.elapsed() < PATIENCE, "not attached: {}", shown.said());
            std::thread::sleep(Duration::from_millis(10));
        }
        // On an emulated machine, loading programs may keep the daemon from running for a second.
        router.settle();
        Some(shown)
    }

    /// What it printed on standard error.
    fn said(&self) -> String {
        std::fs::read_to_string(&self.err).unwrap_or_default()
    }

    /// The lines so far.
    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.out).unwrap_or_default();
        text.lines().map(Into::into).collect()
    }

    /// Waits until it has printed so many lines, and a moment for more.
    fn await_lines(&self, count: usize) -> Vec<Value> {
        let begin = Instant::now();
        while self.lines().len() < count && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(300));
        let parse = |line: &String| serde_json::from_str(line).unwrap_or_else(|why| panic!("{line}: {why}"));
        self.lines().iter().map(parse).collect()
    }

    /// Ends it as ^C does; returns what it said last.
    fn end(mut self) -> String {
        assert!(self.process.terminate(PATIENCE), "it does not end");
        self.said()
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        let _ = self.process.child().kill();
        for file in [&self.out, &self.err] {
            let _gone = std::fs::remove_file(file);
        }
    }
}

/// Packets that differ, as they come and as they leave.
fn packets() -> Vec<(Vec<u8>, Vec<u8>)> {
    let packet = |i: u8| {
        let data = vec![i; 20 + usize::from(i)];
        Ip4::udp_ports("192.0.2.2", "10.9.9.9", 7000, 7001, &data).id(i.into()).bytes()
    };
    let frames = |packet: Vec<u8>| (Side::Src.to_router(&packet), Side::Snk.to_neighbor(2, &routed(&packet)));
    (0..COUNT).map(packet).map(frames).collect()
}

/// Sends them through the router, all of which must arrive.
fn send(lab: &Lab, packets: &[(Vec<u8>, Vec<u8>)]) {
    for (came, left) in packets {
        lab.send(Side::Src, came);
        let found = lab.await_frame(Side::Snk, PATIENCE, |frame| frame == left);
        assert!(found.is_some(), "a packet is lost");
    }
}

fn hex(frame: &[u8]) -> String {
    frame.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The frames that one direction of a capture shows at a port, after checking what it says about them.
fn frames(shown: &[Value], interface: &str, outcome: &str) -> Vec<String> {
    let here = shown.iter().filter(|packet| packet["interface"] == interface);
    let frame = |packet: &Value| {
        assert_eq!(packet["outcome"], outcome, "{packet}");
        packet["frame"].as_str().unwrap_or_default().to_string()
    };
    here.map(frame).collect()
}

/// Runs a test on both paths of brickmoon.
fn on_both_paths(test: &str, action: impl Fn(&Lab, &mut Router)) {
    for subject in Subject::all(test).into_iter().filter(|subject| *subject != Subject::Linux) {
        let lab = Lab::new(test, Ends::Silent);
        let mut router = subject.start(&lab);
        lab.drain();
        action(&lab, &mut router);
        router.assert_verified();
        // Where the kernel refuses captures, the test has sent nothing.
        if router.sent() == 0 { router.end(&[]) } else { router.stop() }
    }
}

#[test]
fn a_capture_shows_what_came_and_what_left() {
    on_both_paths("capture-bytes", |lab, router| {
        let Some(shown) = Shown::start(lab, router, &["capture", "any", FILTER, "--json"]) else { return };
        let packets = packets();
        send(lab, &packets);
        let all = shown.await_lines(2 * packets.len());
        let [received, sent] = match router.is_kernel() {
            true => ["forwarded to r1", "sent by the kernel path"],
            false => ["handed to a worker", "sent by a worker"],
        };
        let hex_of = |which: fn(&Pair) -> &Vec<u8>| {
            packets.iter().map(|packet| hex(which(packet))).collect::<Vec<_>>()
        };
        assert_eq!(frames(&all, "r0", received), hex_of(|(came, _)| came), "{}", router.name());
        assert_eq!(frames(&all, "r1", sent), hex_of(|(_, left)| left), "{}", router.name());
        assert_eq!(all.len(), 2 * packets.len());
        let said = shown.end();
        assert!(said.contains("40 packets captured, none lost"), "{said}");
    });
}

#[test]
fn a_capture_says_why_linux_gets_a_packet() {
    on_both_paths("capture-why", |lab, router| {
        let words = ["capture", "r0", "-Q", "in", "udp", "--json"];
        let Some(shown) = Shown::start(lab, router, &words) else { return };
        let packet = |to: &str, ttl| Ip4::udp_ports("192.0.2.2", to, 7000, 7001, &[1; 20]).ttl(ttl).bytes();
        let cases: &[(Vec<u8>, &str)] = match router.is_kernel() {
            true => &[
                (packet("10.9.9.9", 1), "hops"),
                (packet("192.0.2.1", 64), "local"),
                (packet("11.0.0.1", 64), "no_route"),
            ],
            false => &[(packet("192.0.2.1", 64), "local")],
        };
        for (packet, _) in cases {
            lab.send(Side::Src, &Side::Src.to_router(packet));
        }
        let all = shown.await_lines(cases.len());
        assert_eq!(all.len(), cases.len(), "{all:?}");
        for (packet, (_, reason)) in all.iter().zip(cases) {
            assert_eq!((&packet["outcome"], &packet["reason"]), (&"left to Linux".into(), &(*reason).into()));
        }
        shown.end();
    });
}

#[test]
fn two_captures_and_one_that_is_killed() {
    on_both_paths("capture-two", |lab, router| {
        let words = ["capture", "any", FILTER, "--json"];
        let Some(first) = Shown::start(lab, router, &words) else { return };
        let mut second = Shown::start(lab, router, &words).expect("the first one could");
        let packets = packets();
        send(lab, &packets);
        for shown in [&first, &second] {
            assert_eq!(shown.await_lines(2 * packets.len()).len(), 2 * packets.len());
        }
        second.process.child().kill().expect("it runs");
        second.process.child().wait().expect("it ends");
        send(lab, &packets);
        assert_eq!(first.await_lines(4 * packets.len()).len(), 4 * packets.len());
        first.end();
        if has("bpftool") {
            let left = lab.rtr.run("bpftool prog show");
            assert!(!left.contains("before_xdp") && !left.contains("worker_sends"), "{left}");
        }
        send(lab, &packets);
    });
}

/// The blocks of a capture file: type and body.
fn blocks(file: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().expect("four bytes"));
    let (mut at, mut blocks) = (0, Vec::new());
    while at < file.len() {
        let length = word(at + 4) as usize;
        assert_eq!(word(at + length - 4) as usize, length, "a block ends with its length");
        blocks.push((word(at), file[at + 8..at + length - 4].to_vec()));
        at += length;
    }
    blocks
}

#[test]
fn a_capture_file_has_the_packets_with_their_comments() {
    on_both_paths("capture-file", |lab, router| {
        let file = std::env::temp_dir().join(format!("bm-capture-{}.pcapng", std::process::id()));
        let path = file.display().to_string();
        let words = ["capture", "r0", FILTER, "-Q", "in", "-w", &path, "-c", "20"];
        let Some(mut shown) = Shown::start(lab, router, &words) else { return };
        let packets = packets();
        send(lab, &packets);
        assert!(shown.process.wait(PATIENCE), "it does not end after 20 packets");
        let blocks = blocks(&std::fs::read(&file).expect("the file"));
        let of = |kind: u32| {
            blocks.iter().filter(move |(of, _)| *of == kind).map(|(_, body)| body).collect::<Vec<_>>()
        };
        assert_eq!((of(1).len(), of(5).len()), (1, 1), "one interface, one block of statistics");
        let captured = of(6);
        assert_eq!(captured.len(), packets.len());
        let comment = if router.is_kernel() { "r0: forwarded to r1" } else { "r0: handed to a worker" };
        for (body, (came, _)) in captured.iter().zip(&packets) {
            assert_eq!(&body[20..20 + came.len()], came);
            assert!(body.windows(comment.len()).any(|bytes| bytes == comment.as_bytes()));
        }
        if has("tcpdump") {
            let text = lab.rtr.run(&format!("tcpdump -n -r {path}"));
            assert_eq!(
                text.lines().filter(|line| line.contains("192.0.2.2.7000 > 10.9.9.9.7001: UDP")).count(),
                20
            );
        }
        let _gone = std::fs::remove_file(&file);
    });
}

#[test]
fn a_reader_that_stops_ends_the_capture_and_not_the_router() {
    on_both_paths("capture-end", |lab, router| {
        let Some(shown) = Shown::start(lab, router, &["capture", "any", FILTER, "--lines"]) else { return };
        shown.end();
        let (Some(path), Some(socket)) = (binary(), router.socket()) else { return };
        let line = format!("{} capture any --socket {socket} | head -c 100 | wc -c", path.display());
        let mut command = lab.rtr.command("bash");
        command.args(["-c", &line]).stdin(Stdio::null());
        let mut piped = Running::start(&mut command);
        let packets = packets();
        let begin = Instant::now();
        while !piped.child().try_wait().expect("it runs").is_some_and(|status| status.success()) {
            assert!(begin.elapsed() < PATIENCE, "it does not end");
            send(lab, &packets);
        }
        let mut command = lab.rtr.command(&path);
        command.args(["capture", "any", "-w", "/dev/full", "--socket", &socket]).stderr(Stdio::piped());
        let full = bm_tests::command::finish("capture", command.spawn().expect("it starts"), b"", PATIENCE);
        assert_eq!(full.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&full.stderr).contains("/dev/full: No space left"), "{full:?}");
        send(lab, &packets);
    });
}

#[test]
fn a_trace_follows_packets_to_where_they_leave() {
    on_both_paths("trace", |lab, router| {
        let Some(mut shown) = Shown::start(lab, router, &["trace", FILTER, "-n", "3", "--json"]) else {
            return;
        };
        let packets = packets();
        send(lab, &packets[..3]);
        assert!(shown.process.wait(PATIENCE), "it does not end after three packets");
        let traces = shown.await_lines(3);
        assert_eq!(traces.len(), 3);
        let (decided, by) = match router.is_kernel() {
            true => ("forwarded to r1", "by kernel path"),
            false => ("handed to a worker", "by a worker"),
        };
        for trace in &traces {
            let steps = trace["steps"].as_array().expect("steps");
            let text = |at: usize, key: &str| steps[at][key].as_str().unwrap_or_default().to_string();
            assert_eq!(steps.len(), 3, "{trace}");
            assert_eq!((text(0, "step"), text(0, "interface")), ("received".into(), "r0".into()));
            assert!(text(0, "what").contains("02:00:00:00:00:02 > 02:00:00:00:00:01, ttl 64"), "{trace}");
            assert_eq!((text(1, "step"), text(1, "what")), ("decided".into(), decided.into()));
            assert_eq!((text(2, "step"), text(2, "interface")), ("sent".into(), "r1".into()));
            let sent = format!("{by}, {} > {}, ttl 63", Side::Snk.mac(1), Side::Snk.mac(2));
            assert_eq!(text(2, "what"), sent);
            assert!(steps[2]["after_ns"].as_u64().expect("a time") > 0, "{trace}");
        }
    });
}

#[test]
fn what_cannot_be_captured_is_said() {
    on_both_paths("capture-no", |lab, router| {
        let (Some(path), Some(socket)) = (binary(), router.socket()) else { return };
        let refused = |words: &[&str]| {
            let mut command = lab.rtr.command(&path);
            command.args(words).args(["--socket", &socket]).stderr(Stdio::piped());
            let Output { status, stderr, .. } =
                bm_tests::command::finish("capture", command.spawn().expect("it starts"), b"", PATIENCE);
            assert_eq!(status.code(), Some(2), "{words:?}");
            String::from_utf8_lossy(&stderr).into_owned()
        };
        let text = refused(&["capture", "r7"]);
        assert!(
            text.contains("there is no capture point \"r7\"; capture points are: any, r0, r1, r2"),
            "{text}"
        );
        let text = refused(&["capture"]);
        assert!(text.contains("which packets? capture points are: any, r0, r1, r2"), "{text}");
        let text = refused(&["capture", "any", "udp", "prt", "53"]);
        assert!(text.contains("\n   udp prt 53\n       ^\n"), "{text}");
        let text = refused(&["trace", "host", "10.0.0.256"]);
        assert!(text.contains("256 cannot be part of an IPv4 address"), "{text}");
        let many =
            (0..4000).map(|i| format!("10.{}.{}.1", i / 256, i % 256)).collect::<Vec<_>>().join(" or ");
        let text = refused(&["capture", "any", &format!("host {many}")]);
        assert!(text.contains("the filter is too long"), "{text}");
    });
}
