//! What is particular to ports of workers: their names, packets that only Linux may forward, and changes of the MTU.

use bm_tests::daemon::{Daemon, eventually, mac, ping};
use bm_tests::netns::Namespace;
use bm_tests::packet::{Ip4, ip_frame};
use bm_tests::{report, subject, sys};

/// Frames of a burst: more than wait between a worker and the slow path, and as many as the ring of a port holds.
const BURST: u16 = 12_000;

/// A router with an interface of each name, and a host at the other end of each: 10.0.N.2 for the interface N, counted
/// from 1. `None` if this machine cannot have them.
fn network(test: &str, interfaces: &[&str]) -> Option<(Namespace, Vec<Namespace>)> {
    if subject::binary().is_none() || !sys::is_root() {
        report::skip(test, "it needs root and the binary");
        return None;
    }
    let router = Namespace::new(test, "rtr");
    router.set(&[("net.ipv4.ip_forward", "1")]);
    let host = |(interface, number): (&&str, u8)| {
        let host = Namespace::new(test, &format!("h{number}"));
        router.run(&format!("ip link add {interface} type veth peer name e0 netns {}", host.name()));
        router.run(&format!("ip addr add 10.0.{number}.1/24 dev {interface}"));
        router.run(&format!("ip link set {interface} up"));
        host.run(&format!("ip addr add 10.0.{number}.2/24 dev e0"));
        host.run("ip link set e0 up");
        host.run(&format!("ip route add default via 10.0.{number}.1"));
        host
    };
    let hosts = interfaces.iter().zip(1..).map(host).collect();
    Some((router, hosts))
}

fn on_workers<'a>(router: &'a Namespace, ports: &[&str]) -> Daemon<'a> {
    let named = ports.iter().flat_map(|port| ["--port", port]);
    let arguments: Vec<_> = ["--path", "user"].into_iter().chain(named).collect();
    Daemon::start_with(router, &arguments).expect("there is a binary")
}

#[test]
fn ports_have_any_name() {
    // A VLAN interface; apps of a worker, and an interface whose name begins like one; the syntax of links.
    let names = ["eth0.100", "router", "slow.7@x", "a->b"];
    let Some((router, hosts)) = network("names", &names) else { return };
    let daemon = on_workers(&router, &names);
    ping(&hosts[0], "10.0.2.2", 56, 63);
    ping(&hosts[2], "10.0.4.2", 56, 63);
    for name in names {
        let account = &daemon.port(name)["account"];
        assert!(account["sent"].as_u64() > Some(0), "{name} has sent nothing: {account}");
    }
    daemon.stop();
}

/// Sends a burst from the first host, faster than the slow path can follow on a busy machine.
fn burst(router: &Namespace, host: &Namespace, port: &str, to: &str) {
    let (socket, ours, theirs) = (host.packet_socket("e0"), mac(host, "e0"), mac(router, port));
    for number in 0..BURST {
        let packet = Ip4::udp_ports("10.0.1.2", to, 1000, 2000, &number.to_be_bytes()).id(number).bytes();
        // The buffer of the socket may be full for a moment.
        while socket.send(&ip_frame(theirs, ours, &packet)).is_err() {
            std::thread::yield_now();
        }
    }
}

fn received(daemon: &Daemon<'_>, port: &str) -> u64 {
    daemon.port(port)["account"]["received"].as_u64().expect("a number")
}

#[test]
fn packets_that_lead_over_no_port_do_not_leave_the_kernel() {
    let Some((router, hosts)) = network("noport", &["r1", "r2", "r3"]) else { return };
    let daemon = on_workers(&router, &["r1", "r2"]);
    ping(&hosts[0], "10.0.3.2", 56, 63);
    let before = received(&daemon, "r1");
    burst(&router, &hosts[0], "r1", "10.0.3.2");
    assert!(received(&daemon, "r1") - before < 100, "workers got packets that only Linux can send");
    ping(&hosts[0], "10.0.2.2", 56, 63);
    assert!(received(&daemon, "r1") > before, "others come to workers");
    // A longer route over a port, and the end of the route that Linux had.
    router.run("ip route add 10.0.3.2/32 via 10.0.2.2");
    eventually("a longer route takes packets to workers", || {
        let before = received(&daemon, "r1");
        let _unanswered = hosts[0].try_run("ping -c 3 -i 0.05 -W 0.2 10.0.3.2");
        received(&daemon, "r1") - before >= 3
    });
    daemon.ask(&["verify"]);
    daemon.stop();
}

#[test]
fn bursts_for_linux_find_room() {
    let Some((router, hosts)) = network("bursts", &["r1", "r2"]) else { return };
    if !router.try_run("nft list tables").status.success() {
        return report::skip("bursts", "it needs nft");
    }
    router.run("nft add table ip counting");
    router.run("nft add chain ip counting forward { type filter hook forward priority 0 ; }");
    router.run("nft add rule ip counting forward udp dport 2000 counter");
    let daemon = on_workers(&router, &["r1", "r2"]);
    ping(&hosts[0], "10.0.2.2", 56, 63);
    burst(&router, &hosts[0], "r1", "10.0.2.2");
    eventually("Linux has got what workers received", || {
        let account = &daemon.port("r1")["account"];
        let number = |key: &str| account[key].as_u64().expect("a number");
        number("received") == number("sent") + number("host") + number("dropped")
    });
    let drops = daemon.ask(&["show", "drops"]);
    assert!(!drops.to_string().contains("slow_path_full"), "{drops}");
    daemon.stop();
}

#[test]
fn an_mtu_can_be_raised_while_workers_run() {
    let Some((router, hosts)) = network("mtu", &["r1", "r2"]) else { return };
    let daemon = on_workers(&router, &["r1", "r2"]);
    ping(&hosts[0], "10.0.2.2", 1472, 63);
    for (host, port) in hosts.iter().zip(["r1", "r2"]) {
        host.run("ip link set e0 mtu 9000");
        router.run(&format!("ip link set {port} mtu 9000"));
    }
    for size in [1600, 3000, 8900] {
        ping(&hosts[0], "10.0.2.2", size, 63);
    }
    let port = daemon.port("r1");
    assert!(port["state_reason"].as_str().is_some_and(|why| why.contains("fit into no slot")), "{port}");
    let before = received(&daemon, "r1");
    ping(&hosts[0], "10.0.2.2", 56, 63);
    assert!(received(&daemon, "r1") > before, "workers forward the others");
    daemon.stop();
}
