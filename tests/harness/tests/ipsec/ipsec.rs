//! Two routers with manual keys, and Linux between them: what hosts send each other crosses it as ESP only.
//!
//! ```text
//! host a ─ gateway 1 ═ the net ═ gateway 2 ─ host b          a 10.1.0.2, b 10.2.0.2, gateways 192.0.2.1 and 198.51.100.1
//! ```

use bm_tests::daemon::{Daemon, eventually, mac, ping};
use bm_tests::packet::Ip4;
use bm_tests::sys::PacketSocket;
use std::net::UdpSocket;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

use super::gateways::{ESP, Gateways};

mod by_linux;
mod inbound;
mod numbers;
mod path_mtu;
mod several;

const PATIENCE: Duration = Duration::from_secs(1);
const KEYS: [&str; 2] =
    ["0x1f2e3d4c5b6a79880102030405060708a1b2c3d4", "0x90817263544536271112131415161718d4c3b2a1"];

/// The hosts, the gateways and the net between these.
struct Net(Gateways);

impl Deref for Net {
    type Target = Gateways;

    fn deref(&self) -> &Gateways {
        &self.0
    }
}

impl Net {
    fn new(test: &'static str) -> Self {
        Self::with_queues(test, "")
    }

    /// `queues` is for each interface, in the words of `ip link`.
    fn with_queues(test: &'static str, queues: &str) -> Self {
        let net = Self(Gateways::new(test, queues, &[]));
        net.gateways[0].ip("route add 10.2.0.0/24 via 192.0.2.9");
        net.gateways[1].ip("route add 10.1.0.0/24 via 198.51.100.9");
        net
    }

    /// Starts a gateway; `more` is added to both of its SAs.
    fn start(&self, gateway: usize, more: &str) -> Option<Daemon<'_>> {
        self.start_with(gateway, more, "")
    }

    /// Starts a gateway with more settings of `[ipsec]` too.
    fn start_with(&self, gateway: usize, more: &str, settings: &str) -> Option<Daemon<'_>> {
        let file = self.write(gateway, more, settings);
        Daemon::start_with(&self.gateways[gateway], &["--config", &file.display().to_string()])
    }

    /// Writes the configuration of a gateway.
    fn write(&self, gateway: usize, more: &str, settings: &str) -> PathBuf {
        let file = self.folder.join(format!("g{gateway}.toml"));
        let state = self.folder.join(format!("g{gateway}.state"));
        let ends = ["192.0.2.1", "198.51.100.1"];
        let nets = ["10.1.0.0/24", "10.2.0.0/24"];
        let (one, other) = (gateway, 1 - gateway);
        let mut config = format!(
            "[[port]]\ndevice = 'lan'\n[[port]]\ndevice = 'wan'\n[ipsec]\n{settings}\nstate_file = '{}'\n",
            state.display()
        );
        for (direction, from, to) in [("out", one, other), ("in", other, one)] {
            config += &format!(
                "[[ipsec.sa]]\nname = '{direction}'\ndirection = '{direction}'\nspi = {}\nsource = '{}'\n\
                 destination = '{}'\nsuite = 'aes128gcm16'\nencryption_key = '{}'\n{more}\n\
                 [[ipsec.policy]]\ndirection = '{direction}'\nsource = '{}'\ndestination = '{}'\n\
                 action = 'protect'\nsa = '{direction}'\n",
                0x1001 + from,
                ends[from],
                ends[to],
                KEYS[from],
                nets[from],
                nets[to],
            );
        }
        std::fs::write(&file, config).expect("a folder for configurations");
        file
    }

    /// The policies of the first gateway in its kernel.
    fn in_kernel(&self) -> String {
        self.gateways[0].run("ip xfrm policy list")
    }

    /// Sends from one host to the other for as long as the action takes, and a bit longer; asserts that nothing of it
    /// crosses the net in clear. Returns how many ESP packets of the first gateway did.
    fn nothing_in_clear(&self, what: &str, action: impl FnOnce()) -> usize {
        let seen = self.net.packet_socket("m1");
        self.ping_during(action);
        let crossed = Self::crossed(&seen);
        let clear = crossed.iter().filter(|(_, frame)| frame.get(26..30) == Some(&[10, 1, 0, 2])).count();
        assert_eq!(clear, 0, "{what}: of {} packets\n{}", crossed.len(), self.in_kernel());
        let esp = |(protocol, frame): &&(u8, Vec<u8>)| {
            *protocol == ESP && frame.get(26..30) == Some(&[192, 0, 2, 1])
        };
        crossed.iter().filter(esp).count()
    }

    /// What has crossed the net: protocol and bytes of each IPv4 packet.
    fn crossed(socket: &PacketSocket) -> Vec<(u8, Vec<u8>)> {
        let mut packets = Vec::new();
        while let Some(captured) = socket.receive().expect("frames of the net") {
            let frame = captured.frame;
            if frame.get(12..14) == Some(&[8, 0]) {
                packets.push((frame[23], frame));
            }
        }
        packets
    }
}

fn sa<'v>(shown: &'v serde_json::Value, name: &str) -> &'v serde_json::Value {
    let sas = shown["sas"].as_array().expect("a list");
    sas.iter().find(|sa| sa["name"] == name).expect("an SA of this name")
}

#[test]
fn hosts_talk_through_a_tunnel() {
    let net = Net::new("ipsec");
    let (Some(one), Some(two)) = (net.start(0, ""), net.start(1, "esn = 'off'")) else { return };
    let seen = ["m1", "m2"].map(|wire| net.net.packet_socket(wire));
    ping(&net.a, "10.2.0.2", 56, 62);
    ping(&net.a, "10.2.0.2", 1300, 62);
    udp(&net);
    path_mtu(&net, &one);
    let crossed = seen.each_ref().map(Net::crossed);
    for packets in &crossed {
        let esp = packets.iter().filter(|(protocol, _)| *protocol == ESP).count();
        assert!(esp > 10 && esp == packets.len(), "{}: {esp} of {}", net.test, packets.len());
    }
    let from_one = crossed[0].iter().find(|(_, frame)| frame.get(26..30) == Some(&[192, 0, 2, 1]));
    let mut esp = from_one.expect("ESP of the first gateway").1.clone();
    esp[..6].copy_from_slice(&mac(&net.gateways[1], "wan").0);
    esp[6..12].copy_from_slice(&mac(&net.net, "m2").0);
    let shown = [&one, &two].map(|gateway| gateway.ask(&["show", "sas"]));
    assert_eq!(sa(&shown[0], "out")["packets"], sa(&shown[1], "in")["packets"]);
    assert_eq!(sa(&shown[1], "out")["packets"], sa(&shown[0], "in")["packets"]);
    let text = shown[0].to_string() + &one.log() + &one.ask(&["show", "policies"]).to_string();
    assert!(!text.contains("1f2e3d4c") && text.contains("10.2.0.0/24"), "keys are not shown");
    forged(&net, &two, &esp);
    one.stop();
    two.stop();
}

fn udp(net: &Net) {
    let bind = |address: &str| {
        let socket = UdpSocket::bind(address).expect("a free port");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket
    };
    let (client, server) = (net.a.within(|| bind("10.1.0.2:4000")), net.b.within(|| bind("10.2.0.2:7")));
    eventually("a datagram must come back", || {
        let mut buffer = [0; 2000];
        let sent = [7; 1200];
        client.send_to(&sent, "10.2.0.2:7").expect("a route");
        let Ok((length, from)) = server.recv_from(&mut buffer) else { return false };
        server.send_to(&buffer[..length], from).expect("a route");
        client.recv_from(&mut buffer).is_ok_and(|(length, _)| buffer[..length] == sent)
    });
}

/// A host learns which packets fit into the tunnel.
fn path_mtu(net: &Net, one: &Daemon<'_>) {
    let route = || net.a.run("ip route get 10.2.0.2");
    eventually("an error with the MTU", || {
        let _refused = net.a.try_run("ping -M do -c 1 -W 1 -s 1450 10.2.0.2");
        route().contains("mtu 1446")
    });
    assert!(one.dropped("ipsec_too_big") >= 1);
    let fits = net.a.run("ping -M do -c 3 -i 0.1 -s 1418 10.2.0.2");
    assert!(fits.contains("3 received"), "{fits}");
}

/// Sends a replay, a packet of no SA and one in clear to the second gateway, which counts each and sends none on.
fn forged(net: &Net, two: &Daemon<'_>, esp: &[u8]) {
    let (wire, host) = (net.net.packet_socket("m2"), net.b.packet_socket("eth0"));
    let mut no_sa = esp.to_vec();
    no_sa[34 + 3] ^= 1;
    wire.send(esp).expect("a frame");
    wire.send(&no_sa).expect("a frame");
    eventually("a replay and a wrong SPI are counted", || {
        two.dropped("ipsec_replay") == 1 && two.dropped("ipsec_no_sa") == 1
    });
    // What should have been encrypted.
    let clear = Ip4::udp("10.1.0.2", "10.2.0.2", 20).bytes();
    while host.receive().expect("frames of the other host").is_some() {}
    wire.send(&[&esp[..12], &[8, 0], &clear].concat()).expect("a frame");
    eventually("a packet in clear is counted", || two.dropped("ipsec_policy") == 1);
    assert_eq!(Net::crossed(&host), [], "nothing of it reached the host");
}

#[test]
fn an_expired_sa_sends_nothing_in_clear() {
    let net = Net::new("ipsec-end");
    let (Some(one), Some(two)) = (net.start(0, "hard_packets = 3"), net.start(1, "")) else { return };
    let seen = net.net.packet_socket("m1");
    let _lost = net.a.try_run("ping -c 8 -i 0.1 -W 1 10.2.0.2");
    eventually("the SA ends", || one.dropped("ipsec_lifetime") >= 3);
    let crossed = Net::crossed(&seen);
    let from_one = crossed.iter().filter(|(_, frame)| frame.get(26..30) == Some(&[192, 0, 2, 1]));
    assert_eq!(from_one.map(|(protocol, _)| *protocol).collect::<Vec<_>>(), [ESP; 3]);
    assert!(crossed.iter().all(|(protocol, _)| *protocol == ESP), "nothing in clear");
    assert_eq!(sa(&one.ask(&["show", "sas"]), "out")["state"], "expired");
    one.stop();
    two.stop();
}

#[test]
fn a_killed_gateway_goes_on_with_new_numbers() {
    let net = Net::new("ipsec-kill");
    let (Some(one), Some(two)) = (net.start(0, ""), net.start(1, "")) else { return };
    ping(&net.a, "10.2.0.2", 56, 62);
    let sequence = |gateway: &Daemon<'_>| sa(&gateway.ask(&["show", "sas"]), "out")["sequence"].as_u64();
    let before = sequence(&one);
    one.kill();
    let Some(one) = net.start(0, "") else { return };
    // The other end accepts them: they are above all that were used before.
    ping(&net.a, "10.2.0.2", 56, 62);
    assert!(sequence(&one) > before.map(|number| number + 1_000_000), "{before:?}");
    assert_eq!(two.dropped("ipsec_replay"), 0);
    one.stop();
    two.stop();
}

/// Whatever happens to a gateway, Linux does not forward in clear what the gateway should have encrypted.
#[test]
fn linux_forwards_nothing_in_clear() {
    let net = Net::new("ipsec-clear");
    let Some(two) = net.start(1, "") else { return };
    let kept = "ip xfrm policy add src 10.77.0.0/16 dst 10.78.0.0/16 dir fwd action block";
    net.gateways[0].run(kept);
    let mut one = None;
    // Before the first start, Linux knows nothing of the policies.
    net.start(0, "").expect("the binary is there").stop();
    assert!(net.in_kernel().contains("src 10.1.0.0/24 dst 10.2.0.0/24"), "{}", net.in_kernel());
    net.nothing_in_clear("a start", || one = net.start(0, ""));
    let mut one = one.expect("the binary is there");
    ping(&net.a, "10.2.0.2", 56, 62);
    assert_eq!(
        one.ask(&["status"])["linux_only"].to_string().matches("10.2.0.0").count(),
        0,
        "{}",
        one.ask(&["status"])
    );
    eventually("packets cross the net", || net.nothing_in_clear("it runs", || {}) > 50);
    // Linux's firewall has a chain for forwarded packets: all of them are left to it.
    let chain = "table ip t { chain f { type filter hook forward priority 0; counter; }; }";
    net.gateways[0].feed("nft -f -", chain).expect("nftables");
    eventually("packets are left to Linux", || net.nothing_in_clear("a firewall", || {}) == 0);
    net.gateways[0].run("nft delete table ip t");
    ping(&net.a, "10.2.0.2", 56, 62);
    net.nothing_in_clear("reload", || {
        net.write(0, "replay_window = 128", "");
        one.ask(&["reload"]);
    });
    ping(&net.a, "10.2.0.2", 56, 62);
    // Removed policies are added again.
    net.gateways[0].run("ip xfrm policy flush");
    eventually("the policies come back", || net.in_kernel().contains("dst 10.2.0.0/24"));
    net.gateways[0].run(kept);
    net.nothing_in_clear("kill -9", || one.kill());
    let mut again = None;
    net.nothing_in_clear("a start after kill -9", || again = net.start(0, ""));
    one = again.expect("the binary is there");
    ping(&net.a, "10.2.0.2", 56, 62);
    net.nothing_in_clear("stop", || one.stop());
    let policies = net.in_kernel();
    assert_eq!(policies.matches("dst 10.2.0.0/24").count(), 1, "{policies}");
    // As the administrator wishes.
    let one = net.start_with(0, "", "left_to_linux = 'forward'").expect("the binary is there");
    let policies = net.in_kernel();
    assert!(!policies.contains("10.2.0.0/24") && policies.contains("10.78.0.0/16"), "{policies}");
    ping(&net.a, "10.2.0.2", 56, 62);
    one.stop();
    two.stop();
}
