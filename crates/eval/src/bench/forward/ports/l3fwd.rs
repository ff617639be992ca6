//! DPDK's example l3fwd, built from its source on this machine, as a child process on the core on which brickmoon is
//! measured.
//!
//! ```text
//! Debian's dpdk-doc: l3fwd's sources, unchanged ─┐
//! l3fwd.c (in this binary)                      ─┴► make, as the example does it, with -march=native ─► l3fwd
//! ```
//!
//! It looks up destinations with rte_fib (with AVX-512 where the CPU has it) in a table with our routes, writes MACs
//! and decrements the TTL. It does not verify checksums, MACs or TTLs. It must find out in software what kind of packet a
//! frame has (`l3fwd-fib`, with `--parse-ptype`), since no virtual device does it; in a ring, frames can also be marked
//! before, as if a card had done it (`l3fwd-typed`). Its table is in pages of 2 MiB, like ours.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bm_testbed::tables::Route;

use super::child::{Program, file_prefix};
use crate::alternate::Sample;

const SOURCE: &str = include_str!("l3fwd.c");
/// Where Debian has the sources of examples.
const EXAMPLES: &str = "/usr/share/dpdk/examples";
const INSTALL: &str = "apt-get install dpdk-doc libdpdk-dev gcc make pkg-config";
/// The functions of DPDK that `l3fwd.c` wraps.
const WRAPPED: [&str; 5] = [
    "rte_fib_create",
    "rte_eth_dev_configure",
    "rte_eth_rx_queue_setup",
    "rte_eth_dev_get_supported_ptypes",
    "rte_eal_mp_remote_launch",
];
/// How the lines for us begin.
const MARK: &str = "bench:";
/// Who finds out what kind of packet a frame has: l3fwd, or nobody, since it is marked.
pub(super) const MODES: [&str; 2] = ["fib", "typed"];
/// The most packets that it receives in a burst.
pub(super) const BURST: usize = 32;

/// A folder with the compiled program and its routes, deleted when this is dropped.
pub(super) struct L3fwdProgram(PathBuf);

impl L3fwdProgram {
    /// Compiles it, and writes the routes. On failure, returns one line that says what is missing.
    pub fn new(routes: &[Route<u32>]) -> Result<Self, String> {
        if !Path::new(EXAMPLES).join("l3fwd").exists() {
            return Err(format!("the source of l3fwd is needed for the comparison: {INSTALL}"));
        }
        let built = Self(std::env::temp_dir().join(format!("brickmoon-l3fwd-{}", std::process::id())));
        fs::create_dir(&built.0)
            .and_then(|()| built.write_routes(routes))
            .map_err(|error| format!("l3fwd is left out of the comparison: {error}"))?;
        built.compile()?;
        Ok(built)
    }

    /// In l3fwd's format: all leave by port 0.
    fn write_routes(&self, routes: &[Route<u32>]) -> io::Result<()> {
        let lines = routes.iter().fold(String::new(), |mut lines, route| {
            // Writing to a string cannot fail.
            let _written = writeln!(lines, "R{} 0", route.prefix);
            lines
        });
        fs::write(self.0.join("ipv4"), lines)?;
        // Without any, it does not start.
        fs::write(self.0.join("ipv6"), "R2001:db8::/32 0\n")
    }

    fn compile(&self) -> Result<(), String> {
        let failed = |why: String| format!("l3fwd does not compile ({why}): {INSTALL}");
        let object = self.0.join("bench.c");
        fs::write(&object, SOURCE).map_err(|error| failed(error.to_string()))?;
        // The example's make writes next to its sources.
        let copied = Command::new("cp")
            .args(["-r", "l3fwd", "common"])
            .arg(&self.0)
            .current_dir(EXAMPLES)
            .status()
            .map_err(|error| failed(error.to_string()))?;
        if !copied.success() {
            return Err(failed("its sources cannot be copied".into()));
        }
        let wrapped = WRAPPED.map(|name| format!("-Wl,--wrap={name}")).join(" ");
        let made = Command::new("make")
            .args(["-s", "-C", "l3fwd", "shared"])
            .arg(format!("LDFLAGS={} {wrapped}", object.display()))
            // After DPDK's own flags, which name the oldest CPU that it runs on.
            .arg("CC=cc -w")
            .env("CFLAGS", "-march=native")
            .current_dir(&self.0)
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if made.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&made.stderr).into_owned();
        Err(failed(text.lines().find(|line| line.contains("error")).unwrap_or("make failed").to_string()))
    }
}

impl Drop for L3fwdProgram {
    fn drop(&mut self) {
        let _left_behind = fs::remove_dir_all(&self.0);
    }
}

/// A running l3fwd, stopped by a signal except in its turns.
pub(super) struct L3fwd(Program);

impl L3fwd {
    /// Starts it in a mode, on `core`, with one virtual device; a ring is filled with the frames of the capture file `frames`.
    pub fn start(
        mode: &str,
        built: &L3fwdProgram,
        device: &str,
        frames: &str,
        core: usize,
    ) -> Result<Self, String> {
        let prefix = file_prefix(&format!("l3fwd-{mode}"));
        let mut command = Command::new(built.0.join("l3fwd/build/l3fwd"));
        command.args(["-l", &core.to_string(), "--no-huge", "-m", "2048", "--no-shconf", "--no-telemetry"]);
        command.args(["--no-pci", &format!("--file-prefix={prefix}"), &format!("--vdev={device}")]);
        command.args(["--force-max-simd-bitwidth=512", "--", "-p", "1"]);
        command.args([&format!("--config=(0,0,{core})"), "--lookup=fib"]);
        if mode == "typed" {
            command.env("BM_TYPED", "1");
        } else {
            command.arg("--parse-ptype");
        }
        for family in ["ipv4", "ipv6"] {
            command.arg(format!("--rule_{family}={}", built.0.join(family).display()));
        }
        if device.starts_with("net_ring") {
            command.env("BM_FRAMES", frames);
        }
        let program = Program::start("l3fwd", prefix, &mut command, |line| line.starts_with(MARK));
        let program = Self(program.map_err(|error| format!("l3fwd does not start: {error}"))?);
        let line = program.0.line()?;
        if !line.contains("ready") {
            return Err(format!("l3fwd does not start: {line}"));
        }
        program.0.set_running(false)?;
        Ok(program)
    }

    /// Packets sent so far, and nanoseconds of CPU time.
    fn counts(&mut self) -> Result<(u64, u64), String> {
        self.0.tell("\n")?;
        let line = self.0.line()?;
        let mut numbers = line.split_whitespace().skip(1).map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(packets)), Some(Ok(ns))) => Ok((packets, ns)),
            _ => Err(format!("l3fwd says \"{line}\"")),
        }
    }

    /// Forwards for a while.
    pub fn turn(&mut self, time: Duration) -> Result<Sample, String> {
        self.0.set_running(true)?;
        let before = self.counts()?;
        std::thread::sleep(time);
        let after = self.counts();
        self.0.set_running(false)?;
        let after = after?;
        let (items, ns) = (after.0 - before.0, after.1 - before.1);
        if items == 0 {
            return Err("l3fwd forwarded nothing".into());
        }
        Ok(Sample { items, rate: items as f64 * 1e9 / ns as f64, ns: ns as f64 / items as f64 })
    }
}

#[cfg(test)]
mod tests {
    use bm_testbed::tables::{self, TableOptions};

    use super::super::device::Capture;
    use super::*;

    #[test]
    fn forwards_for_a_turn_or_reports_what_is_missing() {
        let table = TableOptions { ipv4: 1000, ipv6: 10, next_hops: 16, ..TableOptions::default() };
        let routes = tables::generate(&table).expect("a table").ipv4;
        let capture = Capture::write(&[0x0100_0001], &[60]).expect("a file");
        let built = match L3fwdProgram::new(&routes) {
            Ok(built) => built,
            Err(why) => {
                assert!(why.contains(INSTALL), "{why}");
                eprintln!("skipped: {why}");
                return;
            }
        };
        for mode in MODES {
            let l3fwd = L3fwd::start(mode, &built, "net_ring_l3fwd", &capture.path(), 0);
            let mut l3fwd = l3fwd.unwrap_or_else(|why| panic!("{mode}: {why}"));
            for _ in 0..2 {
                let sample = l3fwd.turn(Duration::from_millis(50)).expect("it forwards");
                assert!(sample.items > 0 && sample.ns > 0.0, "{sample:?}");
            }
        }
    }
}
