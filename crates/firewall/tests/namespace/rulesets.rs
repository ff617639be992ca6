//! Compares random rulesets with Linux itself: every packet that Linux does not forward unchanged must be in the list.
//!
//! Linux alone forwards from `a` to `b`. Packets are sent at the other end of `a` and received at the other end of `b`,
//! so only the kernel decides about them. `BM_SEED` sets the seed, `BM_RULESETS` the number of rulesets.

use super::netns::Namespace;
use bm_firewall::{Addresses, LinuxOnly, LinuxOnlyOptions, LinuxOnlyWatch, Match, Traffic};
use bm_tests::lab::Side;
use bm_tests::rulesets::{self, Net, Probe, Random, Shape};
use bm_tests::sys::{PacketSocket, interface_index, wait_readable};
use std::collections::HashMap;
use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Default number of rulesets in a run.
const RULESETS: usize = 24;
/// Number of packets for each ruleset.
const PACKETS: usize = 120;
const NET: Net = Net {
    input: "a",
    outputs: &["b"],
    sources4: &["10.0.0.1", "10.0.1.7", "10.128.0.1", "192.0.2.77"],
    targets4: &["203.0.113.5", "203.0.113.200", "203.0.114.1", "198.18.0.1"],
    sources6: &["2001:db8:1::1", "2001:db8:1:2::7", "2001:db8:a::77"],
    targets6: &["2001:db8:f::5", "2001:db8:f:1::9", "2001:db8:e::1"],
};

fn is_of(probe: &Probe, ipv4: bool, ipv6: bool) -> bool {
    if probe.source.is_ipv4() { ipv4 } else { ipv6 }
}

fn matches(probe: &Probe, matching: &Match, input: u32) -> bool {
    let addresses = match (&matching.addresses, probe.source, probe.destination) {
        (Addresses::Any, ..) => true,
        (Addresses::Ipv4(from, to), IpAddr::V4(source), IpAddr::V4(destination)) => {
            from.is_none_or(|prefix| prefix.contains(source.into()))
                && to.is_none_or(|prefix| prefix.contains(destination.into()))
        }
        (Addresses::Ipv6(from, to), IpAddr::V6(source), IpAddr::V6(destination)) => {
            from.is_none_or(|prefix| prefix.contains(source.into()))
                && to.is_none_or(|prefix| prefix.contains(destination.into()))
        }
        _ => false,
    };
    // As in the router: what cannot be read from a packet counts as a match.
    let hides_protocol = probe.shape != Shape::Plain && probe.source.is_ipv6();
    let hides_ports = probe.shape == Shape::Fragment || hides_protocol;
    let port = |wanted: &Option<std::ops::RangeInclusive<u16>>, port| {
        let plain = |wanted: &std::ops::RangeInclusive<u16>| probe.protocol != 47 && wanted.contains(&port);
        wanted.as_ref().is_none_or(|wanted| hides_ports || plain(wanted))
    };
    let protocol = |wanted| wanted == probe.protocol || hides_protocol;
    addresses
        && matching.input.is_none_or(|wanted| wanted == input)
        && matching.protocol.is_none_or(protocol)
        && port(&matching.source_ports, probe.ports.0)
        && port(&matching.destination_ports, probe.ports.1)
}

fn is_covered(probe: &Probe, list: &[LinuxOnly], (input, output): (u32, u32)) -> bool {
    list.iter().any(|entry| match &entry.traffic {
        Traffic::All { ipv4, ipv6 } => is_of(probe, *ipv4, *ipv6),
        Traffic::Fragments { ipv4, ipv6 } => probe.shape == Shape::Fragment && is_of(probe, *ipv4, *ipv6),
        // No packet that the tests send is one.
        Traffic::Errors { .. } => false,
        Traffic::In(ifindex) => *ifindex == input,
        Traffic::Out(ifindex) => *ifindex == output,
        Traffic::Matching(matching) => matches(probe, matching, input),
    })
}

/// The next packet at an end, without its Ethernet header; `None` if none arrives in time.
fn receive(socket: &PacketSocket, wait: Duration) -> Option<Vec<u8>> {
    wait_readable(&[socket], wait).unwrap();
    socket.receive().unwrap().map(|mut captured| captured.frame.split_off(14))
}

/// A namespace that forwards from `a` to `b`, with sockets at both far ends.
struct Bed {
    namespace: Namespace,
    watch: LinuxOnlyWatch,
    sender: PacketSocket,
    receiver: PacketSocket,
    ports: (u32, u32),
}

impl Bed {
    fn new(tag: &str) -> Option<Self> {
        let namespace = Namespace::new(tag)?.with_links();
        for line in [
            "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0",
            "sysctl -qw net.ipv4.conf.a.rp_filter=0 net.ipv4.icmp_ratelimit=0",
            "ip link set dev a address 02:00:00:00:00:01",
            "ip neigh replace 198.51.100.2 dev b lladdr 02:00:00:00:00:99 nud permanent",
            "ip neigh replace 2001:db8:b::2 dev b lladdr 02:00:00:00:00:99 nud permanent",
            "ip route add default via 198.51.100.2 && ip -6 route add default via 2001:db8:b::2",
        ] {
            assert!(namespace.shell(line), "{line}");
        }
        namespace.enter();
        let index = |name| interface_index(name).unwrap();
        let [sender, receiver] = ["a2", "b2"].map(|name| PacketSocket::open(index(name)).unwrap());
        let watch = LinuxOnlyWatch::open(LinuxOnlyOptions::default()).unwrap();
        Some(Self { namespace, watch, sender, receiver, ports: (index("a"), index("b")) })
    }

    /// Runs a command with this input; returns whether it succeeded.
    fn feed(&self, command: &str, text: &str) -> bool {
        let mut run = Command::new("ip");
        run.args(["netns", "exec", &self.namespace.name, "sh", "-c", command]);
        let mut run = run.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        run.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = run.wait_with_output().unwrap();
        if !output.status.success() {
            eprintln!("{}\n{text}", String::from_utf8_lossy(&output.stderr));
        }
        output.status.success()
    }

    /// Processes events for this time, in which changes without events are noticed, too.
    fn follow(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.watch.process(Instant::now());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends packets; returns those that Linux forwarded, as they came out.
    fn forwarded(&self, probes: &[Probe]) -> HashMap<u32, Vec<u8>> {
        while receive(&self.receiver, Duration::ZERO).is_some() {}
        for probe in probes {
            self.sender.send(&Side::Src.to_router(&probe.bytes(64))).unwrap();
        }
        let mut found = HashMap::new();
        // ICMP errors of the kernel leave by `a`.
        while let Some(packet) = receive(&self.receiver, Duration::from_millis(60)) {
            found.extend(Probe::id_of(&packet).map(|id| (id, packet)));
        }
        found
    }

    /// Compares the list with what Linux does with random packets. Returns how many packets it did not forward
    /// unchanged, and how many are not in the list.
    fn check(&self, random: &mut Random, ruleset: &str) -> (usize, usize) {
        let ids = (0..PACKETS as u32).map(|id| 0xb000_0000 + id);
        let packets: Vec<_> = ids.map(|id| Probe::random(&NET, random, id)).collect();
        let found = self.forwarded(&packets);
        let (mut judged, mut left) = (0, 0);
        for packet in &packets {
            let unchanged = found.get(&packet.id).is_some_and(|bytes| *bytes == packet.bytes(63));
            let covered = is_covered(packet, self.watch.list(), self.ports);
            judged += usize::from(!unchanged);
            left += usize::from(!covered);
            assert!(
                unchanged || covered,
                "Linux does not forward {packet:?} unchanged, and the list has no such packet: {:#?}\n{ruleset}",
                self.watch.list()
            );
        }
        (judged, left)
    }
}

/// Loads random rulesets with `command` and checks each.
fn run(tag: &str, command: &str, settle: Duration, ruleset: fn(&Net, &mut Random) -> String) {
    let Some(mut bed) = Bed::new(tag) else { return };
    let mut random = Random::of_this_run();
    let rulesets = rulesets::count(RULESETS);
    let all = bed.check(&mut random, "nothing");
    assert_eq!(all, (0, PACKETS), "without a ruleset Linux must forward everything");
    let (mut judged, mut left, mut refused) = (0, 0, 0);
    for _ in 0..rulesets {
        let text = ruleset(&NET, &mut random);
        if !bed.feed(command, &text) {
            refused += 1;
            continue;
        }
        bed.follow(settle);
        let (more, others) = bed.check(&mut random, &text);
        (judged, left) = (judged + more, left + others);
    }
    let sent = (rulesets - refused) * PACKETS;
    println!(
        "{sent} packets: Linux dropped or changed {judged}, {left} are left to the fast path; {refused} rulesets refused"
    );
    assert!(refused * 4 < rulesets, "too many rulesets were refused");
    assert!(judged > 0 && left > 0, "the rulesets must affect some packets, but not all");
}

#[test]
fn random_nftables_rulesets() {
    run("nftrandom", "nft -f -", Duration::from_millis(20), rulesets::nftables);
}

#[test]
fn random_rulesets_with_connection_tracking() {
    run("ctrandom", "nft -f -", Duration::from_millis(20), rulesets::tracking);
}

#[test]
fn random_iptables_rulesets() {
    let command = "nft flush ruleset && iptables-restore";
    run("iptrandom", command, Duration::from_millis(20), rulesets::iptables);
}

#[test]
fn random_legacy_iptables_rulesets() {
    if Namespace::new("legacyprobe").is_none_or(|namespace| !namespace.shell("iptables-legacy -L FORWARD")) {
        eprintln!("skipped: legacy iptables, which this machine has not");
        return;
    }
    let command = format!("{} && iptables-legacy-restore", rulesets::LEGACY_FLUSH);
    run("legrandom", &command, Duration::from_millis(130), rulesets::iptables);
}

#[test]
fn random_ipsec_policies() {
    let command = "ip xfrm policy flush && ip -batch -";
    run("xfrmrandom", command, Duration::from_millis(20), rulesets::xfrm);
}

#[test]
fn random_qdiscs_and_filters() {
    let command = "for i in a b; do tc qdisc del dev $i clsact; tc qdisc del dev $i root; done 2>/dev/null; tc -batch -";
    run("tcrandom", command, Duration::from_millis(20), rulesets::tc);
}
