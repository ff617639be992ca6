//! What may hang or be in the way of a daemon at work: nobody waits for it, and no packet goes by tables that nobody
//! keeps.

use bm_tests::daemon::eventually;
use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::packet::{Ip4, routed};
use bm_tests::subject::{self, Subject};
use bm_tests::{command, report, sys};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Stdio};
use std::time::Duration;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A daemon whose standard error is a pipe that nobody reads.
struct Unread<'a> {
    lab: &'a Lab,
    child: Child,
    errors: ChildStderr,
    folder: PathBuf,
}

impl<'a> Unread<'a> {
    /// Starts it on this path, saying as much as it can.
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
        BufReader::new(output).read_line(&mut line).expect("it says something");
        assert!(line.starts_with("ready"), "{line}");
        Self { lab, child, errors, folder }
    }

    fn ask(&self, what: &[&str]) -> std::process::Output {
        let mut command = self.lab.rtr.command(subject::binary().expect("a binary"));
        command.args(what).arg("--socket").arg(self.folder.join("api.sock"));
        command::run(&what.join(" "), &mut command, PATIENCE).expect("an answer")
    }

    /// What is in the pipe, and what comes until the daemon has ended.
    fn rest(mut self) -> String {
        let mut said = Vec::new();
        self.errors.read_to_end(&mut said).expect("a pipe");
        String::from_utf8_lossy(&said).into_owned()
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
fn a_log_that_nobody_reads_keeps_nobody_waiting() {
    for subject in Subject::all("unread").into_iter().filter(|subject| *subject != Subject::Linux) {
        let path = if subject.to_string() == "brickmoon" { "user" } else { "kernel" };
        let lab = Lab::new("unread", Ends::Silent);
        SIDES.iter().for_each(|side| lab.receive_offload(*side));
        let daemon = Unread::start(&lab, path);
        assert!(is_forwarded(&lab, "10.9.9.9"));
        // Each says some lines, so that the pipe (64 KiB) and what may wait for it (1 MiB) are full.
        eventually("the log has room for everything", || {
            let moved = |turn: u32| {
                format!("route replace 10.200.{}.0/24 via 198.51.100.{}\n", turn % 250, 3 + turn % 4)
            };
            lab.rtr.ip(&(0..5000).map(moved).collect::<String>());
            let status = daemon.ask(&["status"]);
            assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
            String::from_utf8_lossy(&status.stdout).contains("lines of the log were lost")
        });
        // Control goes on all the same.
        lab.rtr.ip("route add blackhole 10.9.0.0/16");
        eventually("control does not follow", || !is_forwarded(&lab, "10.9.9.9"));
        lab.rtr.ip("route del blackhole 10.9.0.0/16");
        eventually("control does not follow", || is_forwarded(&lab, "10.9.9.9"));
        sys::signal(daemon.child.id(), libc::SIGTERM).expect("it is there");
        let said = daemon.rest();
        let missing = said.lines().find(|line| line.contains("lines of the log are missing here"));
        let missing = missing.unwrap_or_else(|| panic!("{path}: {} bytes of log, no loss in it", said.len()));
        report::say(&format!("hangs: {path}: {missing}"));
    }
}
