//! A daemon on its own ports, started and queried as its users do; and what tests of such ports share.
//!
//! [`subject`](crate::subject) starts one between the wires of a [`Lab`](crate::lab::Lab); here a test chooses the
//! ports, and provides what they are connected to.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::binary::binary;
use crate::netns::Namespace;
use crate::packet::{Ip4, Ip6, ip_frame, routed};
use crate::{PATIENCE, command, report, sys};
use bm_wire::Mac;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A daemon running in a namespace, with its socket and log in a folder of its own.
pub struct Daemon<'a> {
    namespace: &'a Namespace,
    child: Child,
    folder: PathBuf,
}

impl<'a> Daemon<'a> {
    /// Starts it; `None`, with a message, if there is no binary or it has no DPDK.
    pub fn start(namespace: &'a Namespace, ports: &[&str]) -> Option<Self> {
        let arguments: Vec<_> = ports.iter().flat_map(|port| ["--port", port]).collect();
        Self::start_with(namespace, &arguments)
    }

    /// The same with these arguments of `brickmoon up`.
    pub fn start_with(namespace: &'a Namespace, arguments: &[&str]) -> Option<Self> {
        let test = namespace.name();
        let Some(binary) = binary() else {
            report::skip(test, "there is no binary; build one, or name it in BRICKMOON");
            return None;
        };
        let folder = std::env::temp_dir().join(test);
        std::fs::create_dir_all(&folder).unwrap();
        let log = File::create(folder.join("log")).unwrap();
        let mut command = namespace.command(binary);
        command.args(["-v", "up", "--socket"]).arg(folder.join("api.sock"));
        command.args(arguments);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let mut daemon = Self { namespace, child: command.spawn().unwrap(), folder };
        let begin = Instant::now();
        loop {
            let log = daemon.log();
            if log.contains("\nready: ") {
                return Some(daemon);
            }
            if let Some(status) = daemon.child.try_wait().unwrap() {
                if log.contains("this build has no DPDK") {
                    assert!(log.contains("libdpdk-dev") && log.contains("--features dpdk"), "{log}");
                    report::skip(test, "this build has no DPDK");
                    return None;
                }
                panic!("the daemon ended, {status}:\n{log}");
            }
            assert!(begin.elapsed() < PATIENCE, "the daemon is not ready:\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What a daemon says with arguments with which it cannot start.
    pub fn fails(namespace: &Namespace, arguments: &[&str]) -> String {
        let socket = std::env::temp_dir().join(namespace.name()).with_extension("sock");
        let mut command = namespace.command(binary().unwrap());
        command.args(["up", "--socket"]).arg(socket).args(arguments);
        let output = command::run("up", &mut command, PATIENCE).unwrap();
        assert!(!output.status.success(), "it has started");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Its output.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// The JSON output of a command.
    pub fn ask(&self, what: &[&str]) -> serde_json::Value {
        self.try_ask(what).unwrap_or_else(|why| panic!("{why}"))
    }

    /// The same for callers that must not panic.
    fn try_ask(&self, what: &[&str]) -> Result<serde_json::Value, String> {
        let line = what.join(" ");
        let mut command = self.namespace.command(binary().ok_or("there is no binary")?);
        command.args(what).args(["--json", "--socket"]).arg(self.folder.join("api.sock"));
        let output = command::run(&line, &mut command, PATIENCE)?;
        if !output.status.success() {
            return Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr)));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("{line}: {error}"))
    }

    /// How many frames it has dropped for this reason.
    pub fn dropped(&self, reason: &str) -> u64 {
        command::frames_dropped(&self.ask(&["show", "drops"]), reason)
    }

    /// The error of a command that must fail.
    pub fn refused(&self, what: &[&str]) -> String {
        self.try_ask(what).err().unwrap_or_else(|| panic!("{what:?} succeeds"))
    }

    /// The entry of port `name` in `show ports`.
    pub fn port(&self, name: &str) -> serde_json::Value {
        let ports = self.ask(&["show", "ports"]);
        let ports = ports["ports"].as_array().unwrap();
        ports.iter().find(|port| port["name"] == name).unwrap_or_else(|| panic!("{name}: {ports:?}")).clone()
    }

    /// Kills it as a crash would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it as a user would; all accounts must close.
    pub fn stop(mut self) {
        for app in self.ask(&["show", "apps"])["apps"].as_array().unwrap() {
            let account = &app["account"];
            let number = |key: &str| account[key].as_u64().unwrap();
            let came = number("received") + number("originated");
            let went = ["sent", "host", "passed", "held", "consumed", "dropped"].map(number);
            assert_eq!(came, went.iter().sum::<u64>(), "{app}");
        }
        let process = self.child.id();
        sys::signal(process, libc::SIGTERM).unwrap();
        let end = command::end_of(&mut self.child, PATIENCE);
        assert!(end.is_some_and(|status| status.success()), "{end:?}\n{}", self.log());
        let left = PathBuf::from(format!("/var/run/dpdk/brickmoon-{process}"));
        assert!(!left.exists(), "{} is left behind", left.display());
    }
}

impl Drop for Daemon<'_> {
    /// Never panics: a second panic would end the process, and leave the daemon and all namespaces.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.lament();
        }
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the daemon of {} said:\n{}", self.namespace.name(), self.log());
        }
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

impl Daemon<'_> {
    /// Prints what may explain a failure.
    fn lament(&mut self) {
        for line in ["ip addr", "ip neigh", "ip -6 neigh", "ip -6 route"] {
            match self.namespace.attempt(line) {
                Ok(message) => eprintln!("{line}:\n{}", String::from_utf8_lossy(&message.stdout)),
                Err(why) => eprintln!("{why}"),
            }
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            for what in ["ports", "drops"] {
                match self.try_ask(&["show", what]) {
                    Ok(message) => eprintln!("{message}"),
                    Err(why) => eprintln!("{why}"),
                }
            }
        }
    }
}

/// Waits until the condition holds; `what` names it in the error.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Pings until five of one run are answered, each with that TTL and once. More are sent, since net_tap was seen to
/// delay some on a busy machine.
pub fn ping(from: &Namespace, to: &str, size: u16, ttl: u8) {
    eventually(&format!("no answers from {to}"), || {
        let message = from.try_run(&format!("ping -c 20 -i 0.05 -W 1 -s {size} {to}"));
        let message = String::from_utf8_lossy(&message.stdout).into_owned();
        let came = message.matches("ttl=").count();
        let right = message.matches(&format!("ttl={ttl} ")).count();
        assert!(came == right && !message.contains("DUP"), "{message}");
        right >= 5
    });
}

/// MAC of an interface.
pub fn mac(namespace: &Namespace, interface: &str) -> Mac {
    let text = namespace.run(&format!("ip -o link show dev {interface}"));
    let mac = text.split("link/ether ").nth(1).unwrap_or_else(|| panic!("{text}"));
    let bytes: Vec<u8> = mac[..17].split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    Mac(bytes.try_into().unwrap())
}

/// A host on a port of the router.
pub struct End<'a> {
    /// Where it is.
    pub host: &'a Namespace,
    /// Its interface.
    pub wire: &'a str,
    /// The port's host TAP in the router's namespace.
    pub host_tap: String,
    /// Its addresses are 10.0.NET.2 and fd00:NET::2.
    pub net: u8,
}

impl End<'_> {
    fn addresses(&self) -> [String; 2] {
        [format!("10.0.{}.2", self.net), format!("fd00:{}::2", self.net)]
    }
}

/// Packets of both families from one end to another, in all sizes from the smallest frame to the largest.
fn packets(from: &End<'_>, to: &End<'_>) -> Vec<Vec<u8>> {
    let ([v4, v6], [to_v4, to_v6]) = (from.addresses(), to.addresses());
    let lengths = [18, 19, 64, 470, 982, 1471, 1472];
    let numbered = lengths.into_iter().zip(1..);
    let mut packets: Vec<_> =
        numbered.map(|(length, id)| Ip4::udp(&v4, &to_v4, length).id(id).bytes()).collect();
    packets.push(Ip4::tcp_syn(&v4, &to_v4, 4, 5).id(99).bytes());
    packets.extend([12, 600, 1452].map(|length| Ip6::udp(&v6, &to_v6, length).bytes()));
    packets
}

/// Sends packets from one end to the other and expects each as the router must forward it, byte by byte, exactly
/// once. Both ends must have resolved the router's MAC address already.
pub fn cross(router: &Namespace, from: &End<'_>, to: &End<'_>) {
    let [near, far] = [from, to].map(|end| (mac(end.host, end.wire), mac(router, &end.host_tap)));
    let [source, sink] = [from, to].map(|end| end.host.packet_socket(end.wire));
    for packet in packets(from, to) {
        let expected = ip_frame(far.0, far.1, &routed(&packet));
        source.send(&ip_frame(near.1, near.0, &packet)).unwrap();
        let begin = Instant::now();
        let mut came = Vec::new();
        while !came.contains(&expected) {
            let left = PATIENCE.saturating_sub(begin.elapsed());
            assert!(!left.is_zero(), "not this:\n{expected:02x?}\nbut:\n{came:02x?}");
            sys::wait_readable(&[&sink], left).unwrap();
            while let Some(captured) = sink.receive().unwrap() {
                came.push(captured.frame);
            }
        }
        assert_eq!(came.iter().filter(|frame| **frame == expected).count(), 1, "{came:02x?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_test_ends_its_daemon_and_goes_on() {
        if !sys::is_root() {
            return report::skip("daemon", "needs root for a network namespace");
        }
        let namespace = Namespace::new("lament", "rtr");
        let child = namespace.command("sleep").arg("600").spawn().unwrap();
        let (process, folder) = (child.id(), std::env::temp_dir().join(namespace.name()));
        std::fs::create_dir_all(&folder).unwrap();
        let daemon = Daemon { namespace: &namespace, child, folder: folder.clone() };
        // It listens on no socket, so every request fails.
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            assert_eq!(daemon.log(), "something");
        }));
        assert!(failed.is_err());
        assert!(
            sys::signal(process, 0).is_err() && !folder.exists(),
            "the daemon or its folder is still there"
        );
    }
}
