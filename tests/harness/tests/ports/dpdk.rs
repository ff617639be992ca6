//! Ports driven by DPDK, on its virtual devices: the host TAP in Linux, and two processes on one memif.
//!
//! ```text
//!  host-a ─ veth ─ bridge ─ net_tap1 ┤ brickmoon ├ net_tap2 ─ bridge ─ veth ─ host-b      host TAP
//!
//!  host-a ─ veth ┤ brickmoon ├ net_memif ═══ net_memif ┤ brickmoon ├ veth ─ host-b        two processes
//! ```

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use bm_tests::daemon::{Daemon, End, cross, eventually, ping};
use bm_tests::netns::Namespace;
use bm_tests::subject::binary;
use bm_tests::{command, report, sys};
use std::process::Stdio;
use std::time::Duration;

/// A host on a veth whose far end, `wire`, is in the router's namespace. `NET` is 10.0.NET.2/24.
fn host(test: &str, role: &str, router: &Namespace, wire: &str, net: u8) -> Namespace {
    let host = Namespace::new(test, role);
    host.ip(&format!(
        "link set lo up\nlink add {wire} type veth peer name v0\nlink set {wire} netns {}",
        router.name()
    ));
    // Without this, checksums would be left to hardware that does not exist.
    host.run("ethtool -K v0 tx off");
    host.ip(&format!(
        "link set v0 up\naddr add 10.0.{net}.2/24 dev v0\naddr add fd00:{net}::2/64 dev v0 nodad\n\
         route add default via 10.0.{net}.1\n-6 route add default via fd00:{net}::1"
    ));
    router.set(&[(&format!("net.ipv6.conf.{wire}.disable_ipv6"), "1")]);
    router.ip(&format!("link set {wire} up"));
    host
}

fn router(test: &str, role: &str) -> Namespace {
    let router = Namespace::new(test, role);
    router.ip("link set lo up");
    router.set(&[("net.ipv4.ip_forward", "1"), ("net.ipv6.conf.all.forwarding", "1")]);
    // The kernel's end of a net_tap starts with the MAC of its host TAP, so duplicate address detection would fail.
    router.set(&[("net.ipv6.conf.all.accept_dad", "0"), ("net.ipv6.conf.default.accept_dad", "0")]);
    router
}

/// Connects `a` and `b` of a namespace like a cable.
fn join(namespace: &Namespace, bridge: &str, a: &str, b: &str) {
    namespace.ip(&format!("link add {bridge} type bridge mcast_snooping 0"));
    let quiet = [bridge, a].map(|name| format!("net.ipv6.conf.{name}.disable_ipv6"));
    quiet.iter().for_each(|name| namespace.set(&[(name, "1")]));
    // Linux is attached to the bridge as well, and would answer for the router's addresses.
    namespace.set(&[(&format!("net.ipv4.conf.{bridge}.arp_ignore"), "8")]);
    namespace.ip(&format!(
        "link set {a} master {bridge}\nlink set {b} master {bridge}\nlink set {bridge} up\nlink set {a} up"
    ));
}

#[test]
fn a_port_is_an_interface_of_linux() {
    if !sys::is_root() {
        return report::skip("dpdk", "namespaces need root");
    }
    let rtr = router("dpdk", "rtr");
    let (a, b) = (host("dpdk", "a", &rtr, "w1", 1), host("dpdk", "b", &rtr, "w2", 2));
    let Some(daemon) = Daemon::start(&rtr, &["dpdk:net_tap1,iface=dt1", "dpdk:net_tap2,iface=dt2"]) else {
        return;
    };
    for net in [1, 2] {
        // The kernel's end has the same MAC as DPDK's, and a bridge would keep frames to it.
        rtr.ip(&format!("link set dt{net} address 02:00:00:00:{net:02x}:99"));
        join(&rtr, &format!("br{net}"), &format!("dt{net}"), &format!("w{net}"));
        rtr.ip(&format!(
            "addr add 10.0.{net}.1/24 dev bm-tap{net}\naddr add fd00:{net}::1/64 dev bm-tap{net} nodad"
        ));
    }
    // To Linux and through the router: ARP, neighbor discovery, both families, a full frame.
    ping(&a, "10.0.1.1", 56, 64);
    ping(&a, "10.0.2.2", 1472, 63);
    ping(&b, "fd00:1::2", 1400, 63);
    ping(&rtr, "10.0.2.2", 56, 64);
    let [left, right] = ends("tap", [&a, &b]);
    cross(&rtr, &left, &right);
    cross(&rtr, &right, &left);
    let port = daemon.port("bm-tap1");
    assert_eq!(port["mode"], "dpdk");
    assert!(port["account"]["sent"].as_u64().unwrap() >= 10, "{port}");
    assert!(port["account"]["host"].as_u64().unwrap() >= 5, "{port}");
    assert!(port["hardware_counters"]["rx_good_packets"].as_u64().unwrap() >= 15, "{port}");
    // The MTU is set in Linux.
    let has_mtu = |name: &str| rtr.run(&format!("ip -o link show dev {name}")).contains("mtu 1280 ");
    rtr.ip("link set bm-tap1 mtu 1280");
    eventually("the device's MTU follows", || has_mtu("dt1"));
    rtr.ip("link set bm-tap1 mtu 9000");
    eventually("what no slot holds is refused", || has_mtu("bm-tap1"));
    obeys_linux(&rtr, &a);
    // The host TAP shows the device's link state.
    let carrier = || rtr.run("ip -o link show dev bm-tap1").contains("LOWER_UP");
    assert!(carrier());
    rtr.ip("link set dt1 down");
    eventually("the host TAP loses its carrier", || !carrier());
    assert!(!daemon.port("bm-tap1")["up"].as_bool().unwrap());
    eventually("it says why", || reason(&daemon, "bm-tap1").contains("its interface in Linux is down"));
    rtr.ip("link set dt1 up");
    eventually("the host TAP has its carrier again", carrier);
    eventually("nothing is wrong with it", || !reason(&daemon, "bm-tap1").contains("no link"));
    ping(&a, "10.0.2.2", 56, 63);
    daemon.stop();
}

/// Why a port does not work, according to `show ports`.
fn reason(daemon: &Daemon, port: &str) -> String {
    daemon.port(port)["state_reason"].as_str().unwrap_or_default().to_owned()
}

/// Packets that rules of Linux forbid on a host TAP come through in neither direction until the rule is removed.
fn obeys_linux(rtr: &Namespace, a: &Namespace) {
    if !command::has("nft") {
        return report::skip("dpdk", "rules of Linux need nft");
    }
    rtr.run("nft add table ip t");
    rtr.feed("nft -f -", "add chain ip t f { type filter hook forward priority 0; }").unwrap();
    for rule in ["iifname bm-tap1 drop", "ip daddr 10.0.2.2 drop", "oifname bm-tap2 ip protocol icmp drop"] {
        rtr.run(&format!("nft add rule ip t f {rule}"));
        let comes_through = || {
            let output = a.try_run("ping -c 5 -i 0.05 -W 1 10.0.2.2");
            String::from_utf8_lossy(&output.stdout).contains("ttl=")
        };
        eventually(&format!("{rule}: must be effective"), || !comes_through());
        assert!(!comes_through(), "{rule}: must stay effective");
        rtr.run("nft flush chain ip t f");
        ping(a, "10.0.2.2", 56, 63);
    }
    rtr.run("nft delete table ip t");
}

/// Two hosts on AF_XDP ports, and a DPDK device as a third port; `None` as for [`Daemon::start`].
struct Third<'a> {
    hosts: [Namespace; 2],
    daemon: Daemon<'a>,
}

impl<'a> Third<'a> {
    fn start(test: &str, rtr: &'a Namespace, device: &str) -> Option<Self> {
        let hosts = [host(test, "a", rtr, "w1", 1), host(test, "b", rtr, "w2", 2)];
        let daemon = Daemon::start(rtr, &["xdp:w1", "xdp:w2", device])?;
        rtr.ip("addr add 10.0.1.1/24 dev w1\naddr add 10.0.2.1/24 dev w2");
        let third = Self { hosts, daemon };
        third.carries();
        Some(third)
    }

    /// Asserts that the other two ports carry packets.
    fn carries(&self) {
        ping(&self.hosts[0], "10.0.2.2", 56, 63);
    }

    /// Pings to the device's network for a while, and from host to host: of those none may be lost.
    fn carries_beside(&self, what: &str, action: impl FnOnce()) {
        let [a, _] = &self.hosts;
        let ping = |to: &str| {
            let mut command = a.command("ping");
            command
                .args(["-c", "150", "-i", "0.02", "-W", "2", to])
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            command.spawn().unwrap()
        };
        let (beside, mut to) = (ping("10.0.2.2"), ping("10.0.3.2"));
        std::thread::sleep(Duration::from_millis(500));
        action();
        let said = beside.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.contains(" 150 received"), "{what}: {said}\n{}", self.daemon.log());
        to.kill().unwrap();
        to.wait().unwrap();
    }
}

/// A device that has no link, and is then deleted in Linux: other ports lose nothing, and packets to it are counted.
#[test]
fn a_device_that_goes_away_disturbs_no_other_port() {
    if !sys::is_root() {
        return report::skip("dpdk", "namespaces need root");
    }
    let rtr = router("dpdkgone", "rtr");
    let Some(third) = Third::start("dpdkgone", &rtr, "dpdk:net_tap3,iface=dt3") else { return };
    rtr.ip(
        "addr add 10.0.3.1/24 dev bm-tap3\nneigh add 10.0.3.2 lladdr 02:00:00:00:03:02 dev bm-tap3 nud permanent",
    );
    // The device's own count: an account is of the packets that a port received.
    let sent = || third.daemon.port("bm-tap3")["hardware_counters"]["tx_good_packets"].as_u64().unwrap();
    third.carries_beside("a link that works", || {
        eventually("packets leave by it", || sent() > 0);
    });
    third.carries_beside("a link that is down", || drop(rtr.ip("link set dt3 down")));
    eventually("it must say so", || reason(&third.daemon, "bm-tap3").contains("no link"));
    rtr.ip("link set dt3 up");
    eventually("it must recover", || reason(&third.daemon, "bm-tap3").is_empty());
    let before = sent();
    third.carries_beside("a link that is up again", || eventually("packets leave by it", || sent() > before));
    third.carries_beside("a deleted interface", || drop(rtr.ip("link del dt3")));
    third.carries();
    eventually("it must say so", || reason(&third.daemon, "bm-tap3").contains("no link"));
    third.daemon.stop();
}

/// A device that delivers frames without end, more than one worker handles: they are not the router's.
#[test]
fn a_device_that_floods_leaves_others_their_turn() {
    if !sys::is_root() {
        return report::skip("dpdk", "namespaces need root");
    }
    let rtr = router("dpdkflood", "rtr");
    let Some(third) = Third::start("dpdkflood", &rtr, "dpdk:net_null0,size=60") else { return };
    let received = || third.daemon.port("bm-null0")["account"]["received"].as_u64().unwrap();
    eventually("frames come", || received() > 100_000);
    third.carries();
    let before = received();
    eventually("frames still come", || received() > before + 100_000);
    // They never stop, so a burst may be on its way while counters are read.
    for app in third.daemon.ask(&["show", "apps"])["apps"].as_array().unwrap() {
        let number = |key: &str| app["account"][key].as_u64().unwrap();
        let came = number("received") + number("originated");
        let went = ["sent", "host", "passed", "held", "consumed", "dropped"].map(number);
        assert!(came.abs_diff(went.iter().sum()) <= 256, "{app}");
    }
    third.daemon.kill();
}

/// Devices that cannot be opened: `up` says why; a daemon that runs refuses them, and goes on.
#[test]
fn invalid_devices_are_refused_with_a_reason() {
    if !sys::is_root() {
        return report::skip("dpdk", "namespaces need root");
    }
    let rtr = router("dpdkargs", "rtr");
    let Some(third) = Third::start("dpdkargs", &rtr, "dpdk:net_ring0") else { return };
    let cases = [
        ("net_nosuch0", "no DPDK driver accepts it"),
        ("net_pcap9,rx_pcap=/nonexistent/in.pcap", "/nonexistent/in.pcap"),
        ("net_af_packet9,iface=nosuch0", "net_af_packet9"),
    ];
    for (device, why) in cases {
        let mut command = rtr.command(binary().unwrap());
        let socket = std::env::temp_dir().join(format!("{}.sock", rtr.name()));
        command.args(["up", "--port", &format!("dpdk:{device}"), "--socket"]).arg(&socket);
        let refused = command::run(device, &mut command, Duration::from_secs(60)).unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(why), "{device}: {:?}: {said}", refused.status);
    }
    third.carries();
    third.daemon.stop();
}

/// The hosts behind the host TAPs `bm-KIND1` and `bm-KIND2`.
fn ends<'a>(kind: &str, hosts: [&'a Namespace; 2]) -> [End<'a>; 2] {
    [1, 2].map(|net: u8| {
        let host = hosts[usize::from(net) - 1];
        End { host, wire: "v0", host_tap: format!("bm-{kind}{net}"), net }
    })
}

/// Tests one of DPDK's drivers for interfaces of Linux.
fn borrow(kind: &str) {
    if !sys::is_root() {
        return report::skip("dpdk", "namespaces need root");
    }
    let rtr = router(kind, "rtr");
    let (a, b) = (host(kind, "a", &rtr, "w1", 1), host(kind, "b", &rtr, "w2", 2));
    for wire in ["w1", "w2"] {
        // Linux receives what packet sockets receive, and would forward each packet as well.
        let chain = format!("{{ type filter hook ingress device {wire} priority 0; policy drop; }}");
        rtr.run(&format!("nft add table netdev {wire}"));
        if !rtr.try_run(&format!("nft add chain netdev {wire} in {chain}")).status.success() {
            return report::skip(kind, "cannot keep packets from Linux: needs nftables with ingress hooks");
        }
    }
    let devices = [1, 2].map(|n| format!("dpdk:net_{kind}{n},iface=w{n}"));
    let Some(daemon) = Daemon::start(&rtr, &[&devices[0], &devices[1]]) else { return };
    for net in [1, 2] {
        rtr.ip(&format!(
            "addr add 10.0.{net}.1/24 dev bm-{kind}{net}\naddr add fd00:{net}::1/64 dev bm-{kind}{net} nodad"
        ));
    }
    ping(&a, "10.0.1.1", 56, 64);
    ping(&a, "10.0.2.2", 1472, 63);
    ping(&b, "fd00:1::2", 1400, 63);
    let [left, right] = ends(kind, [&a, &b]);
    cross(&rtr, &left, &right);
    cross(&rtr, &right, &left);
    daemon.stop();
}

#[test]
fn packet_sockets_carry_packets_byte_by_byte() {
    borrow("af_packet");
}

/// Also with frames that are larger than a page; Linux must have access to the last byte.
#[test]
fn af_xdp_by_dpdk_carries_packets_byte_by_byte() {
    borrow("af_xdp");
}

/// Two daemons, each with a host on AF_XDP, connected by two DPDK devices; `no_copy` tells which of them do not copy.
fn meet(test: &str, devices: [&str; 2], host_taps: [&str; 2], no_copy: [bool; 2]) {
    if !sys::is_root() {
        return report::skip(test, "namespaces need root");
    }
    let (left, right) = (router(test, "left"), router(test, "right"));
    let (a, b) = (host(test, "a", &left, "w1", 1), host(test, "b", &right, "w2", 2));
    let Some(one) = Daemon::start(&left, &["xdp:w1", devices[0]]) else { return };
    eventually("it must report that there is no link", || reason(&one, host_taps[0]).contains("no link"));
    let two = Daemon::start(&right, &["xdp:w2", devices[1]]).expect("the same binary");
    left.ip(&format!("addr add 10.0.1.1/24 dev w1\naddr add 10.0.12.1/24 dev {}", host_taps[0]));
    right.ip(&format!("addr add 10.0.2.1/24 dev w2\naddr add 10.0.12.2/24 dev {}", host_taps[1]));
    let has_carrier = |router: &Namespace, host_tap: &str| {
        router.run(&format!("ip -o link show dev {host_tap}")).contains("LOWER_UP")
    };
    eventually("the devices connect", || {
        has_carrier(&left, host_taps[0]) && has_carrier(&right, host_taps[1])
    });
    eventually("it must report no problem any more", || reason(&one, host_taps[0]).is_empty());
    left.ip("route add 10.0.2.0/24 via 10.0.12.2");
    right.ip("route add 10.0.1.0/24 via 10.0.12.1");
    ping(&left, "10.0.12.2", 56, 64);
    ping(&a, "10.0.2.2", 1472, 62);
    ping(&b, "10.0.1.2", 56, 62);
    for (index, daemon) in [&one, &two].into_iter().enumerate() {
        let port = daemon.port(host_taps[index]);
        assert!(port["account"]["received"].as_u64().unwrap() >= 20, "{port}");
        assert_eq!(port["mode_reason"].is_null(), no_copy[index], "{port}");
    }
    two.stop();
    eventually("the link must be lost with the far end", || !has_carrier(&left, host_taps[0]));
    one.stop();
}

fn socket(name: &str) -> String {
    std::env::temp_dir().join(format!("bm-{name}-{}", std::process::id())).display().to_string()
}

#[test]
fn two_processes_meet_on_a_memif() {
    let socket = socket("memif");
    let memif = |role: &str| format!("dpdk:net_memif0,role={role},socket={socket},socket-abstract=no");
    meet("dpdkmem", [&memif("server"), &memif("client")], ["bm-memif0", "bm-memif0"], [true, true]);
    let _gone = std::fs::remove_file(&socket);
}

#[test]
fn two_processes_meet_by_vhost_user() {
    let socket = socket("vhost");
    let devices = [format!("dpdk:net_vhost0,iface={socket}"), format!("dpdk:net_virtio_user0,path={socket}")];
    meet("dpdkvh", [&devices[0], &devices[1]], ["bm-vhost0", "bm-virtio_user0"], [true, false]);
    let _gone = std::fs::remove_file(&socket);
}
