//! Somebody in the net sends in clear what has to come out of the tunnel, to a host behind the first gateway and to that
//! gateway itself, all the time (RFC 4301 5.2).

use super::*;
use bm_tests::netns::Namespace;
use bm_tests::packet::ip_frame;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Behind the other gateway, as far as the address says.
const FORGED: &str = "10.2.0.66";
const PORT: u16 = 7777;

/// Sockets that nothing of it may reach: of the host, and of the gateway.
struct Targets([UdpSocket; 2]);

impl Targets {
    fn new(net: &Net) -> Self {
        let open = |namespace: &Namespace| {
            let socket = namespace.within(|| UdpSocket::bind(("0.0.0.0", PORT)).expect("a free port"));
            socket.set_nonblocking(true).expect("a flag");
            socket
        };
        Self([open(&net.a), open(&net.gateways[0])])
    }

    /// How many datagrams have reached each since the last call, from this address.
    fn reached(&self, from: &str) -> [usize; 2] {
        self.0.each_ref().map(|socket| {
            let mut bytes = [0; 64];
            let received = std::iter::from_fn(|| match socket.recv_from(&mut bytes) {
                Ok((_, sender)) => Some(sender),
                Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                Err(error) => panic!("a datagram: {error}"),
            });
            received.filter(|sender| sender.ip().to_string() == from).count()
        })
    }
}

/// Sends forged packets as long as `action` takes and a bit longer; returns how many.
fn attack(net: &Net, action: impl FnOnce()) -> u64 {
    let wire = net.net.packet_socket("m1");
    let [to, from] = [mac(&net.gateways[0], "wan"), mac(&net.net, "m1")];
    let frames = ["10.1.0.2", "10.1.0.1"]
        .map(|address| ip_frame(to, from, &Ip4::udp_ports(FORGED, address, PORT, PORT, b"in clear").bytes()));
    let (is_over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for frame in &frames {
                    sent.fetch_add(u64::from(wire.send(frame).is_ok()), Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let enough = |more: u64| {
            let before = sent.load(Ordering::Relaxed);
            eventually("packets are sent", || sent.load(Ordering::Relaxed) >= before + more);
        };
        enough(20);
        action();
        enough(200);
        is_over.store(true, Ordering::Relaxed);
    });
    std::thread::sleep(Duration::from_millis(50));
    sent.into_inner()
}

#[test]
fn nothing_in_clear_gets_past_an_inbound_policy() {
    let net = Net::new("ipsec-in");
    let Some(two) = net.start(1, "") else { return };
    let targets = Targets::new(&net);
    attack(&net, || {});
    assert!(targets.reached(FORGED).iter().all(|count| *count > 50), "Linux alone lets them pass");
    let mut one = None;
    attack(&net, || one = net.start(0, ""));
    // Until the first start is over, Linux knows nothing of the policies.
    let _until_then = targets.reached(FORGED);
    let mut one = one.expect("the binary is there");
    let holds = |what: &str, sent: u64| {
        assert!(sent > 200, "{what}");
        assert_eq!(targets.reached(FORGED), [0, 0], "{what}: of {sent}");
    };
    let sender = net.b.within(|| UdpSocket::bind(("0.0.0.0", 0)).expect("a free port"));
    let through_the_tunnel = |what: &str| {
        ping(&net.b, "10.1.0.2", 56, 62);
        // Linux itself would answer the host in clear.
        eventually(what, || {
            sender.send_to(b"through the tunnel", ("10.1.0.1", PORT)).expect("a datagram");
            std::thread::sleep(Duration::from_millis(5));
            targets.reached("10.2.0.2")[1] > 0
        });
    };
    through_the_tunnel("it runs");
    holds("it runs", attack(&net, || {}));
    assert!(one.dropped("ipsec_policy") > 200);
    for round in 1..=4 {
        net.write(0, &format!("soft_packets = {}", 1_000_000 + round), "");
        holds("a reload", attack(&net, || drop(one.ask(&["reload"]))));
        through_the_tunnel("after a reload");
    }
    net.gateways[0].run("nft flush ruleset");
    holds("a ruleset that is flushed", attack(&net, || {}));
    through_the_tunnel("after a ruleset was flushed");
    holds("kill -9", attack(&net, || one.kill()));
    let mut again = None;
    holds("a start after kill -9", attack(&net, || again = net.start(0, "")));
    one = again.expect("it has started before");
    through_the_tunnel("after kill -9");
    holds("stop", attack(&net, || one.stop()));
    // As with what Linux would forward in clear, only a start without the policies removes them.
    let ports = net.folder.join("plain.toml");
    std::fs::write(&ports, "[[port]]\ndevice = 'lan'\n[[port]]\ndevice = 'wan'\n").expect("a folder");
    let plain = Daemon::start_with(&net.gateways[0], &["--config", &ports.display().to_string()]);
    let plain = plain.expect("the binary is there");
    eventually("the policies are gone", || {
        attack(&net, || {});
        targets.reached(FORGED).iter().all(|count| *count > 0)
    });
    plain.stop();
    two.stop();
}
