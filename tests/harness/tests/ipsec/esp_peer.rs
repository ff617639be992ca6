//! An ESP peer that has nothing in common with brickmoon: `peer.py` and the files beside it, which implement the RFCs.
//!
//! ```text
//! peer.py: a host ─ lan ─ brickmoon ─ wan ─ peer.py: the far end of all tunnels      10.1.0.2, far hosts 10.2.N.2
//! ```
//!
//! Both ends are interfaces of one namespace, in which nothing has an address: the program sends and receives frames.

use bm_tests::command::Running;
use bm_tests::daemon::{Daemon, eventually, mac};
use bm_tests::netns::Namespace;
use bm_tests::report;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

mod adversary;
mod kernel;
mod numbers;
mod tunnels;
mod xfrm;

use tunnels::{Mode, Tunnel, suites};

/// The router, and the namespace around it.
struct Lab {
    router: Namespace,
    around: Namespace,
    folder: PathBuf,
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

impl Lab {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("bm-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for configurations");
        let lab = Self { router: Namespace::new(test, "rtr"), around: Namespace::new(test, "out"), folder };
        let Self { router, around, .. } = &lab;
        around.set(&[("net.ipv6.conf.all.disable_ipv6", "1"), ("net.ipv6.conf.default.disable_ipv6", "1")]);
        for (inside, outside) in [("lan", "host"), ("wan", "peer")] {
            // A queue for each of two workers. The other end sends to the first one only, so packets stay in order.
            router.ip(&format!(
                "link add {inside} numtxqueues 2 numrxqueues 2 type veth peer name {outside} netns {} \
                 numtxqueues 1 numrxqueues 1",
                around.name()
            ));
            around.ip(&format!("link set {outside} up"));
        }
        router.ip("link set lo up\naddr add 10.1.0.1/24 dev lan\naddr add 192.0.2.1/24 dev wan\n\
             addr add 2001:db8:1::1/64 dev lan nodad\naddr add 2001:db8:f::1/64 dev wan nodad\n\
             link set lan up\nlink set wan up");
        let [host, peer] = ["host", "peer"].map(|wire| mac(around, wire).to_string());
        router.ip(&format!(
            "neigh add 10.1.0.2 lladdr {host} nud permanent dev lan\n\
             neigh add 2001:db8:1::2 lladdr {host} nud permanent dev lan\n\
             neigh add 192.0.2.9 lladdr {peer} nud permanent dev wan\n\
             neigh add 2001:db8:f::9 lladdr {peer} nud permanent dev wan\n\
             route add default via 192.0.2.9\n-6 route add default via 2001:db8:f::9"
        ));
        router.set(&[
            ("net.ipv4.ip_forward", "1"),
            ("net.ipv6.conf.all.forwarding", "1"),
            ("net.ipv4.icmp_ratelimit", "0"),
            ("net.ipv4.icmp_msgs_per_sec", "1000000"),
            ("net.ipv6.icmp.ratelimit", "0"),
        ]);
        lab
    }

    /// Starts brickmoon with these SAs, or says why not.
    fn start(&self, tunnels: &[Tunnel]) -> Option<Daemon<'_>> {
        self.start_with(&self.config(tunnels, ""))
    }

    /// Starts it with the ports and the rest of a configuration.
    fn start_with(&self, ipsec: &str) -> Option<Daemon<'_>> {
        let file = self.write(ipsec);
        Daemon::start_with(&self.router, &["--config", &file.display().to_string()])
    }

    /// SAs and policies; `more` is added to each SA.
    fn config(&self, tunnels: &[Tunnel], more: &str) -> String {
        let all: String = tunnels.iter().map(|tunnel| tunnel.config(more)).collect();
        format!("[ipsec]\nstate_file = '{}'\n{all}", self.folder.join("state").display())
    }

    fn write(&self, ipsec: &str) -> PathBuf {
        let file = self.folder.join("config.toml");
        let config = format!("[[port]]\ndevice = 'lan'\n[[port]]\ndevice = 'wan'\n{ipsec}");
        std::fs::write(&file, config).expect("a folder for configurations");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("a mode");
        file
    }

    /// Starts the peer; nothing, with a message, if this machine lacks what it needs.
    fn peer(&self, test: &str) -> Option<Peer> {
        let Some(python) = python() else {
            report::skip(
                test,
                "there is no Python with the package cryptography; `tools/setup test` installs it",
            );
            return None;
        };
        let mut command = self.around.command(python);
        command.arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/ipsec/esp_peer/peer.py"));
        let seed = seed();
        report::say(&format!("{test}: BM_SEED={seed}"));
        command.arg(seed.to_string());
        for (inside, outside) in [("lan", "host"), ("wan", "peer")] {
            command.arg(outside).arg(mac(&self.router, inside).to_string());
        }
        command.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Running::start(&mut command);
        let requests = process.child().stdin.take().expect("a pipe");
        let answers = BufReader::new(process.child().stdout.take().expect("a pipe"));
        let mut peer = Peer { _process: process, requests, answers };
        assert_eq!(peer.answer(), "ready");
        Some(peer)
    }
}

/// A Python that has what the peer needs: the one that a user has, or Debian's.
fn python() -> Option<&'static str> {
    ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        let import = ["-c", "import cryptography.hazmat.primitives.ciphers.aead"];
        let mut command = Command::new(python);
        command.args(import).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}

/// `BM_SEED`, or another one in each run.
fn seed() -> u64 {
    let given = std::env::var("BM_SEED").ok();
    match given {
        Some(seed) => seed.parse().expect("BM_SEED is a number"),
        None => UNIX_EPOCH.elapsed().expect("the clock shows a time after 1970").subsec_nanos().into(),
    }
}

/// How long the tests are to try new packets; without it they do each thing once.
fn until() -> Instant {
    let seconds = std::env::var("BM_ESP_SECONDS").ok();
    let seconds = seconds.map_or(0, |seconds| seconds.parse().expect("BM_ESP_SECONDS is a number"));
    Instant::now() + Duration::from_secs(seconds)
}

/// The program at the far end, which ends with this.
struct Peer {
    _process: Running,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn answer(&mut self) -> Value {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line).expect("a pipe");
        assert!(read > 0, "the peer has ended; it says why above");
        serde_json::from_str(&line).expect("JSON")
    }

    /// Makes a request without waiting for its answer.
    fn begin(&mut self, request: &Value) {
        writeln!(self.requests, "{request}").expect("a peer that runs");
    }

    fn ask(&mut self, request: &Value) -> Value {
        self.begin(request);
        self.answer()
    }

    fn has(&mut self, tunnels: &[Tunnel]) {
        let all: Vec<Value> = tunnels.iter().map(Tunnel::described).collect();
        self.ask(&json!({ "do": "tunnels", "tunnels": all }));
    }

    fn number(&mut self, request: &Value) -> u64 {
        self.ask(request).as_u64().expect("a number")
    }
}

/// How many frames have been dropped, by reason.
fn drops(daemon: &Daemon<'_>) -> BTreeMap<String, u64> {
    let shown = daemon.ask(&["show", "drops"]);
    let mut drops = BTreeMap::new();
    for drop in shown["drops"].as_array().expect("a list") {
        let reason = drop["reason"].as_str().expect("a name").to_owned();
        *drops.entry(reason).or_default() += drop["frames"].as_u64().expect("a number");
    }
    drops
}

/// Every suite, mode, family, with ESN and UDP or without: packets of all kinds and sizes, in both directions.
#[test]
fn packets_pass_as_they_were_sent() {
    let lab = Lab::new("esp");
    let tunnels = Tunnel::all();
    let Some(mut peer) = lab.peer("esp") else { return };
    let Some(daemon) = lab.start(&tunnels) else { return };
    peer.has(&tunnels);
    let (until, begin) = (until(), Instant::now());
    let mut packets = 0;
    while packets == 0 || Instant::now() < until {
        packets += peer.number(&json!({ "do": "exchange", "rounds": 50 }));
    }
    let seconds = begin.elapsed().as_secs();
    report::say(&format!("esp: {} tunnels, {packets} packets in {seconds} s", tunnels.len()));
    assert_eq!(drops(&daemon), BTreeMap::new());
    daemon.stop();
}

/// Every size from the least to the largest one, and the next larger one, whose sender is told which size fits.
#[test]
fn packets_of_every_size_pass() {
    let lab = Lab::new("esp-sizes");
    let mut tunnels = Vec::new();
    for (n, suite) in [(1, "aes128gcm16"), (2, "chacha20poly1305"), (3, "aes256-sha256"), (4, "aes128-sha1")]
    {
        for mode in [Mode::Tunnel, Mode::Transport] {
            for (at, family) in [4, 6].into_iter().enumerate() {
                let n = n * 8 + 2 * u8::from(mode == Mode::Transport) + at as u8;
                tunnels.push(Tunnel { udp: n.is_multiple_of(3), ..Tunnel::new(n, mode, family, suite) });
            }
        }
    }
    let Some(mut peer) = lab.peer("esp-sizes") else { return };
    let Some(daemon) = lab.start(&tunnels) else { return };
    peer.has(&tunnels);
    let packets = peer.number(&json!({ "do": "sizes", "step": 7 }));
    report::say(&format!("esp-sizes: {packets} packets"));
    let dropped = drops(&daemon);
    assert_eq!(dropped.keys().collect::<Vec<_>>(), ["ipsec_too_big"]);
    daemon.stop();
}

/// The peer's numbers begin shortly below 2^32 and pass it.
#[test]
fn the_high_half_of_numbers_changes() {
    let lab = Lab::new("esp-high");
    let tunnels: Vec<Tunnel> = (1u8..)
        .zip(suites())
        .map(|(n, suite)| Tunnel {
            esn: true,
            udp: n.is_multiple_of(2),
            ..Tunnel::new(n, Mode::Tunnel, 4, suite)
        })
        .collect();
    let Some(mut peer) = lab.peer("esp-high") else { return };
    let Some(daemon) = lab.start(&tunnels) else { return };
    peer.has(&tunnels);
    assert_eq!(peer.number(&json!({ "do": "high_half" })), tunnels.len() as u64);
    let shown = daemon.ask(&["show", "sas"]);
    let inbound = shown["sas"].as_array().expect("a list").iter().filter(|sa| sa["direction"] == "in");
    for sa in inbound {
        assert!(sa["sequence"].as_u64() > Some(1 << 32), "{sa}");
    }
    assert_eq!(drops(&daemon).keys().collect::<Vec<_>>(), ["ipsec_replay"]);
    daemon.stop();
}
