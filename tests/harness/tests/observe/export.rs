//! sFlow and IPFIX: the daemon samples on every path, collectors get datagrams, and tshark reads them.

use bm_tests::command::{self, has};
use bm_tests::daemon::eventually;
use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::packet::{Ip4, ip_frame};
use bm_tests::report;
use bm_tests::subject::{Router, Subject};
use bm_wire::Mac;
use std::fmt::Write as _;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

const SFLOW: u16 = 6343;
const IPFIX: u16 = 4739;
/// One packet in so many is sampled, and so many are sent: some 200 samples.
const ONE_IN: u64 = 10;
const PACKETS: u64 = 2000;
/// Bytes of the packets, and of their frames.
const LENGTH: u64 = 328;
const FRAME: u64 = LENGTH + 14;

/// A configuration with a collector of each kind.
fn config(router: &Router, one_in: u64) -> String {
    let way = if router.is_kernel() { "kernel" } else { "user" };
    format!(
        "[daemon]\npath = '{way}'\n[sampling]\none_in = {one_in}\ncounters_s = 1\n\
         [[sflow]]\ncollector = '127.0.0.1:{SFLOW}'\n[[ipfix]]\ncollector = '127.0.0.1:{IPFIX}'\n"
    )
}

/// A socket that listens in the router's namespace.
fn listen(lab: &Lab, port: u16) -> UdpSocket {
    let socket = lab.rtr.within(|| UdpSocket::bind(("127.0.0.1", port)).expect("a free port"));
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a time");
    socket
}

/// What has arrived, until nothing more does.
fn received(socket: &UdpSocket) -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    let mut buffer = [0; 2048];
    while let Ok(length) = socket.recv(&mut buffer) {
        datagrams.push(buffer[..length].to_vec());
        // Counters come each second for ever.
        if datagrams.len() > 5000 {
            break;
        }
    }
    datagrams
}

/// Starts the daemon with these collectors on the lab's ports.
fn start<'a>(subject: &Subject, lab: &'a Lab) -> Router<'a> {
    lab.rtr.run("ip link set lo up");
    let mut router = subject.start(lab);
    router.end(&[]);
    let text = config(&router, ONE_IN);
    router.restart_with(&SIDES.map(|side| side.router()), &text);
    router.settle();
    router
}

fn send(lab: &Lab, count: u64) {
    let frame = Side::Src.to_router(&Ip4::udp("192.0.2.2", "10.9.9.9", 300).bytes());
    assert_eq!(frame.len() as u64, FRAME);
    (0..count).for_each(|_| lab.send(Side::Src, &frame));
}

fn ifindex(lab: &Lab, name: &str) -> u64 {
    let text = lab.rtr.run(&format!("ip -o link show {name}"));
    text.split(':').next().and_then(|index| index.parse().ok()).expect("a number")
}

/// A field of all datagrams as tshark reads them; `None` without tshark.
struct Shark(PathBuf);

impl Shark {
    /// A capture file with the datagrams.
    fn with(datagrams: &[Vec<u8>], port: u16) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if !has("tshark") {
            report::skip("export", "datagrams are not read by tshark, which is not installed");
            return None;
        }
        let mut file: Vec<u8> = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_le_bytes).concat();
        for datagram in datagrams {
            let packet = Ip4::udp_ports("127.0.0.1", "127.0.0.1", 50_000, port, datagram);
            let frame = ip_frame(Mac([2; 6]), Mac([4; 6]), &packet.bytes());
            let length = frame.len() as u32;
            file.extend([0, 0, length, length].map(u32::to_le_bytes).concat());
            file.extend(frame);
        }
        let name = format!("bm-export-{}-{}.pcap", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, file).expect("a file");
        Some(Self(path))
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tshark");
        command.args(["-n", "-r"]).arg(&self.0).args(arguments);
        let output = command::run("tshark", &mut command, Duration::from_secs(60)).expect("it ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// All values of a field, in order.
    fn all(&self, field: &str) -> Vec<String> {
        let text = self.ask(&["-T", "fields", "-e", field]);
        text.lines().flat_map(|line| line.split(',')).filter(|one| !one.is_empty()).map(Into::into).collect()
    }

    fn numbers(&self, field: &str) -> Vec<u64> {
        let number = |text: &String| match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        self.all(field)
            .iter()
            .map(|text| number(text).unwrap_or_else(|_| panic!("{field}: {text}")))
            .collect()
    }

    /// Nothing that tshark could not make sense of.
    fn assert_well_formed(&self) {
        let bad = self.ask(&["-Y", "_ws.malformed || _ws.expert.severity == error"]);
        assert_eq!(bad, "");
    }
}

impl Drop for Shark {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

/// Asserts that about one in [`ONE_IN`] of [`PACKETS`] was sampled. One test in a million fails by chance.
fn assert_plausible(samples: u64, what: &str) {
    let expected = PACKETS / ONE_IN;
    assert!((expected - 60..expected + 60).contains(&samples), "{what}: {samples} samples");
}

fn check_sflow(lab: &Lab, router: &Router, datagrams: &[Vec<u8>]) {
    let name = router.name();
    let Some(shark) = Shark::with(datagrams, SFLOW) else { return };
    shark.assert_well_formed();
    let [input, output] = ["r0", "r1"].map(|port| ifindex(lab, port));
    let lengths = shark.numbers("sflow_245.header.frame_length");
    // With its check sequence.
    let ours = lengths.iter().filter(|length| **length == FRAME + 4).count() as u64;
    assert_plausible(ours, name);
    let inputs = shark.numbers("sflow.flow_sample.input_interface_value");
    assert!(inputs.iter().filter(|index| **index == input).count() as u64 >= ours, "{name}: {inputs:?}");
    if router.is_kernel() {
        let outputs = shark.numbers("sflow.flow_sample.output_interface_value");
        assert!(
            outputs.iter().filter(|index| **index == output).count() as u64 >= ours,
            "{name}: {outputs:?}"
        );
    }
    assert!(shark.numbers("sflow.flow_sample.sampling_rate").iter().all(|rate| *rate == ONE_IN));
    // Of r0 all packets but those since its last sample on a CPU; a few more are Linux's own.
    let pool = *shark.numbers("sflow.flow_sample.sample_pool").iter().max().expect("a sample");
    assert!((PACKETS - 20 * ONE_IN..PACKETS + 100).contains(&pool), "{name}: {pool} packets");
    assert!(shark.numbers("sflow.flow_sample.dropped_packets").iter().all(|lost| *lost == 0));
    let destinations = shark.all("ip.dst");
    assert!(destinations.iter().filter(|one| *one == "10.9.9.9").count() as u64 >= ours, "{destinations:?}");
    let counted = shark.numbers("sflow_245.ifindex");
    assert!(counted.contains(&input) && counted.contains(&output), "{name}: counters of {counted:?}");
    let packets = *shark.numbers("sflow_245.ifinpkt").iter().max().expect("counters");
    assert!((PACKETS..PACKETS + 200).contains(&packets), "{name}: {packets} packets counted");
}

fn check_ipfix(lab: &Lab, router: &Router, datagrams: &[Vec<u8>]) {
    let name = router.name();
    let Some(shark) = Shark::with(datagrams, IPFIX) else { return };
    shark.assert_well_formed();
    let ours = shark.all("cflow.dstaddr").iter().filter(|one| *one == "10.9.9.9").count() as u64;
    assert_plausible(ours, name);
    let octets = shark.numbers("cflow.octets");
    assert!(octets.iter().filter(|octets| **octets == LENGTH).count() as u64 >= ours, "{octets:?}");
    assert!(shark.numbers("cflow.packets").iter().all(|packets| *packets == 1));
    let input = ifindex(lab, "r0");
    let inputs = shark.numbers("cflow.inputint");
    assert!(inputs.iter().filter(|index| **index == input).count() as u64 >= ours, "{name}: {inputs:?}");
    assert_eq!(shark.numbers("cflow.sampling_interval").first(), Some(&ONE_IN));
    assert_eq!(shark.numbers("cflow.selector_algorithm").first(), Some(&4), "uniform probabilistic");
    let probability = shark.all("cflow.sampling_probability");
    let probability = probability.first().and_then(|text| text.parse::<f64>().ok());
    assert!(probability.is_some_and(|found| (found * ONE_IN as f64 - 1.0).abs() < 1e-6), "{probability:?}");
    assert!(shark.all("cflow.template_id").len() >= 3);
}

#[test]
fn collectors_get_what_tshark_reads() {
    for subject in Subject::with_tc("export").into_iter().filter(|subject| *subject != Subject::Linux) {
        let lab = Lab::new("export", Ends::Silent);
        let [sflow, ipfix] = [SFLOW, IPFIX].map(|port| listen(&lab, port));
        let router = start(&subject, &lab);
        send(&lab, PACKETS);
        let mut of_sflow = received(&sflow);
        // Counters after the packets.
        std::thread::sleep(Duration::from_millis(1500));
        of_sflow.extend(received(&sflow));
        let of_ipfix = received(&ipfix);
        check_sflow(&lab, &router, &of_sflow);
        check_ipfix(&lab, &router, &of_ipfix);
        let reply = router.json(&["show", "collectors"]);
        assert_eq!((reply["one_in"].as_u64(), reply["lost"].as_u64()), (Some(ONE_IN), Some(0)), "{reply:#}");
        assert_plausible(
            reply["samples"].as_u64().expect("a number").min(PACKETS / ONE_IN + 50),
            router.name(),
        );
        for collector in reply["collectors"].as_array().expect("collectors") {
            assert!(collector["sent"].as_u64() > Some(0), "{reply:#}");
            assert_eq!(collector["full"], 0, "{reply:#}");
        }
        let metrics = router.get("/v1/metrics").expect("a daemon");
        assert!(
            metrics.contains("brickmoon_export_datagrams_total{collector=\"127.0.0.1:6343\""),
            "{metrics}"
        );
        router.settle();
        router.stop();
    }
}

#[test]
fn reload_switches_samples_off_and_on() {
    for subject in Subject::all("export-reload").into_iter().filter(|subject| *subject != Subject::Linux) {
        let lab = Lab::new("export-reload", Ends::Silent);
        let sflow = listen(&lab, SFLOW);
        let router = start(&subject, &lab);
        let with = config(&router, 1);
        let without = with.split("[sampling]").next().expect("a part").to_string();
        let name = router.name();
        router.reload_with(&without);
        router.settle();
        received(&sflow);
        send(&lab, 200);
        assert_eq!(received(&sflow), Vec::<Vec<u8>>::new(), "{name}: nothing is sampled");
        let text = router.ask("show", &["collectors"]).expect("a daemon").stdout;
        assert_eq!(String::from_utf8_lossy(&text), "no collectors: nothing is sampled\n");
        let output = router.reload_with(&with).expect("a daemon");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!said.contains("restart"), "{name}: {said}");
        router.settle();
        let before = router.json(&["show", "collectors"])["samples"].as_u64().expect("a number");
        send(&lab, 200);
        let samples = || router.json(&["show", "collectors"])["samples"].as_u64().expect("a number") - before;
        eventually(&format!("{name}: each packet is sampled"), || samples() >= 200);
        router.settle();
        router.stop();
    }
}

#[test]
fn collectors_that_do_not_listen_or_keep_up_are_counted() {
    let Some(subject) = Subject::kernel("export-deaf") else { return };
    let lab = Lab::new("export-deaf", Ends::Silent);
    let sflow = listen(&lab, SFLOW);
    let router = start(&subject, &lab);
    let mut text = config(&router, 1);
    let _written =
        write!(text, "[[sflow]]\ncollector = '127.0.0.1:9'\n[[sflow]]\ncollector = '192.0.9.9:6343'\n");
    router.reload_with(&text);
    router.settle();
    let of = |address: &str, what: &str| {
        let reply = router.json(&["show", "collectors"]);
        let all = reply["collectors"].as_array().expect("collectors");
        let one = all.iter().find(|one| one["address"] == address && one["format"] == "sflow");
        one.and_then(|one| one[what].as_u64()).unwrap_or_else(|| panic!("{address}: {reply:#}"))
    };
    eventually("the others are counted", || {
        send(&lab, 50);
        of("127.0.0.1:9", "refused") > 0 && of("192.0.9.9:6343", "failed") > 0
    });
    assert!(!received(&sflow).is_empty(), "this one gets everything");
    // 8 kbit/s for the collectors: datagrams wait in the socket's buffer until that is full.
    let slow = lab.rtr.try_run("tc qdisc add dev lo root tbf rate 8kbit burst 3000 limit 100000000");
    if !slow.status.success() {
        report::skip("export", "this kernel has no tbf, which makes the way to a collector slow");
        return router.stop();
    }
    eventually("the buffer is full", || {
        send(&lab, 500);
        of("127.0.0.1:6343", "full") > 0
    });
    let before = router.sent();
    send(&lab, 1000);
    eventually("packets are forwarded all the same", || router.sent() >= before + 1000);
    lab.rtr.run("tc qdisc del dev lo root");
    router.settle();
    router.stop();
}
