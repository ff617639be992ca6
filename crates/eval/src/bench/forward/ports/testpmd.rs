//! DPDK's testpmd as a child process that forwards on command, on the core on which brickmoon is measured.
//!
//! Its prompt is a thread on the same core that sleeps until a line is entered; the CPU time of the forwarding thread
//! and the packets that it counts are the sample.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use crate::alternate::Sample;

/// How it forwards: frames unchanged, or with MACs rewritten.
pub(super) const MODES: [&str; 2] = ["io", "mac"];
/// Burst size, testpmd's default.
pub(super) const BURST: usize = 32;
/// Number of bursts that are put in a ring to circulate: 992 frames of the 1,023 that fit.
const RING_BURSTS: usize = 31;
/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A testpmd that waits for commands.
pub(super) struct Testpmd {
    child: Child,
    commands: ChildStdin,
    lines: Receiver<String>,
    thread: String,
    start: String,
}

impl Testpmd {
    /// Starts it on `core` with one virtual device; in a ring, it puts frames of this many bytes. On failure, returns
    /// one line that says what is missing.
    pub fn start(mode: &str, device: &str, (core, frame_bytes): (usize, usize)) -> Result<Self, String> {
        let missing = |error: std::io::Error| {
            format!("dpdk-testpmd is needed for the comparison ({error}): apt-get install dpdk-dev")
        };
        let prefix = format!("--file-prefix=bm-testpmd-{}-{mode}", std::process::id());
        let (lcores, vdev) = (format!("--lcores=0@{core},1@{core}"), format!("--vdev={device}"));
        let mut command = Command::new("stdbuf");
        command.args(["-oL", "dpdk-testpmd", &lcores, "--no-huge", "--no-shconf", "-m", "512"]);
        command.args(["--no-telemetry", "--no-pci", &prefix, &vdev, "--", "-i", "--nb-cores=1"]);
        command.args([&format!("--forward-mode={mode}"), "--port-topology=loop", "--total-num-mbufs=16384"]);
        command.arg(format!("--txpkts={frame_bytes}"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(missing)?;
        let (Some(commands), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("testpmd has no pipes".into());
        };
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            // If this fails, the reader has ended.
            lines.map(|line| send.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        let start = if device.starts_with("net_ring") {
            format!("start tx_first {RING_BURSTS}\n")
        } else {
            "start\n".into()
        };
        let mut started = Self { child, commands, lines, thread: String::new(), start };
        started
            .until("Done")
            .map_err(|_| "dpdk-testpmd does not start; try to run it by hand".to_string())?;
        started.thread = started.forwarding_thread().ok_or("testpmd has no forwarding thread")?;
        Ok(started)
    }

    /// Reads lines up to one that is `end`.
    fn until(&mut self, end: &str) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        loop {
            let line =
                self.lines.recv_timeout(PATIENCE).map_err(|_| "testpmd does not answer".to_string())?;
            if line.trim().trim_end_matches('.') == end {
                return Ok(lines);
            }
            lines.push(line);
        }
    }

    /// Folder in `/proc` of the forwarding thread.
    fn forwarding_thread(&self) -> Option<String> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).ok()?;
        let named = |folder: &std::path::Path| {
            let name = std::fs::read_to_string(folder.join("comm")).unwrap_or_default();
            // "lcore-worker-1", "rte-worker-1" or "dpdk-worker1", by version.
            name.contains("worker") && name.trim().ends_with('1')
        };
        let folder = threads.flatten().map(|entry| entry.path()).find(|folder| named(folder))?;
        Some(folder.display().to_string())
    }

    /// Nanoseconds of CPU time that it has used.
    fn core_ns(&self) -> Result<u64, String> {
        let text = std::fs::read_to_string(format!("{}/schedstat", self.thread));
        let text = text.map_err(|error| format!("cannot read testpmd's CPU time: {error}"))?;
        text.split_whitespace().next().and_then(|ns| ns.parse().ok()).ok_or("schedstat is empty".into())
    }

    fn tell(&mut self, line: &str) -> Result<(), String> {
        self.commands.write_all(line.as_bytes()).map_err(|error| format!("testpmd has ended: {error}"))
    }

    /// Forwards for a while.
    pub fn turn(&mut self, time: Duration) -> Result<Sample, String> {
        let before = self.core_ns()?;
        let start = self.start.clone();
        self.tell(&start)?;
        std::thread::sleep(time);
        self.tell("stop\n")?;
        let message = self.until("Done")?;
        let ns = self.core_ns()? - before;
        let sums = message.iter().skip_while(|line| !line.contains("Accumulated"));
        let received = sums.filter_map(|line| line.trim().strip_prefix("RX-packets:")).next();
        let items = received.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        let items = items.filter(|items| *items > 0).ok_or("testpmd forwarded nothing")?;
        Ok(Sample { items, rate: items as f64 * 1e9 / ns as f64, ns: ns as f64 / items as f64 })
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _quits = self.tell("quit\n");
        for _ in 0..50 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
        // testpmd leaves its folder behind. That of a running testpmd is not empty.
        let prefix = format!("bm-testpmd-{}-", std::process::id());
        let folders = std::fs::read_dir("/var/run/dpdk").into_iter().flatten().flatten();
        folders
            .filter(|folder| folder.file_name().to_string_lossy().starts_with(&prefix))
            .for_each(|folder| drop(std::fs::remove_dir(folder.path())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_for_a_turn_or_reports_what_is_missing() {
        for mode in MODES {
            match Testpmd::start(mode, "net_ring_testpmd", (0, 1514)) {
                Ok(mut testpmd) => {
                    for _ in 0..2 {
                        let sample = testpmd.turn(Duration::from_millis(50)).expect("it forwards");
                        assert!(sample.items > 0 && sample.ns > 0.0, "{sample:?}");
                    }
                }
                Err(why) => assert!(why.contains("apt-get install dpdk-dev"), "{why}"),
            }
        }
    }
}
