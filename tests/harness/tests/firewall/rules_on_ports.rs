//! Rules of Linux on ports that are not interfaces of Linux: a TAP and capture files, which are represented by host
//! TAPs; and on ports of both paths in one daemon.

use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::netns::Namespace;
use bm_tests::packet::{Ip4, ip_frame, routed};
use bm_tests::subject::{Router, Subject};
use bm_tests::sys::PacketSocket;
use bm_tests::{PATIENCE, command, report};
use bm_wire::Mac;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait for packets that must not come.
const QUIET: Duration = Duration::from_millis(100);
/// The host behind the port.
const FAR: &str = "10.66.0.2";
const FAR_MAC: Mac = Mac([2, 0, 0, 0, 9, 2]);
/// Workers for all ports, and workers only for the ports that need them.
const WAYS: [(&str, &str); 2] = [("user", "[daemon]\nworkers = 1\n"), ("mixed", "")];

/// Runs a test on a daemon with this port in addition to `r0` and `r1`. The ruleset is set before the daemon starts.
fn with_port(test: &str, port: &str, (config, ruleset): (&str, &str), action: impl Fn(&Lab, &Router)) {
    let Some(subject) = Subject::kernel(test) else { return };
    if !command::has("nft") || !Path::new("/dev/net/tun").exists() {
        return report::skip(test, "needs nft and /dev/net/tun");
    }
    let lab = Lab::new(test, Ends::Silent);
    let mut router = subject.start(&lab);
    router.end(&[]);
    lab.rtr.feed("nft -f -", ruleset).unwrap_or_else(|why| panic!("{ruleset}: {why}"));
    router.restart_choosing(&["r0", "r1", port], config);
    action(&lab, &router);
    router.settle();
    router.stop();
}

/// Sets the ruleset, and waits until it is effective.
fn rules(lab: &Lab, router: &Router, text: &str) {
    lab.rtr.feed("nft -f -", &format!("flush ruleset\n{text}")).unwrap_or_else(|why| panic!("{text}: {why}"));
    router.settle();
}

fn forward_chain(rules: &str) -> String {
    format!("table ip t {{ chain f {{ type filter hook forward priority 0; {rules} }}\n}}")
}

/// Adds addresses to a host TAP, and the neighbor behind the port.
fn settle_twin(lab: &Lab, router: &Router, host_tap: &str) {
    lab.rtr.ip(&format!(
        "addr add 10.66.0.1/24 dev {host_tap}\nneigh replace {FAR} lladdr {FAR_MAC} dev {host_tap} nud permanent\n"
    ));
    router.settle();
}

fn udp(source: &str, destination: &str, port: u16) -> Vec<u8> {
    Ip4::udp_ports(source, destination, 4000, port, b"rules-on-ports").bytes()
}

/// Whether a frame arrives at a socket; others are discarded.
fn comes(socket: &PacketSocket, wanted: &[u8], wait: Duration) -> bool {
    let begin = Instant::now();
    loop {
        while let Some(captured) = socket.receive().expect("an open socket") {
            if captured.frame == wanted {
                return true;
            }
        }
        let left = wait.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return false;
        }
        bm_tests::sys::wait_readable(&[socket], left).expect("poll works on an open socket");
    }
}

/// How long to wait for a frame: long for one that must arrive, briefly for one that must not.
fn wait_for(passes: bool) -> Duration {
    if passes { PATIENCE } else { QUIET }
}

/// The other end of a TAP: an interface in the sink's namespace.
struct Vm<'a> {
    lab: &'a Lab,
    wire: PacketSocket,
    /// MAC of the router's end.
    host_tap: Mac,
}

impl<'a> Vm<'a> {
    fn new(lab: &'a Lab, name: &str) -> Self {
        let text = lab.rtr.run(&format!("ip -o link show dev bm-{name}"));
        let mac = text.split("link/ether ").nth(1).unwrap_or_else(|| panic!("{text}"));
        let mut bytes = mac[..17].split(':').map(|byte| u8::from_str_radix(byte, 16).expect("a MAC"));
        let host_tap = Mac([(); 6].map(|()| bytes.next().expect("six bytes")));
        let snk: &Namespace = &lab.snk;
        lab.rtr.ip(&format!("link set {name} netns {}", snk.name()));
        snk.ip(&format!("link set {name} arp off\nlink set {name} up\n"));
        Self { lab, wire: snk.packet_socket(name), host_tap }
    }

    /// Asserts that a packet from the source to the far host comes out of the TAP, or not.
    fn gets(&self, port: u16, passes: bool, what: &str) {
        let packet = udp("192.0.2.2", FAR, port);
        self.lab.send(Side::Src, &Side::Src.to_router(&packet));
        let expected = ip_frame(FAR_MAC, self.host_tap, &routed(&packet));
        assert_eq!(comes(&self.wire, &expected, wait_for(passes)), passes, "{what}: to the TAP");
    }

    /// Asserts that a packet from the far host arrives at the sink, or not.
    fn sends(&self, port: u16, passes: bool, what: &str) {
        let packet = udp(FAR, "10.9.9.9", port);
        self.wire.send(&ip_frame(self.host_tap, FAR_MAC, &packet)).expect("a frame into the TAP");
        let expected = Side::Snk.to_neighbor(2, &routed(&packet));
        let came = comes(self.lab.socket(Side::Snk), &expected, wait_for(passes));
        assert_eq!(came, passes, "{what}: from the TAP");
    }

    fn both(&self, port: u16, gets: bool, sends: bool, what: &str) {
        self.gets(port, gets, what);
        self.sends(port, sends, what);
    }
}

#[test]
fn rules_are_effective_on_a_tap() {
    for (way, config) in WAYS {
        with_port(&format!("tap-{way}"), "tap:vm0", (config, ""), |lab, router| {
            let path = router.json(&["status"])["path"].clone();
            assert_eq!(path, way, "{}", router.status_text());
            let vm = Vm::new(lab, "vm0");
            settle_twin(lab, router, "bm-vm0");
            vm.both(5000, true, true, "nothing is set");
            rules(lab, router, &forward_chain("ip daddr 10.66.0.0/24 udp dport 5000 drop;"));
            vm.both(5000, false, true, "a rule by address");
            vm.gets(5001, true, "beside a rule by address");
            rules(lab, router, &forward_chain("iifname bm-vm0 udp dport 5000 drop;"));
            vm.both(5000, true, false, "a rule by the interface where packets come in");
            vm.sends(5001, true, "beside a rule by interface");
            rules(lab, router, &forward_chain("oifname bm-vm0 drop;"));
            vm.both(5000, false, true, "a rule by the interface where packets leave");
            // Packets that Linux lets pass go through Linux: into the host TAP, and out of it.
            rules(lab, router, &forward_chain("policy drop; ct state new udp dport 5001 accept;"));
            vm.both(5000, false, false, "policy drop");
            vm.both(5001, true, true, "accepted by Linux");
            rules(
                lab,
                router,
                "table ip t { chain n { type nat hook prerouting priority dstnat; ip daddr 10.66.0.9 dnat to 10.66.0.2; }\n}",
            );
            let packet = udp("192.0.2.2", "10.66.0.9", 5002);
            lab.send(Side::Src, &Side::Src.to_router(&packet));
            let translated = ip_frame(FAR_MAC, vm.host_tap, &routed(&udp("192.0.2.2", FAR, 5002)));
            assert!(comes(&vm.wire, &translated, PATIENCE), "DNAT to a host behind the TAP");
            rules(lab, router, "");
            let before = router.sent();
            vm.both(5000, true, true, "nothing is set any more");
            assert!(router.sent() >= before + 2, "brickmoon must forward again: {}", router.status_text());
        });
    }
}

/// A capture file of Ethernet frames.
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_le_bytes).concat();
    for frame in frames {
        let length = frame.len() as u32;
        bytes.extend([0, 0, length, length].map(u32::to_le_bytes).concat());
        bytes.extend(frame);
    }
    bytes
}

/// The frames of a capture file that brickmoon has written so far.
fn frames(file: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).unwrap_or_default();
    let (mut frames, mut rest) = (Vec::new(), bytes.get(24..).unwrap_or_default());
    while let Some(length) = rest.get(8..12) {
        let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
        let Some(frame) = rest.get(16..16 + length) else { break };
        frames.push(frame.to_vec());
        rest = &rest[16 + length..];
    }
    frames
}

/// Asserts that a packet from the source is written to the capture file, or not.
fn is_captured(lab: &Lab, file: &Path, host_tap: Mac, port: u16, passes: bool, what: &str) {
    let packet = udp("192.0.2.2", FAR, port);
    lab.send(Side::Src, &Side::Src.to_router(&packet));
    let expected = ip_frame(FAR_MAC, host_tap, &routed(&packet));
    let begin = Instant::now();
    while begin.elapsed() < wait_for(passes) && !frames(file).contains(&expected) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(frames(file).contains(&expected), passes, "{what}");
}

#[test]
fn rules_are_effective_on_capture_files() {
    for (way, config) in WAYS {
        let folder = std::env::temp_dir().join(format!("bm-rules-{way}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for captures");
        let [input, output]: [PathBuf; 2] = ["in.pcap", "out.pcap"].map(|name| folder.join(name));
        // The third port's host TAP.
        let host_tap = Mac([2, 0, 0, 0, 0xbc, 2]);
        let sent = [5001, 5000].map(|port| udp(FAR, "10.9.9.9", port));
        let arriving: Vec<_> = sent.iter().map(|packet| ip_frame(host_tap, FAR_MAC, packet)).collect();
        std::fs::write(&input, capture(&arriving)).expect("a capture");
        let port = format!("pcap:{},{}", input.display(), output.display());
        // The file is read immediately, so the rule must exist before the daemon starts.
        let first = forward_chain("udp dport 5000 drop;");
        with_port(&format!("pcap-{way}"), &port, (config, &first), |lab, router| {
            let sink = lab.socket(Side::Snk);
            let out = |packet: &Vec<u8>| Side::Snk.to_neighbor(2, &routed(packet));
            assert!(
                comes(sink, &out(&sent[0]), PATIENCE),
                "a packet that the rule does not match\n{}",
                router.status_text()
            );
            assert!(
                !comes(sink, &out(&sent[1]), QUIET),
                "a packet that the rule drops\n{}",
                router.status_text()
            );
            settle_twin(lab, router, "bm-pcap2");
            is_captured(lab, &output, host_tap, 5001, true, "beside the rule, to the file");
            is_captured(lab, &output, host_tap, 5000, false, "the rule, to the file");
            rules(lab, router, &forward_chain("policy drop; ct state new udp dport 5002 accept;"));
            is_captured(lab, &output, host_tap, 5003, false, "policy drop");
            is_captured(lab, &output, host_tap, 5002, true, "accepted by Linux");
            rules(lab, router, "");
            is_captured(lab, &output, host_tap, 5000, true, "nothing is set any more");
        });
        let _gone = std::fs::remove_dir_all(&folder);
    }
}
