//! Filters hold for every frame that Linux could forward from a port, whatever state the port is in: with other MACs,
//! interfaces on top of it, settings that make Linux take frames that it would not take otherwise, numbers and names
//! that do not fit. A stream of forbidden frames, to any MAC, runs all the time, also while a state begins and ends.

use bm_tests::daemon::eventually;
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::packet::{Ip4, Ip6, ip_frame};
use bm_tests::subject::{Router, Subject};
use bm_tests::sys::{PacketSocket, interface_index, wait_readable};
use bm_tests::{command, report};
use bm_wire::Mac;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const RULES: &str = "
[filter]
[[filter.rule]]
name = 'no-dns'
action = 'drop'
protocol = 'udp'
destination_ports = 53
";
const FORBIDDEN: u16 = 53;
const ALLOWED: u16 = 54;
/// How the daemon gets packets: the path of its ports, and more.
const WAYS: [(&str, &str, &str); 3] = [
    ("xdp", "kernel", "[daemon]\nattach = 'xdp'\n"),
    ("tc", "kernel", "[daemon]\nattach = 'tc'\n"),
    ("user", "user", ""),
];
/// The MAC of an interface on top of the port.
const UPPER: Mac = Mac([2, 0, 0, 0, 0, 0x77]);
/// The MAC that the port gets.
const LATER: Mac = Mac([2, 0, 0, 0, 0, 0x51]);
/// How long the stream goes on in a state.
const STAYS: Duration = Duration::from_millis(150);

/// A state of the port `r0`.
struct State {
    name: &'static str,
    /// Commands that begin it; if they fail, this machine cannot have it.
    set: &'static str,
    undo: &'static str,
    /// A MAC whose frames Linux forwards then.
    forwards: Option<Mac>,
}

const fn state(name: &'static str, set: &'static str, undo: &'static str, forwards: Option<Mac>) -> State {
    State { name, set, undo, forwards }
}

const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OTHER: Mac = Mac([2, 0, 0, 0, 9, 9]);

/// Each begins with the port as it was before all of them.
const STATES: &[State] = &[
    state("nothing special", "true", "true", Some(OWN)),
    state(
        "another MAC",
        "ip link set r0 address 02:00:00:00:00:51",
        "ip link set r0 address 02:00:00:00:00:01",
        Some(LATER),
    ),
    state(
        "a macvlan in bridge mode",
        "ip link add mv0 link r0 address 02:00:00:00:00:77 type macvlan mode bridge && ip link set mv0 up && \
         ip addr add 192.0.2.200/24 dev mv0",
        "ip link del mv0",
        Some(UPPER),
    ),
    state(
        "a macvlan in private mode",
        "ip link add mv0 link r0 address 02:00:00:00:00:77 type macvlan mode private && ip link set mv0 up && \
         ip addr add 192.0.2.200/24 dev mv0",
        "ip link del mv0",
        Some(UPPER),
    ),
    state(
        "a macvlan in passthru mode",
        "ip link add mv0 link r0 type macvlan mode passthru && ip link set mv0 up && ip addr add 192.0.2.200/24 dev mv0",
        "ip link del mv0",
        Some(OTHER),
    ),
    state(
        "a macvlan in source mode",
        "ip link add mv0 link r0 address 02:00:00:00:00:77 type macvlan mode source && \
         ip link set mv0 type macvlan macaddr add 02:00:00:00:00:02 && ip link set mv0 up",
        "ip link del mv0",
        Some(UPPER),
    ),
    state(
        "an ipvlan",
        "ip link add iv0 link r0 type ipvlan mode l2 && ip link set iv0 up && ip addr add 192.0.2.200/24 dev iv0",
        "ip link del iv0",
        Some(OWN),
    ),
    state(
        "a VLAN",
        "ip link add r0.10 link r0 type vlan id 10 && ip link set r0.10 up && ip addr add 192.0.3.1/24 dev r0.10",
        "ip link del r0.10",
        Some(OWN),
    ),
    state(
        "frames to any MAC made unicast by tc",
        "tc qdisc add dev r0 clsact && tc filter add dev r0 ingress protocol all matchall action skbedit ptype host",
        "tc qdisc del dev r0 clsact",
        None,
    ),
    state(
        "frames to any MAC made unicast by nftables",
        "nft add table inet pkt && nft add chain inet pkt p '{ type filter hook prerouting priority -300; }' && \
         nft add rule inet pkt p meta pkttype set host",
        "nft delete table inet pkt",
        None,
    ),
    state(
        "promiscuous, without ARP",
        "ip link set r0 arp off promisc on",
        "ip link set r0 arp on promisc off",
        Some(OWN),
    ),
    state(
        "an alternative name",
        "ip link property add dev r0 altname wan0",
        "ip link property del dev r0 altname wan0",
        Some(OWN),
    ),
    state(
        "IPv4 not forwarded",
        "sysctl -qw net.ipv4.conf.r0.forwarding=0",
        "sysctl -qw net.ipv4.conf.r0.forwarding=1",
        None,
    ),
    state(
        "nothing but IPv6 forwarded by force",
        "sysctl -qw net.ipv4.conf.r0.forwarding=0 net.ipv6.conf.r0.forwarding=0 net.ipv6.conf.r0.force_forwarding=1",
        "sysctl -qw net.ipv4.conf.r0.forwarding=1 net.ipv6.conf.r0.forwarding=1 net.ipv6.conf.r0.force_forwarding=0",
        None,
    ),
    state(
        "all packets left to Linux",
        "nft add table inet every && nft add chain inet every c '{ type filter hook forward priority 0; policy drop; }' && \
         nft add rule inet every c accept",
        "nft delete table inet every",
        Some(OWN),
    ),
    state(
        "routing rules",
        "ip rule add pref 9 from 192.0.2.0/24 lookup main && ip -6 rule add pref 9 from 2001:db8:1::/48 lookup main",
        "ip rule del pref 9; ip -6 rule del pref 9",
        Some(OWN),
    ),
    state(
        "in a VRF",
        "ip link add red type vrf table 10 && ip link set red up && ip link set r0 master red && \
         ip route add 10.0.0.0/8 via 198.51.100.2 dev r1 table 10",
        "ip link set r0 nomaster; ip link del red",
        None,
    ),
    state("down and up", "ip link set r0 down && ip link set r0 up", "true", Some(OWN)),
    // Last, since leaving a bridge is the longest way back.
    state(
        "in a bridge",
        "ip link add br0 address 02:00:00:00:00:01 type bridge && ip link set br0 up && \
         ip addr add 192.0.2.201/24 dev br0 && ip link set r0 master br0",
        "ip link set r0 nomaster; ip link del br0",
        None,
    ),
];

fn ports(path: &str, names: &[&str]) -> String {
    names.iter().map(|port| format!("[[port]]\ndevice = '{port}'\npath = '{path}'\n")).collect()
}

/// Runs a test for each way to get packets.
fn on_each(test: &str, names: &[&str], prepare: impl Fn(&Lab), action: impl Fn(&Lab, &mut Router, &str)) {
    for (way, path, more) in WAYS {
        let Some(subject) = Subject::kernel(test) else { return };
        let lab = Lab::new(&format!("{test}-{way}"), Ends::Silent);
        let mut router = subject.start(&lab);
        router.end(&[]);
        prepare(&lab);
        router.restart_choosing(&[], &(more.to_owned() + &ports(path, names) + RULES));
        action(&lab, &mut router, way);
        router.end(&[]);
    }
}

/// A frame of each family from behind a side, to this port and MAC.
fn packets(from: Side, port: u16) -> [Vec<u8>; 2] {
    let data = [0x5a; 20];
    let four = Ip4::udp_ports(&from.v4(2), "10.9.9.9", 4000, port, &data);
    [four.bytes(), Ip6::udp_ports(&from.v6(2), "2001:db8:a000::9", 4000, port, &data).bytes()]
}

/// Frames of both families to a MAC, untagged and with VLAN 0 and 10.
fn frames_to(from: Side, mac: Mac, port: u16) -> Vec<Vec<u8>> {
    let plain = packets(from, port).map(|packet| ip_frame(mac, from.mac(2), &packet));
    let tagged = |frame: &Vec<u8>| {
        [0u8, 10].map(|id| [&frame[..12], &[0x81, 0, 0, id], &frame[12..]].concat()).into_iter()
    };
    let with_tags: Vec<_> = plain.iter().flat_map(tagged).collect();
    plain.into_iter().chain(with_tags).collect()
}

/// The port to which a frame of UDP goes that came out of the router.
fn port_of(frame: &[u8]) -> Option<u16> {
    let ports = match (frame.get(12..14)?, frame.get(14)?) {
        ([8, 0], 0x45) if frame.get(23) == Some(&17) => 34,
        ([0x86, 0xdd], _) if frame.get(20) == Some(&17) => 54,
        _ => return None,
    };
    Some(u16::from_be_bytes(*frame.get(ports + 2..)?.first_chunk()?))
}

/// The ports of all frames that have come out.
fn came_out(lab: &Lab) -> Vec<u16> {
    let sockets = [lab.socket(Side::Snk), lab.socket(Side::Low)];
    let mut found = Vec::new();
    for socket in sockets {
        while let Ok(Some(captured)) = socket.receive() {
            found.extend(port_of(&captured.frame));
        }
    }
    found
}

/// Sends forbidden frames to all MACs until stopped.
fn stream(socket: &PacketSocket, from: Side, stop: &AtomicBool) {
    let macs = [from.mac(1), UPPER, LATER, OTHER, Mac([0xff; 6]), Mac([0x33, 0x33, 0, 0, 0, 1])];
    let frames: Vec<_> = macs.into_iter().flat_map(|mac| frames_to(from, mac, FORBIDDEN)).collect();
    while !stop.load(Ordering::Relaxed) {
        for frame in &frames {
            // Sending fails while the other end is down.
            let _down = socket.send(frame);
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Runs an action in a stream of forbidden frames, of which none may come out.
fn in_stream(lab: &Lab, from: Side, what: &str, action: impl FnOnce()) {
    let socket = lab.host(from).packet_socket(from.host());
    let stop = AtomicBool::new(false);
    lab.drain();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| stream(&socket, from, &stop));
        action();
        stop.store(true, Ordering::Relaxed);
        sending.join().expect("the sender does not panic");
    });
    let leaked = came_out(lab).into_iter().filter(|port| *port == FORBIDDEN).count();
    assert_eq!(leaked, 0, "{what}: forbidden packets came out\n{}", lab.rtr.run("nft list ruleset"));
}

/// Whether allowed frames to a MAC come out.
fn passes(lab: &Lab, from: Side, mac: Mac) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(10) {
        for frame in frames_to(from, mac, ALLOWED) {
            lab.send(from, &frame);
        }
        let _ready = wait_readable(&[lab.socket(Side::Snk)], Duration::from_millis(100));
        if came_out(lab).contains(&ALLOWED) {
            return true;
        }
    }
    false
}

#[test]
fn no_forbidden_packet_passes_in_any_state_of_a_port() {
    if !command::has("nft") {
        return report::skip("port_states", "it needs nft");
    }
    on_each(
        "states",
        &["r0", "r1", "r2"],
        |_| {},
        |lab, router, way| {
            let mut tried = 0;
            for state in STATES {
                let what = format!("{way}: {}", state.name);
                let mut refused = None;
                in_stream(lab, Side::Src, &what, || {
                    refused = lab.rtr.feed(state.set, "").err();
                    std::thread::sleep(STAYS);
                });
                match (refused, state.forwards) {
                    (Some(why), _) => report::skip("port_states", &format!("{what}: {}", why.trim())),
                    (None, Some(mac)) => {
                        tried += 1;
                        assert!(
                            passes(lab, Side::Src, mac),
                            "{what}: Linux forwards nothing\n{}",
                            router.status_text()
                        );
                    }
                    (None, None) => tried += 1,
                }
                in_stream(lab, Side::Src, &format!("{what}, and back"), || {
                    let _partly = lab.rtr.feed(state.undo, "");
                    std::thread::sleep(STAYS);
                });
            }
            report::say(&format!("port_states: {way}: {tried} states, no forbidden packet passed"));
        },
    );
}

#[test]
fn ports_whose_numbers_collide_are_filtered() {
    let collide = |lab: &Lab| {
        let far = lab.snk.name();
        let other = lab.rtr.within(|| interface_index("r0").expect("a port")) + 4096;
        lab.delete(Side::Low);
        lab.rtr.ip(&format!(
            "link add r2 index {other} address {} type veth peer name k1 address {} netns {far}",
            Side::Low.mac(1),
            Side::Low.mac(2)
        ));
        lab.host(Side::Low).ip("link set k1 arp off\nlink set k1 up");
        lab.bring_up(Side::Low);
    };
    on_each("collide", &["r0", "r1", "r2"], collide, |lab, router, way| {
        let covered = way == "user";
        let filters = || router.json(&["status"])["nftables_ports"] == u64::from(!covered);
        eventually("nftables filters", filters);
        let said = router.status_text().contains("the kernel path has no room for it");
        assert_eq!(said, !covered, "{way}: {}", router.status_text());
        in_stream(lab, Side::Low, way, || std::thread::sleep(STAYS));
        in_stream(lab, Side::Src, way, || std::thread::sleep(STAYS));
        let socket = lab.host(Side::Low).packet_socket(Side::Low.host());
        eventually("Linux forwards the rest", || {
            frames_to(Side::Low, Side::Low.mac(1), ALLOWED).iter().for_each(|frame| drop(socket.send(frame)));
            came_out(lab).contains(&ALLOWED)
        });
    });
}

#[test]
fn a_port_by_an_alternative_name_is_refused_and_filtered() {
    let name = |lab: &Lab| drop(lab.rtr.ip("link property add dev r0 altname wan0"));
    on_each("altname", &["wan0", "r1", "r2"], name, |lab, router, way| {
        let filters = || router.json(&["status"])["nftables_ports"] == 1;
        eventually("nftables filters", filters);
        let text = router.status_text();
        assert!(text.contains("wan0 is an alternative name of r0"), "{way}: {text}");
        in_stream(lab, Side::Src, way, || std::thread::sleep(STAYS));
        assert!(passes(lab, Side::Src, OWN), "{way}: {text}");
    });
}
