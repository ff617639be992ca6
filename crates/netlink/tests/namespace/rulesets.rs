//! Random rulesets against Linux itself: every packet that Linux does not forward unchanged is in the list.
//!
//! Linux forwards alone from `a` to `b`. Packets are sent by the other end of `a` and taken from the other end of `b`, so
//! what becomes of them is the kernel's judgement. `BM_SEED` repeats a run, `BM_RULESETS` makes it longer.

use super::support::Namespace;
use bm_netlink::{Addresses, LinuxOnly, LinuxOnlyOptions, LinuxOnlyWatch, Match, Traffic};
use std::collections::HashMap;
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// Rulesets of a run, unless told otherwise.
const RULESETS: usize = 24;
/// Packets for each.
const PACKETS: usize = 120;
const SOURCES4: [&str; 4] = ["10.0.0.1", "10.0.1.7", "10.128.0.1", "192.0.2.77"];
const TARGETS4: [&str; 4] = ["203.0.113.5", "203.0.113.200", "203.0.114.1", "198.18.0.1"];
const SOURCES6: [&str; 3] = ["2001:db8:1::1", "2001:db8:1:2::7", "2001:db8:a::77"];
const TARGETS6: [&str; 3] = ["2001:db8:f::5", "2001:db8:f:1::9", "2001:db8:e::1"];
const PORTS: [u16; 5] = [22, 53, 80, 1024, 40000];
const PROTOCOLS: [u8; 3] = [6, 17, 47];

/// xorshift: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

#[derive(Clone, Debug)]
struct Packet {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    ports: (u16, u16),
    id: u32,
}

impl Packet {
    fn random(random: &mut Random, id: u32) -> Self {
        let four = !random.one_in(3);
        let (sources, targets) =
            if four { (&SOURCES4[..], &TARGETS4[..]) } else { (&SOURCES6[..], &TARGETS6[..]) };
        let mut address = |list: &[&str]| random.of(list).parse().unwrap();
        let (source, destination) = (address(sources), address(targets));
        let ports = (random.of(&PORTS), random.of(&PORTS));
        Self { source, destination, protocol: random.of(&PROTOCOLS), ports, id }
    }

    /// From the IP header on, as it is with this TTL.
    fn bytes(&self, ttl: u8) -> Vec<u8> {
        let mut body = Vec::new();
        if self.protocol == 47 {
            body.extend_from_slice(&[0, 0, 0x65, 0x58]);
        } else {
            body.extend_from_slice(&self.ports.0.to_be_bytes());
            body.extend_from_slice(&self.ports.1.to_be_bytes());
        }
        match self.protocol {
            6 => body.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]),
            17 => body.extend_from_slice(&[0, 16, 0, 0]),
            _ => {}
        }
        body.extend_from_slice(&self.id.to_be_bytes());
        body.extend_from_slice(&[0; 4]);
        let mut packet = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut header =
                    vec![0x45, 0, 0, 20 + body.len() as u8, 0, 1, 0x40, 0, ttl, self.protocol, 0, 0];
                header.extend_from_slice(&source.octets());
                header.extend_from_slice(&destination.octets());
                let words = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
                let sum: u32 = words.sum();
                let sum = (sum & 0xffff) + (sum >> 16);
                let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                header
            }
            (source, destination) => {
                let mut header = vec![0x60, 0, 0, 0, 0, body.len() as u8, self.protocol, ttl];
                for address in [source, destination] {
                    let IpAddr::V6(address) = address else { panic!("one family") };
                    header.extend_from_slice(&address.octets());
                }
                header
            }
        };
        packet.append(&mut body);
        packet
    }

    fn is_of(&self, ipv4: bool, ipv6: bool) -> bool {
        if self.source.is_ipv4() { ipv4 } else { ipv6 }
    }

    fn matches(&self, matching: &Match, input: u32) -> bool {
        let addresses = match (&matching.addresses, self.source, self.destination) {
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
        let port = |wanted: &Option<std::ops::RangeInclusive<u16>>, port| {
            wanted.as_ref().is_none_or(|wanted| self.protocol != 47 && wanted.contains(&port))
        };
        addresses
            && matching.input.is_none_or(|wanted| wanted == input)
            && matching.protocol.is_none_or(|wanted| wanted == self.protocol)
            && port(&matching.source_ports, self.ports.0)
            && port(&matching.destination_ports, self.ports.1)
    }

    fn is_covered(&self, list: &[LinuxOnly], (input, output): (u32, u32)) -> bool {
        list.iter().any(|entry| match &entry.traffic {
            Traffic::All { ipv4, ipv6 } => self.is_of(*ipv4, *ipv6),
            Traffic::In(ifindex) => *ifindex == input,
            Traffic::Out(ifindex) => *ifindex == output,
            Traffic::Matching(matching) => self.matches(matching, input),
        })
    }
}

/// A packet socket on one end.
struct Tap(OwnedFd);

impl Tap {
    fn open(ifindex: u32) -> Self {
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: a socket is asked for by three numbers; the descriptor is new and nobody else has it.
        let fd =
            unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_PACKET, libc::SOCK_RAW, i32::from(all))) };
        // SAFETY: a plain C structure for which all zeroes is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = ifindex as i32;
        let length = size_of_val(&address) as u32;
        // SAFETY: the address is as long as said and lives for the call.
        let rc = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
        Self(fd)
    }

    fn send(&self, packet: &[u8]) {
        let ethertype = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
        let frame = [&[2, 0, 0, 0, 0, 0x0a, 2, 0, 0, 0, 0, 0x0b][..], &ethertype[..], packet].concat();
        // SAFETY: the frame is as long as said and lives for the call.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }

    /// The next packet, without its Ethernet header; none if none comes soon.
    fn receive(&self, wait: Duration) -> Option<Vec<u8>> {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, as said, that lives for the call.
        if unsafe { libc::poll(&raw mut poll, 1, wait.as_millis() as i32) } < 1 {
            return None;
        }
        let mut frame = vec![0; 2048];
        // SAFETY: the buffer is as long as said and lives for the call.
        let length = unsafe { libc::recv(self.0.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
        frame.truncate(usize::try_from(length).unwrap());
        Some(frame.split_off(14))
    }
}

/// A namespace that forwards from `a` to `b`, and both other ends.
struct Bed {
    namespace: Namespace,
    watch: LinuxOnlyWatch,
    sender: Tap,
    receiver: Tap,
    ports: (u32, u32),
}

impl Bed {
    fn new(tag: &str) -> Option<Self> {
        let namespace = Namespace::new(tag)?.with_links();
        for line in [
            "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0",
            "sysctl -qw net.ipv4.conf.a.rp_filter=0 net.ipv4.icmp_ratelimit=0",
            "ip link set dev a address 02:00:00:00:00:0a",
            "ip neigh replace 198.51.100.2 dev b lladdr 02:00:00:00:00:99 nud permanent",
            "ip neigh replace 2001:db8:b::2 dev b lladdr 02:00:00:00:00:99 nud permanent",
            "ip route add default via 198.51.100.2 && ip -6 route add default via 2001:db8:b::2",
        ] {
            assert!(namespace.shell(line), "{line}");
        }
        namespace.enter();
        let index = |name: &str| {
            let name = std::ffi::CString::new(name).unwrap();
            // SAFETY: the name ends with a zero and lives for the call.
            unsafe { libc::if_nametoindex(name.as_ptr()) }
        };
        let (sender, receiver) = (Tap::open(index("a2")), Tap::open(index("b2")));
        let watch = LinuxOnlyWatch::open(LinuxOnlyOptions::default()).unwrap();
        Some(Self { namespace, watch, sender, receiver, ports: (index("a"), index("b")) })
    }

    /// Runs a command with something to read; whether it succeeded.
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

    /// Follows for as long as what has no events may take.
    fn follow(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.watch.process(Instant::now());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends packets and says which of them Linux forwarded, each as it came out.
    fn forwarded(&self, packets: &[Packet]) -> HashMap<u32, Vec<u8>> {
        while self.receiver.receive(Duration::ZERO).is_some() {}
        for packet in packets {
            self.sender.send(&packet.bytes(64));
        }
        let mut found = HashMap::new();
        while let Some(packet) = self.receiver.receive(Duration::from_millis(60)) {
            let mut end = packet.len();
            // Errors that the kernel sends back leave by `a`; what is left is too short for an id.
            end = end.saturating_sub(8);
            if let Some(id) = packet.get(end..end + 4) {
                found.insert(u32::from_be_bytes(id.try_into().unwrap()), packet);
            }
        }
        found
    }

    /// Holds Linux's judgement of random packets against the list. Returns how many it did not forward unchanged, and how
    /// many are not in the list.
    fn check(&self, random: &mut Random, ruleset: &str) -> (usize, usize) {
        let packets: Vec<_> =
            (0..PACKETS as u32).map(|id| Packet::random(random, 0xb000_0000 + id)).collect();
        let found = self.forwarded(&packets);
        let (mut judged, mut left) = (0, 0);
        for packet in &packets {
            let unchanged = found.get(&packet.id).is_some_and(|bytes| *bytes == packet.bytes(63));
            let covered = packet.is_covered(self.watch.list(), self.ports);
            judged += usize::from(!unchanged);
            left += usize::from(!covered);
            assert!(
                unchanged || covered,
                "Linux has a say in {packet:?} and the list has not: {:#?}\n{ruleset}",
                self.watch.list()
            );
        }
        (judged, left)
    }
}

/// Matches of a rule, in nft's words.
fn nft_matches(random: &mut Random, family: &str) -> String {
    let four = family != "ip6" && (family == "ip" || random.one_in(2));
    let (mut text, mut transport) = (String::new(), false);
    for _ in 0..random.below(4) {
        let address = |random: &mut Random, side: &str| {
            let not = if random.one_in(5) { "!= " } else { "" };
            let (word, list) = match (four, side) {
                (true, "saddr") => ("ip", &SOURCES4[..]),
                (true, _) => ("ip", &TARGETS4[..]),
                (false, "saddr") => ("ip6", &SOURCES6[..]),
                (false, _) => ("ip6", &TARGETS6[..]),
            };
            let length = if four {
                random.of(&[8u32, 9, 15, 16, 24, 25, 32])
            } else {
                random.of(&[32, 47, 48, 61, 128])
            };
            let address = masked(random.of(list).parse().unwrap(), length);
            format!("{word} {side} {not}{address}/{length} ")
        };
        // Two words about one header would contradict each other, which nft refuses.
        let what = random.below(if transport { 6 } else { 10 });
        transport |= what >= 6;
        text += &match what {
            0 => format!("iifname {} ", random.of(&["a", "b", "\"a*\"", "gone"])),
            1 => format!("oifname {} ", random.of(&["a", "b", "\"b*\"", "gone"])),
            2 | 3 => address(random, "saddr"),
            4 | 5 => address(random, "daddr"),
            6 => format!("meta l4proto {} ", random.of(&["tcp", "udp", "47", "{ 6, 17 }"])),
            7 => {
                let ports = random.of(&["22", "53-100", "{ 22, 53 }", "!= 80", "> 1000"]);
                format!("{} dport {ports} ", random.of(&["tcp", "udp"]))
            }
            8 => {
                let protocol = random.of(&["tcp", "udp"]);
                format!("{protocol} sport {} {protocol} dport {} ", random.of(&PORTS), random.of(&PORTS))
            }
            _ => random
                .of(&["th dport 53 ", "meta pkttype host ", "meta length > 20 ", "meta mark 0 "])
                .to_owned(),
        };
    }
    text
}

/// An address without the bits behind a prefix.
fn masked(address: IpAddr, length: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(address) & mask))
        }
    }
}

fn nft_rule(random: &mut Random, family: &str, chains: usize) -> String {
    let matches = nft_matches(random, family);
    let mut statements =
        vec!["drop", "drop", "drop", "counter", "accept", "accept", "return", "reject", "meta mark set 7"];
    statements.extend([
        "counter drop",
        "limit rate 1/hour drop",
        "log",
        "ct state new drop",
        "ct state established accept",
    ]);
    if family == "ip" {
        statements.extend(["ip ttl set 9", "ip dscp set cs1", "ip daddr set 203.0.113.5"]);
    }
    if chains > 0 && random.one_in(3) {
        return format!("{matches}{} c{}", random.of(&["jump", "goto"]), random.below(chains));
    }
    // Rules about connections hide all others, so they are rare.
    let mut statement = random.of(&statements);
    if statement.starts_with("ct") && !random.one_in(4) {
        statement = "drop";
    }
    format!("{matches}{statement}")
}

/// A table with a base chain and some others, of which each leads only to those before it.
fn nft_ruleset(random: &mut Random) -> String {
    let family = random.of(&["inet", "ip", "ip6"]);
    let hook = random.of(&["prerouting", "forward", "postrouting"]);
    let mut text = format!("flush ruleset\ntable {family} t {{\n");
    let chains = random.below(3);
    for chain in 0..chains {
        text += &format!(" chain c{chain} {{\n");
        for _ in 0..random.below(3) {
            text += &format!("  {}\n", nft_rule(random, family, chain));
        }
        text += " }\n";
    }
    let policy = if random.one_in(8) { "drop" } else { "accept" };
    text += &format!(" chain base {{\n  type filter hook {hook} priority 0; policy {policy};\n");
    for _ in 0..random.below(4) {
        let rule = nft_rule(random, family, chains);
        // The kernel rejects packets at some hooks only.
        text += &format!("  {}\n", if hook == "forward" { rule } else { rule.replace("reject", "drop") });
    }
    text.replace("reject", if hook == "forward" { "reject" } else { "drop" }) + " }\n}\n"
}

/// Rules for `iptables-restore`.
fn iptables_ruleset(random: &mut Random) -> String {
    let (table, chain) = random.of(&[
        ("filter", "FORWARD"),
        ("mangle", "FORWARD"),
        ("mangle", "PREROUTING"),
        ("mangle", "POSTROUTING"),
        ("raw", "PREROUTING"),
    ]);
    let policy = if random.one_in(8) { "DROP" } else { "ACCEPT" };
    let mut text = format!("*{table}\n:{chain} {policy} [0:0]\n:own - [0:0]\n");
    for _ in 0..random.below(5) {
        let mut rule = format!("-A {} ", if random.one_in(4) { "own" } else { chain });
        if random.one_in(3) && chain != "POSTROUTING" && !rule.contains("own") {
            rule += random.of(&["-i a ", "-i b ", "! -i a ", "-i a+ ", "-i gone "]);
        }
        for (flag, list) in [("-s", &SOURCES4[..]), ("-d", &TARGETS4[..])] {
            if random.one_in(2) {
                let length = random.of(&[8u32, 9, 16, 24, 25, 32]);
                let not = if random.one_in(5) { "! " } else { "" };
                let address = masked(random.of(list).parse().unwrap(), length);
                rule += &format!("{not}{flag} {address}/{length} ");
            }
        }
        rule += random.of(&[
            "",
            "",
            "-p tcp ",
            "! -p tcp ",
            "-p udp --dport 53 ",
            "-p tcp --sport 22:100 ",
            "-p tcp ! --dport 80 ",
        ]);
        let own = !rule.contains("-A own") && random.one_in(4);
        rule += if own { "-j own" } else { random.of(&["-j DROP", "-j DROP", "-j ACCEPT", "-j RETURN", ""]) };
        text += &(rule + "\n");
    }
    text + "COMMIT\n"
}

fn seed() -> u64 {
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var("BM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(now);
    println!("BM_SEED={seed}");
    seed | 1
}

fn rulesets() -> usize {
    std::env::var("BM_RULESETS").ok().and_then(|count| count.parse().ok()).unwrap_or(RULESETS)
}

/// Loads random rulesets with `command` and checks each.
fn run(tag: &str, command: &str, settle: Duration, mut ruleset: impl FnMut(&mut Random) -> String) {
    let Some(mut bed) = Bed::new(tag) else { return };
    let mut random = Random(seed());
    let all = bed.check(&mut random, "nothing");
    assert_eq!(all, (0, PACKETS), "without a ruleset Linux forwards everything");
    let (mut judged, mut left, mut refused) = (0, 0, 0);
    for _ in 0..rulesets() {
        let text = ruleset(&mut random);
        if !bed.feed(command, &text) {
            refused += 1;
            continue;
        }
        bed.follow(settle);
        let (more, others) = bed.check(&mut random, &text);
        (judged, left) = (judged + more, left + others);
    }
    let sent = (rulesets() - refused) * PACKETS;
    println!(
        "{sent} packets: Linux dropped or changed {judged}, {left} are left to the fast path; {refused} rulesets refused"
    );
    assert!(refused * 4 < rulesets(), "too many rulesets were refused");
    assert!(judged > 0 && left > 0, "the rulesets have tried nothing");
}

#[test]
fn random_nftables_rulesets() {
    run("nftrandom", "nft -f -", Duration::from_millis(20), nft_ruleset);
}

#[test]
fn random_iptables_rulesets() {
    run("iptrandom", "nft flush ruleset && iptables-restore", Duration::from_millis(20), iptables_ruleset);
}

#[test]
fn random_legacy_iptables_rulesets() {
    // A table that is not in the text keeps its rules, so all of them are emptied first.
    let empty = ["filter", "mangle", "raw"].map(|table| {
        format!("iptables-legacy -t {table} -F && iptables-legacy -t {table} -X && iptables-legacy -t {table} -P PREROUTING ACCEPT 2>/dev/null; for c in FORWARD PREROUTING POSTROUTING; do iptables-legacy -t {table} -P $c ACCEPT 2>/dev/null; done; ")
    });
    if Namespace::new("legacyprobe").is_none_or(|namespace| !namespace.shell("iptables-legacy -L FORWARD")) {
        eprintln!("skipped: legacy iptables, which this machine has not");
        return;
    }
    run(
        "legrandom",
        &(empty.concat() + "iptables-legacy-restore"),
        Duration::from_millis(130),
        iptables_ruleset,
    );
}
