//! Real programs on real Linux hosts on both sides of the router: ping, UDP, TCP, traceroute, path MTU.

use bm_tests::command::{Running, finish, has};
use bm_tests::lab::{Ends, LOW_MTU, Lab};
use bm_tests::subject::{Router, each};
use bm_tests::{report, sys};
use std::net::UdpSocket;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The sink's addresses on its first link and on the one with a low MTU.
const SINK: [&str; 2] = ["198.51.100.2", "2001:db8:2::2"];
const LOW: [&str; 2] = ["203.0.113.2", "2001:db8:3::2"];
const ROUTER: [&str; 2] = ["192.0.2.1", "2001:db8:1::1"];

/// Whether a program is missing, which is reported.
fn lacks(test: &str, program: &str) -> bool {
    let lacks = !has(program);
    if lacks {
        report::skip(test, &format!("no {program}"));
    }
    lacks
}

/// Ten pings without DF, so that the router fragments IPv4; hosts fragment IPv6 after a Packet Too Big.
fn ping(lab: &Lab, router: &Router, to: &str, bytes: usize) {
    let line = format!("ping -n -M dont -c 10 -i 0.02 -W 2 -s {bytes} {to}");
    if LOW[1] == to {
        lab.src.try_run(&format!("ping -n -c 2 -i 0.02 -W 1 -s {bytes} {to}"));
    }
    let output = lab.src.try_run(&line);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains(" 0% packet loss"), "{}: {line}\n{text}", router.name());
}

#[test]
fn ping_of_all_sizes() {
    if lacks("ping", "ping") {
        return;
    }
    each("ping", Ends::Hosts, |lab, router| {
        for to in [SINK, LOW, ROUTER].concat() {
            for bytes in [0, 56, 1200, 1400, 4000] {
                ping(lab, router, to, bytes);
            }
        }
    });
}

/// A socket in the sink that echoes what it receives, until it is dropped.
struct EchoServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EchoServer {
    fn start(lab: &Lab, address: &str) -> Self {
        let bind = || UdpSocket::bind((address, 7)).unwrap_or_else(|error| panic!("{address}: {error}"));
        let socket = lab.snk.within(bind);
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a time-out can be set");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 65_536];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    // The client notices if this is lost.
                    let _ = socket.send_to(&buffer[..length], from);
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn client(lab: &Lab, to: &str) -> UdpSocket {
    let local = if to.contains(':') { "::" } else { "0.0.0.0" };
    let open = || {
        let socket = UdpSocket::bind((local, 0))?;
        socket.connect((to, 7))?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        std::io::Result::Ok(socket)
    };
    lab.src.within(open).unwrap_or_else(|error| panic!("UDP to {to}: {error}"))
}

#[test]
fn udp_of_all_sizes_comes_back() {
    each("udp", Ends::Hosts, |lab, router| {
        for (hosts, words) in [(false, "off"), (true, "on")] {
            lab.set_offloads(hosts, hosts);
            for to in [SINK, LOW].concat() {
                let _server = EchoServer::start(lab, to);
                let socket = client(lab, to);
                socket.set_read_timeout(Some(Duration::from_millis(700))).expect("a time-out can be set");
                let mut buffer = [0; 65_536];
                for length in (0..1500).step_by(61).chain([1472, 2000, 8000]) {
                    let data = bm_tests::packet::pattern(length);
                    let mut trial = || {
                        socket.send(&data)?;
                        socket.recv(&mut buffer)
                    };
                    // On the path with a low MTU the first large datagram only leads to an ICMP error, which
                    // the socket reports.
                    let tries = if LOW.contains(&to) { 3 } else { 1 };
                    let got = (0..tries).find_map(|_| trial().ok()).unwrap_or_default();
                    let what = format!("{}: {length} bytes to {to}, offloads {words}", router.name());
                    assert!(buffer[..got] == data, "{what}: {got} bytes came back, or others");
                }
            }
        }
    });
}

/// Runs TCP for a second; returns megabits a second and retransmissions.
fn iperf3(lab: &Lab, router: &Router, to: &str, reverse: bool) -> (f64, u64) {
    let mut server = lab.snk.command("iperf3");
    server.args(["-s", "-1", "-B", to]).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Running::start(&mut server);
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let mut client = lab.src.command("iperf3");
        client.args(["-c", to, "-t", "1", "-J"]).args(reverse.then_some("-R"));
        client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = client.spawn().expect("iperf3 runs");
        let output = finish("iperf3", child, b"", Duration::from_secs(15));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let rate = json["end"]["sum_received"]["bits_per_second"].as_f64();
        if let Some(rate) = rate {
            return (rate / 1e6, json["end"]["sum_sent"]["retransmits"].as_u64().unwrap_or_default());
        }
        // The server may not listen yet.
        assert!(Instant::now() < deadline, "{}: iperf3 to {to}: {text}", router.name());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn tcp_with_and_without_offloads() {
    if lacks("tcp", "iperf3") {
        return;
    }
    each("tcp", Ends::Hosts, |lab, router| {
        for (hosts, on_router, words) in
            [(false, false, "off"), (true, false, "on at the hosts"), (true, true, "on everywhere")]
        {
            lab.set_offloads(hosts, on_router);
            for (to, reverse) in [(SINK[0], false), (SINK[1], false), (SINK[0], true)] {
                let (rate, again) = iperf3(lab, router, to, reverse);
                let way = if reverse { "from" } else { "to" };
                report::say(&format!(
                    "tcp: {}: offloads {words}, {way} {to}: {rate:.0} Mbit/s, {again} retransmitted",
                    router.name()
                ));
                // Not a benchmark: a stream this slow has a broken checksum or a lost segment in each window.
                assert!(rate > 20.0, "{}: {rate} Mbit/s", router.name());
            }
        }
    });
}

#[test]
fn tcp_finds_the_low_mtu() {
    if lacks("tcp-low", "iperf3") {
        return;
    }
    each("tcp-low", Ends::Hosts, |lab, router| {
        lab.set_offloads(true, true);
        for to in LOW {
            let (rate, again) = iperf3(lab, router, to, false);
            report::say(&format!(
                "tcp-low: {}: to {to}: {rate:.0} Mbit/s, {again} retransmitted",
                router.name()
            ));
            assert!(rate > 20.0, "{}: {rate} Mbit/s", router.name());
        }
    });
}

/// The addresses that traceroute prints, one per hop.
fn hops(lab: &Lab, words: &str, to: &str) -> Vec<String> {
    let text = lab.src.run(&format!("traceroute -n -q 1 -w 2 -N 1 -m 5 {words} {to}"));
    let address = |line: &str| line.split_whitespace().nth(1).map(str::to_string);
    text.lines().skip(1).filter_map(address).collect()
}

#[test]
fn traceroute_shows_each_hop_once() {
    if lacks("traceroute", "traceroute") {
        return;
    }
    each("trace", Ends::Hosts, |lab, router| {
        for words in ["", "-I", "-T"] {
            for (hop, to) in ROUTER.into_iter().zip(SINK) {
                assert_eq!(hops(lab, words, to), [hop, to], "{}: traceroute {words} {to}", router.name());
            }
        }
    });
}

/// The path MTU that the kernel knows for a connected socket.
fn path_mtu(socket: &UdpSocket, v6: bool) -> std::io::Result<libc::c_int> {
    let (level, name) =
        if v6 { (libc::IPPROTO_IPV6, libc::IPV6_MTU) } else { (libc::IPPROTO_IP, libc::IP_MTU) };
    sys::socket_option(socket, level, name)
}

fn forbid_fragments(socket: &UdpSocket, v6: bool) {
    let set = if v6 {
        sys::set_socket_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)
    } else {
        sys::set_socket_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
    };
    set.expect("the kernel knows path MTU discovery");
}

#[test]
fn path_mtu_is_discovered() {
    each("pmtu", Ends::Hosts, |lab, router| {
        for to in LOW {
            let v6 = to.contains(':');
            let _server = EchoServer::start(lab, to);
            let socket = client(lab, to);
            forbid_fragments(&socket, v6);
            let header = if v6 { 48 } else { 28 };
            assert_eq!(path_mtu(&socket, v6).ok(), Some(1500), "{}: before", router.name());
            // The first datagram is too big, and an ICMP error comes back.
            let _ = socket.send(&vec![0; 1500 - header]);
            let deadline = Instant::now() + Duration::from_secs(2);
            while path_mtu(&socket, v6).ok() == Some(1500) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            let found = path_mtu(&socket, v6).ok();
            assert_eq!(found, Some(LOW_MTU as libc::c_int), "{}: to {to}", router.name());
            // The error is still pending on the socket.
            let _ = socket.send(&[0]);
            let mut buffer = [0; 2048];
            let fits = vec![1; LOW_MTU - header];
            let sent = (0..3).find_map(|_| socket.send(&fits).ok());
            assert_eq!(sent, Some(fits.len()), "{}: a packet of the path's MTU", router.name());
            let back =
                (0..3).filter_map(|_| socket.recv(&mut buffer).ok()).find(|length| *length == fits.len());
            assert!(back.is_some(), "{}: a packet of the path's MTU does not come back", router.name());
        }
    });
}
