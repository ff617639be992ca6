//! Two routers whose routes decide what is encrypted: IPsec interfaces that are TUN devices, with manual keys.
//!
//! ```text
//! host a ─ gateway 1 ═ ipsec0, ipsec1 over the net ═ gateway 2 ─ host b
//! 10.1.0.2   192.0.2.1                             198.51.100.1  10.2.0.2, 10.12.0.2
//! ```
//!
//! Selectors are 0.0.0.0/0 everywhere, so nothing but routes tells packets of the two interfaces apart. The gateways have
//! 10.99.0.1 and 10.99.0.2 on ipsec0. `ipsec2` has no SA.

use bm_tests::daemon::{Daemon, eventually, ping};
use bm_tests::netns::Namespace;
use bm_tests::sys::PacketSocket;
use std::ops::Deref;

use super::gateways::{ESP, Gateways};

const ENDS: [&str; 2] = ["192.0.2.1", "198.51.100.1"];

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
        // Linux would send router solicitations through the tunnels.
        let net = Self(Gateways::new(test, "", &[("net.ipv6.conf.default.disable_ipv6", "1")]));
        for (n, host) in net.hosts().into_iter().enumerate() {
            let (gateway, lan) = (&net.gateways[n], n + 1);
            host.ip(&format!("addr add 10.1{lan}.0.2/24 dev eth0"));
            gateway.ip(&format!("addr add 10.1{lan}.0.1/24 dev lan"));
            for device in ["ipsec0", "ipsec1", "ipsec2"] {
                net.add_device(n, device);
            }
            gateway.ip(&format!("addr add 10.99.0.{lan}/30 dev ipsec0"));
            net.add_routes(n);
        }
        net
    }

    fn add_device(&self, gateway: usize, name: &str) {
        self.gateways[gateway].ip(&format!("tuntap add {name} mode tun\nlink set {name} up"));
    }

    fn add_routes(&self, gateway: usize) {
        let other = 2 - gateway;
        self.gateways[gateway].ip(&format!(
            "route replace 10.{other}.0.0/24 dev ipsec0\nroute replace 10.1{other}.0.0/24 dev ipsec1\n\
             route replace 10.9.0.0/24 dev ipsec2\nroute replace unreachable 10.{other}.0.0/24 metric 4000000"
        ));
    }

    /// Starts a gateway.
    fn start(&self, gateway: usize) -> Option<Daemon<'_>> {
        let file = self.folder.join(format!("g{gateway}.toml"));
        let state = self.folder.join(format!("g{gateway}.state"));
        let (one, other) = (gateway, 1 - gateway);
        let mut config = format!(
            "[[port]]\ndevice = 'lan'\n[[port]]\ndevice = 'wan'\n[ipsec]\nstate_file = '{}'\n\
             [[ipsec.interface]]\ndevice = 'ipsec2'\nif_id = 99\n",
            state.display()
        );
        for number in [0, 1] {
            config += &format!("[[ipsec.interface]]\ndevice = 'ipsec{number}'\nif_id = {}\n", number + 7);
            for (direction, from, to) in [("out", one, other), ("in", other, one)] {
                config += &format!(
                    "[[ipsec.sa]]\nname = '{direction}{number}'\ndirection = '{direction}'\nspi = {}\nsource = '{}'\n\
                     destination = '{}'\nsuite = 'aes128gcm16'\nencryption_key = '0x{:040x}'\ninterface = 'ipsec{number}'\n\
                     [[ipsec.policy]]\ndirection = '{direction}'\ninterface = 'ipsec{number}'\naction = 'protect'\n\
                     sa = '{direction}{number}'\n",
                    spi(number, from),
                    ENDS[from],
                    ENDS[to],
                    spi(number, from) + 1,
                );
            }
        }
        std::fs::write(&file, config).expect("a folder for configurations");
        Daemon::start_with(&self.gateways[gateway], &["--config", &file.display().to_string()])
    }

    /// The ESP packets that have crossed the net, by SPI; none has an address of the networks behind the gateways.
    fn crossed(&self, socket: &PacketSocket) -> Vec<u32> {
        let mut spis = Vec::new();
        while let Some(captured) = socket.receive().expect("frames of the net") {
            let frame = captured.frame;
            if frame.get(12..14) != Some(&[8, 0]) {
                continue;
            }
            assert!(frame[26] != 10 && frame[30] != 10, "in clear: {frame:02x?}");
            if frame[23] == ESP {
                spis.push(u32::from_be_bytes([frame[34], frame[35], frame[36], frame[37]]));
            }
        }
        spis
    }

    /// Sends from one host to the other for as long as the action takes, and a bit longer; nothing of it crosses the net in
    /// clear.
    fn nothing_in_clear(&self, action: impl FnOnce()) -> usize {
        let seen = self.net.packet_socket("m1");
        self.ping_during(action);
        self.crossed(&seen).len()
    }
}

/// The SPI of packets from a gateway, on an interface.
fn spi(number: u32, from: usize) -> u32 {
    0x1000 + 0x10 * number + from as u32
}

/// What one ping prints that gets no answer.
fn error(from: &Namespace, arguments: &str) -> String {
    let printed = from.try_run(&format!("ping -c 1 -W 1 {arguments}"));
    String::from_utf8_lossy(&printed.stdout).into_owned()
}

#[test]
fn routes_decide_what_is_encrypted() {
    let net = Net::new("ipsecif");
    let (Some(one), Some(two)) = (net.start(0), net.start(1)) else { return };
    let seen = net.net.packet_socket("m1");
    ping(&net.a, "10.2.0.2", 56, 62);
    ping(&net.a, "10.2.0.2", 1300, 62);
    assert!(net.crossed(&seen).iter().all(|found| [spi(0, 0), spi(0, 1)].contains(found)));
    // The other interface, with the same selectors: only the route differs.
    ping(&net.a, "10.12.0.2", 56, 62);
    let crossed = net.crossed(&seen);
    assert!(crossed.contains(&spi(1, 0)) && !crossed.contains(&spi(0, 0)), "{crossed:x?}");
    shown(&one);
    of_this_machine(&net);
    errors(&net, &one, &two);
    net.crossed(&seen);
    one.stop();
    two.stop();
}

/// What `show` and `explain` say.
fn shown(one: &Daemon<'_>) {
    let sas = one.ask(&["show", "sas"]);
    let sas = sas["sas"].as_array().expect("a list");
    let interfaces: Vec<_> = sas.iter().map(|sa| sa["interface"].as_str().expect("a name")).collect();
    assert_eq!(interfaces, ["ipsec0", "ipsec0", "ipsec1", "ipsec1"]);
    let policies = one.ask(&["show", "policies"]).to_string();
    assert!(policies.contains("\"interface\":\"ipsec1\""), "{policies}");
    let routes = one.ask(&["show", "routes", "10.2.0.2"]);
    let hop = &routes["routes"][0]["hops"][0];
    assert_eq!((&hop["interface"], &hop["mac"]), (&"ipsec0".into(), &serde_json::Value::Null), "{routes}");
    let explained = one.ask(&["explain", "10.12.0.2", "--from", "10.1.0.2"]);
    assert_eq!(explained["fate"], "encrypted", "{explained}");
    assert!(explained.to_string().contains("SA out1"), "{explained}");
    let explained = one.ask(&["explain", "10.9.0.2", "--from", "10.1.0.2"]);
    assert_eq!(
        (&explained["fate"], &explained["reason"]),
        (&"dropped".into(), &"ipsec_policy".into()),
        "{explained}"
    );
    assert_eq!(one.ask(&["verify"])["differences"], serde_json::json!([]), "verify");
}

/// What Linux itself sends to an interface is encrypted, and what is for it arrives there.
fn of_this_machine(net: &Net) {
    eventually("the gateways reach each other", || {
        net.gateways[0].try_run("ping -c 1 -W 1 10.99.0.2").status.success()
    });
    ping(&net.gateways[0], "10.2.0.2", 1000, 63);
    ping(&net.a, "10.99.0.2", 56, 63);
}

fn errors(net: &Net, one: &Daemon<'_>, two: &Daemon<'_>) {
    // Each router shows itself, the second one from within the tunnel.
    assert!(error(&net.a, "-t 1 10.2.0.2").contains("From 10.1.0.1"));
    assert!(error(&net.a, "-t 2 10.2.0.2").contains("From 10.99.0.2"));
    assert_eq!(two.dropped("ttl_exceeded"), 1);
    // No policy, no SA: the source is told.
    let before = one.dropped("ipsec_policy");
    let said = error(&net.a, "10.9.0.2");
    assert!(said.contains("From 10.1.0.1") && said.contains("Destination Host Unreachable"), "{said}");
    assert_eq!(one.dropped("ipsec_policy"), before + 1);
    // The MTU of the interface, and that of the tunnel.
    let route = || net.a.run("ip route get 10.2.0.2");
    let learns = |mtu: u32| {
        net.a.run("ip route flush cache");
        eventually("an error with the MTU", || {
            let _refused = net.a.try_run("ping -M do -c 1 -W 1 -s 1450 10.2.0.2");
            route().contains(&format!("mtu {mtu}"))
        });
    };
    learns(1446);
    net.gateways[0].ip("link set ipsec0 mtu 1400");
    learns(1400);
    net.gateways[0].ip("link set ipsec0 mtu 1500");
    net.a.run("ip route flush cache");
    // A route that is withdrawn.
    net.gateways[0].ip("route del 10.2.0.0/24 dev ipsec0");
    eventually("the next route decides", || {
        error(&net.a, "10.2.0.2").contains("Destination Host Unreachable")
    });
    net.add_routes(0);
    ping(&net.a, "10.2.0.2", 56, 62);
}

/// Whatever happens to a gateway, Linux sends to the device what it forwards itself, and nobody else reads that.
#[test]
fn nothing_is_sent_in_clear() {
    let net = Net::new("ipsecif-clear");
    let (Some(one), Some(two)) = (net.start(0), net.start(1)) else { return };
    ping(&net.a, "10.2.0.2", 56, 62);
    eventually("packets cross the net", || net.nothing_in_clear(|| {}) > 50);
    // No policies are needed in the kernel.
    assert_eq!(net.gateways[0].run("ip xfrm policy list").trim(), "");
    // A rule of Linux's firewall: packets that it concerns are left to Linux, and come back by the device.
    let table = |rule| {
        format!("table ip t {{ chain f {{ type filter hook forward priority 0; {rule} counter; }}; }}")
    };
    net.gateways[0].feed("nft -f -", &table("ip daddr 10.2.0.0/24")).expect("nftables");
    eventually("packets are left to Linux", || {
        ping(&net.a, "10.2.0.2", 56, 62);
        !net.gateways[0].run("nft list table ip t").contains("packets 0")
    });
    net.gateways[0].run("nft delete table ip t");
    // One that concerns all packets leaves ESP to Linux, too: nothing comes back, but nothing is in clear.
    net.gateways[0].feed("nft -f -", &table("")).expect("nftables");
    eventually("packets cross the net", || net.nothing_in_clear(|| {}) > 20);
    net.gateways[0].run("nft delete table ip t");
    ping(&net.a, "10.2.0.2", 56, 62);
    net.nothing_in_clear(|| drop(one.ask(&["reload"])));
    net.nothing_in_clear(|| one.kill());
    // Without the daemon.
    assert_eq!(net.nothing_in_clear(|| {}), 0);
    let mut again = None;
    net.nothing_in_clear(|| again = net.start(0));
    let one = again.expect("the binary is there");
    ping(&net.a, "10.2.0.2", 56, 62);
    // The device goes, and comes again.
    net.gateways[0].ip("link del ipsec0");
    eventually("its absence is noticed", || one.ask(&["status"])["notes"].to_string().contains("ipsec0"));
    assert!(!one.ask(&["status"])["notes"].to_string().contains("ipsec1"));
    assert_eq!(net.nothing_in_clear(|| {}), 0);
    net.add_device(0, "ipsec0");
    net.add_routes(0);
    ping(&net.a, "10.2.0.2", 56, 62);
    assert!(!one.ask(&["status"])["notes"].to_string().contains("ipsec0"));
    one.stop();
    two.stop();
}
