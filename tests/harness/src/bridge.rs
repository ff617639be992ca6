//! A switch of brickmoon in a namespace, and the other ends of its ports in another.
//!
//! ```text
//!   bm-..-sw    p0  p1  p2 ..       ports of the switch
//!               |   |   |
//!   bm-..-far   f0  f1  f2 ..       ends, without addresses, IPv6 or traffic of their own
//! ```

use crate::binary::binary;
use crate::command::{Running, finish};
use crate::netns::Namespace;
use crate::sys::PacketSocket;
use crate::{PATIENCE, audit, report, sys};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

/// A switch and its far ends.
pub struct Bridge {
    /// Where the switch is.
    pub sw: Namespace,
    /// Where the ends are.
    pub far: Namespace,
    folder: PathBuf,
    binary: PathBuf,
    daemon: Option<Running>,
}

impl Bridge {
    /// Two namespaces with this many veth pairs between them, and no daemon; `None`, with a message, without root or
    /// binary.
    pub fn new(test: &str, pairs: usize) -> Option<Self> {
        if !sys::is_root() {
            report::skip(test, "namespaces need root");
            return None;
        }
        let Some(binary) = binary() else {
            report::skip(test, "no binary (cargo build --release)");
            return None;
        };
        let (sw, far) = (Namespace::new(test, "sw"), Namespace::new(test, "far"));
        for namespace in [&sw, &far] {
            namespace
                .set(&[("net.ipv6.conf.default.disable_ipv6", "1"), ("net.ipv6.conf.all.disable_ipv6", "1")]);
        }
        let folder = std::env::temp_dir().join(format!("bm-sw-p{}-{test}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let bridge = Self { sw, far, folder, binary, daemon: None };
        bridge.add_pairs(0..pairs);
        Some(bridge)
    }

    /// Adds more pairs, up and suitable for XDP.
    pub fn add_pairs(&self, numbers: std::ops::Range<usize>) {
        let lines = |line: &dyn Fn(usize) -> String| numbers.clone().map(line).collect::<String>();
        self.sw.ip(&lines(&|n| {
            format!(
                "link add p{n} up type veth peer name f{n} address {} netns {}\n",
                mac_text(n),
                self.far.name()
            )
        }));
        self.far.ip(&lines(&|n| format!("link set f{n} up\n")));
        for n in numbers {
            self.far.run(&format!("ethtool -K f{n} gro on txvlan off"));
        }
    }

    /// Writes the configuration file.
    pub fn configure(&self, config: &str) -> PathBuf {
        let file = self.folder.join("brickmoon.toml");
        std::fs::write(&file, config).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        file
    }

    /// Starts the daemon with this configuration; returns when it is ready.
    pub fn up(&mut self, config: &str) {
        let file = self.configure(config);
        let log = std::fs::File::create(self.log_file()).unwrap_or_else(|error| panic!("log: {error}"));
        let mut command = self.sw.command(&self.binary);
        command.arg("up").arg("--config").arg(&file).arg("--socket").arg(self.socket());
        command.stdin(Stdio::null()).stderr(log.try_clone().unwrap_or_else(|error| panic!("log: {error}")));
        self.daemon = Some(Running::start(command.stdout(log)));
        self.until("the daemon is ready", |bridge| {
            bridge.log().lines().any(|line| line.starts_with("ready"))
        });
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("api.sock")
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// The daemon's output.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Waits until a condition holds.
    #[track_caller]
    pub fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs a command of brickmoon.
    pub fn try_ask(&self, line: &str) -> Output {
        let mut command = self.sw.command(&self.binary);
        command.args(line.split(' ')).arg("--socket").arg(self.socket());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.binary.display()));
        finish(line, child, b"", PATIENCE)
    }

    /// The same for a command that must not fail: returns its output.
    #[track_caller]
    pub fn ask(&self, line: &str) -> String {
        let output = self.try_ask(line);
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "brickmoon {line}: {stdout}{stderr}\n{}", self.log());
        stdout
    }

    fn json(&self, line: &str) -> Value {
        let text = self.ask(&format!("{line} --json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
    }

    /// The ports of the first switch, from `show switch --json`.
    pub fn ports(&self) -> Vec<Value> {
        self.json("show switch")["switches"][0]["ports"].as_array().cloned().unwrap_or_default()
    }

    /// One port, by its name.
    #[track_caller]
    pub fn port(&self, name: &str) -> Value {
        let ports = self.ports();
        let port = ports.iter().find(|port| port["name"] == name);
        port.unwrap_or_else(|| panic!("no port {name}: {ports:?}")).clone()
    }

    /// Every MAC address of the table: MAC, VLAN (0 for none), port.
    pub fn macs(&self) -> Vec<(String, u64, String)> {
        let macs = self.json("show macs")["macs"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        macs.iter()
            .map(|one| (text(&one["mac"]), one["vlan"].as_u64().unwrap_or(0), text(&one["port"])))
            .collect()
    }

    /// A socket on an end.
    pub fn end(&self, number: usize) -> PacketSocket {
        self.far.packet_socket(&format!("f{number}"))
    }

    /// Asserts that every account adds up and every drop has a reason.
    #[track_caller]
    pub fn assert_closed(&self) {
        for what in ["show switch", "show apps"] {
            let open = audit::open(&self.json(what));
            assert!(open.is_empty(), "{what}: accounts that do not add up:\n{}", open.join("\n"));
        }
    }

    /// Kills the daemon as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.child().kill().unwrap_or_else(|error| panic!("kill -9: {error}"));
            daemon.child().wait().unwrap_or_else(|error| panic!("kill -9: {error}"));
        }
    }

    /// Ends the daemon.
    #[track_caller]
    pub fn stop(&mut self, line: &str) {
        self.ask(line);
        if let Some(mut daemon) = self.daemon.take() {
            assert!(daemon.wait(PATIENCE), "the daemon does not stop within {PATIENCE:?}\n{}", self.log());
        }
    }

    /// Number of interfaces with an XDP program in the switch's namespace.
    pub fn programs(&self) -> usize {
        self.sw.run("ip -o link").lines().filter(|line| line.contains(" xdp")).count()
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("brickmoon's log:\n{}", self.log());
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The MAC of an end.
pub fn mac(number: usize) -> [u8; 6] {
    [2, 0, 0, 0, (number >> 8) as u8, number as u8]
}

/// The same as text.
pub fn mac_text(number: usize) -> String {
    mac(number).map(|byte| format!("{byte:02x}")).join(":")
}
