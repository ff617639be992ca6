//! DPDK's testpmd as a child process that forwards on command, on the core on which brickmoon is measured.
//!
//! Its prompt is a thread on the same core that sleeps until a line is entered; the CPU time of the forwarding thread
//! and the packets that it counts are the sample.

use std::process::Command;
use std::time::Duration;

use super::child::{Program, file_prefix};
use crate::alternate::Sample;

/// How it forwards: frames unchanged, or with MACs rewritten.
pub(super) const MODES: [&str; 2] = ["io", "mac"];
/// Burst size, testpmd's default.
pub(super) const BURST: usize = 32;
/// Number of bursts that are put in a ring to circulate: 992 frames of the 1,023 that fit.
const RING_BURSTS: usize = 31;
/// A testpmd that waits for commands.
pub(super) struct Testpmd {
    program: Program,
    thread: String,
    start: String,
}

impl Testpmd {
    /// Starts it on `core` with one virtual device; in a ring, it puts frames of this many bytes. On failure, returns
    /// one line that says what is missing.
    pub fn start(mode: &str, device: &str, core: usize, frame_bytes: usize) -> Result<Self, String> {
        let prefix = file_prefix(&format!("testpmd-{mode}"));
        let file_prefix = format!("--file-prefix={prefix}");
        let (lcores, vdev) = (format!("--lcores=0@{core},1@{core}"), format!("--vdev={device}"));
        let mut command = Command::new("stdbuf");
        command.args(["-oL", "dpdk-testpmd", &lcores, "--no-huge", "--no-shconf", "-m", "512"]);
        command.args(["--no-telemetry", "--no-pci", &file_prefix, &vdev, "--", "-i", "--nb-cores=1"]);
        command.args([&format!("--forward-mode={mode}"), "--port-topology=loop", "--total-num-mbufs=16384"]);
        command.arg(format!("--txpkts={frame_bytes}"));
        let program = Program::start("testpmd", prefix, &mut command, |_| true).map_err(|error| {
            format!("dpdk-testpmd is needed for the comparison ({error}): apt-get install dpdk-dev")
        })?;
        let start = if device.starts_with("net_ring") {
            format!("start tx_first {RING_BURSTS}\n")
        } else {
            "start\n".into()
        };
        let mut started = Self { program, thread: String::new(), start };
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
            let line = self.program.line()?;
            if line.trim().trim_end_matches('.') == end {
                return Ok(lines);
            }
            lines.push(line);
        }
    }

    /// Folder in `/proc` of the forwarding thread.
    fn forwarding_thread(&self) -> Option<String> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.program.id())).ok()?;
        let folder = threads.flatten().map(|entry| entry.path()).find(|folder| {
            let name = std::fs::read_to_string(folder.join("comm")).unwrap_or_default();
            // "lcore-worker-1", "rte-worker-1" or "dpdk-worker1", by version.
            name.contains("worker") && name.trim().ends_with('1')
        })?;
        Some(folder.display().to_string())
    }

    /// Nanoseconds of CPU time that it has used.
    fn core_ns(&self) -> Result<u64, String> {
        let text = std::fs::read_to_string(format!("{}/schedstat", self.thread));
        let text = text.map_err(|error| format!("cannot read testpmd's CPU time: {error}"))?;
        text.split_whitespace().next().and_then(|ns| ns.parse().ok()).ok_or("schedstat is empty".into())
    }

    /// Forwards for a while.
    pub fn turn(&mut self, time: Duration) -> Result<Sample, String> {
        let before = self.core_ns()?;
        let start = self.start.clone();
        self.program.tell(&start)?;
        std::thread::sleep(time);
        self.program.tell("stop\n")?;
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
        let _quits = self.program.tell("quit\n");
        self.program.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_for_a_turn_or_reports_what_is_missing() {
        for mode in MODES {
            match Testpmd::start(mode, "net_ring_testpmd", 0, 1514) {
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
