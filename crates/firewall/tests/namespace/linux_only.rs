//! Traffic that only Linux may handle: each kind of setting is added and removed while it is watched.

use super::netns::Namespace;
use bm_firewall::{Addresses, LinuxOnly, LinuxOnlyOptions, LinuxOnlyWatch, Match, Traffic};
use std::time::{Duration, Instant};

/// How long it may take to notice a change; on an idle machine it takes a few milliseconds.
const SEEN_WITHIN: Duration = Duration::from_secs(2);
const ALL: Traffic = Traffic::All { ipv4: true, ipv6: true };
const IPV4: Traffic = Traffic::All { ipv4: true, ipv6: false };
const IPV6: Traffic = Traffic::All { ipv4: false, ipv6: true };

/// A namespace with links, and a watch in it with an empty list.
struct Watched {
    namespace: Namespace,
    watch: LinuxOnlyWatch,
    slowest: Duration,
}

impl Watched {
    fn new(tag: &str) -> Option<Self> {
        Self::with(tag, LinuxOnlyOptions::default())
    }

    fn with(tag: &str, options: LinuxOnlyOptions) -> Option<Self> {
        let namespace = Namespace::new(tag)?.with_links();
        namespace.enter();
        let watch = LinuxOnlyWatch::open(options).unwrap();
        assert_eq!(watch.list(), [], "nothing was set yet");
        Some(Self { namespace, watch, slowest: Duration::ZERO })
    }

    /// Runs a command, which must succeed, and waits for the list to be as wanted.
    fn after(&mut self, command: &str, wanted: impl Fn(&[LinuxOnly]) -> bool) {
        assert!(self.namespace.shell(command), "{command} failed");
        let start = Instant::now();
        while !wanted(self.watch.list()) {
            assert!(start.elapsed() < SEEN_WITHIN, "after {command}: {:#?}", self.watch.list());
            self.process();
        }
        self.slowest = self.slowest.max(start.elapsed());
    }

    fn process(&mut self) {
        let timeout = self.watch.timeout(Instant::now()).unwrap_or(Duration::from_millis(5));
        std::thread::sleep(timeout.min(Duration::from_millis(1)));
        self.watch.process(Instant::now());
    }

    /// Like [`Self::after`], for a list of one entry with this traffic and this text in its reason.
    fn one(&mut self, command: &str, traffic: &Traffic, why: &str) {
        self.after(
            command,
            |list| matches!(list, [only] if only.traffic == *traffic && only.why.contains(why)),
        );
    }

    fn none(&mut self, command: &str) {
        self.after(command, <[LinuxOnly]>::is_empty);
    }

    /// Runs a command after which the list must stay empty.
    fn nothing_after(&mut self, command: &str) {
        assert!(self.namespace.shell(command), "{command} failed");
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            self.process();
            assert_eq!(self.watch.list(), [], "after {command}");
        }
    }

    fn index(&self, name: &str) -> u32 {
        let path = format!("cat /sys/class/net/{name}/ifindex");
        let mut command = std::process::Command::new("ip");
        command.args(["netns", "exec", &self.namespace.name, "sh", "-c", &path]);
        String::from_utf8(command.output().unwrap().stdout).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        println!("seen within {:?}; {:?}", self.slowest, self.watch.statistics());
    }
}

fn from_ipv4(prefix: &str) -> Match {
    Match { addresses: Addresses::Ipv4(Some(prefix.parse().unwrap()), None), ..Match::default() }
}

#[test]
fn policies_of_nftables_chains() {
    let Some(mut watched) = Watched::new("policy") else { return };
    watched.nothing_after(
        "nft 'add table inet f; add chain inet f fw { type filter hook forward priority 0; }'",
    );
    watched.one(
        "nft 'add chain inet f fw { policy drop; }'",
        &ALL,
        "chain fw of table inet f has policy drop",
    );
    watched.none("nft 'add table inet f { flags dormant; }'");
    watched.one("nft 'add table inet f'", &ALL, "has policy drop");
    watched.none("nft 'add chain inet f fw { policy accept; }'");
    watched.nothing_after("nft 'add chain inet f in { type filter hook input priority 0; policy drop; }'");
    watched.one("iptables -P FORWARD DROP", &IPV4, "chain FORWARD of table ip filter has policy drop");
    watched.none("iptables -P FORWARD ACCEPT");
    watched.none("nft flush ruleset");
}

#[test]
fn output_chains_concern_icmp_errors_only() {
    let Some(mut watched) = Watched::new("output") else { return };
    let errors = |ipv4, ipv6| Traffic::Errors { ipv4, ipv6 };
    watched.nothing_after(
        "nft 'add table inet f; add chain inet f out { type filter hook output priority 0; }'",
    );
    watched.nothing_after("nft 'add rule inet f out udp dport 53 accept'");
    let why = "rule 2 (handle 3) of chain out of table inet f: drop";
    watched.one("nft 'add rule inet f out ip daddr 192.0.2.1 drop'", &errors(true, true), why);
    watched.none("nft 'flush chain inet f out'");
    let why = "chain out of table inet f has policy drop";
    watched.one("nft 'add chain inet f out { policy drop; }'", &errors(true, true), why);
    watched.none("nft flush ruleset");
    if !watched.namespace.shell("ip6tables-legacy -L OUTPUT") {
        eprintln!("skipped: ip6tables-legacy, which cannot be used here");
        return;
    }
    let rule = "OUTPUT -p udp -j ACCEPT";
    let why = "rule 1 of chain OUTPUT of legacy ip6tables table filter: ACCEPT";
    watched.one(&format!("ip6tables-legacy -A {rule}"), &errors(false, true), why);
    watched.none(&format!("ip6tables-legacy -D {rule}"));
}

#[test]
fn connection_tracking_reassembles_fragments() {
    let Some(mut watched) = Watched::new("tracked") else { return };
    let fragments = |ipv4, ipv6| Traffic::Fragments { ipv4, ipv6 };
    let input = "nft 'add table inet f; add chain inet f in { type filter hook input priority 0; }'";
    watched.nothing_after(input);
    let why = "chain in of table inet f: a match by ct: connection tracking reassembles fragments";
    watched.one("nft 'add rule inet f in ct state established accept'", &fragments(true, true), why);
    watched.none("nft 'flush chain inet f in'");
    // Two transactions: the events of a set's elements are not read.
    watched.nothing_after("nft 'add set inet f s { type inet_service; flags dynamic; }'");
    watched.one(
        "nft 'add set inet f counted { type inet_service; flags dynamic; ct count over 5; }'",
        &fragments(true, true),
        "set counted with ct count of table inet f: connection tracking reassembles fragments",
    );
    watched.none("nft 'delete set inet f counted'");
    watched.one(
        "nft 'add table ip6 t; add ct timeout ip6 t h { protocol tcp; l3proto ip6; policy = { established: 9 }; }'",
        &fragments(false, true),
        "ct timeout h of table ip6 t: connection tracking reassembles fragments",
    );
    watched.none("nft 'delete ct timeout ip6 t h'");
    watched.one(
        "iptables -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT",
        &fragments(true, false),
        "chain INPUT of table ip filter: match conntrack: connection tracking reassembles fragments",
    );
    watched.one("iptables -A FORWARD -m conntrack --ctstate INVALID -j DROP", &IPV4, "chain FORWARD");
    watched.none("nft flush ruleset");
}

#[test]
fn rules_of_nftables_chains() {
    let Some(mut watched) = Watched::new("rules") else { return };
    watched.nothing_after("nft 'add table ip t; add chain ip t fw { type filter hook forward priority 0; }'");
    let one = Traffic::Matching(from_ipv4("192.0.2.0/24"));
    watched.one(
        "nft add rule ip t fw ip saddr 192.0.2.0/24 drop",
        &one,
        "rule 1 (handle 2) of chain fw of table ip t: drop",
    );
    watched.none("nft flush chain ip t fw");
    let input = Traffic::In(watched.index("a"));
    watched.nothing_after("nft add rule ip t fw iifname later drop");
    let ipv4 = |input| Match { input, addresses: Addresses::Ipv4(None, None), ..Match::default() };
    let later = |list: &[LinuxOnly]| list.len() == 1 && list[0].traffic != input;
    watched.after("ip link add later type dummy || ip link add later type veth peer name later2", later);
    assert_eq!(watched.watch.list()[0].traffic, Traffic::Matching(ipv4(Some(watched.index("later")))));
    watched.none("ip link del later");
    watched.one("nft add rule ip t fw ct state established accept", &IPV4, "a match by ct");
    watched.none("nft delete table ip t");
}

/// Connections keep it when its rule goes, as long as there is a chain of type nat.
#[test]
fn chains_of_type_nat_translate_without_a_rule() {
    let Some(mut watched) = Watched::new("nat") else { return };
    let (chain, kept) = ("nat hook postrouting priority srcnat", "chain out of table ip t has type nat");
    watched.one(&format!("nft 'table ip t {{ chain out {{ type {chain}; }}; }}'"), &IPV4, kept);
    watched.one("nft add rule ip t out masquerade", &IPV4, "of chain out of table ip t: masquerade");
    watched.one("nft flush chain ip t out", &IPV4, kept);
    watched.none("nft add table ip t '{ flags dormant; }'");
    watched.none("nft delete table ip t");
    watched.one(
        "nft 'table ip6 t { chain in { type nat hook input priority 0; }; }'",
        &IPV6,
        "chain in of table ip6 t",
    );
    watched.none("nft delete table ip6 t");
}

#[test]
fn ipsec_policies() {
    let Some(mut watched) = Watched::new("xfrm") else { return };
    let policy = |what: &str| format!("ip xfrm policy {what}");
    watched.nothing_after(&policy("add src 10.1.0.0/16 dst 10.2.0.0/16 dir in action block"));
    watched.nothing_after(&policy("add src 10.1.0.0/16 dst 10.2.0.0/16 dir fwd priority 9"));
    let tcp = Match {
        addresses: Addresses::Ipv4(Some("10.0.0.0/8".parse().unwrap()), None),
        protocol: Some(6),
        destination_ports: Some(80..=80),
        ..Match::default()
    };
    let why = "ip xfrm policy dir fwd src 10.0.0.0/8 dst 0.0.0.0/0 action block";
    let selector = "src 10.0.0.0/8 dst 0.0.0.0/0 proto tcp dport 80 dir fwd";
    watched.one(&policy(&format!("add {selector} action block")), &Traffic::Matching(tcp), why);
    watched.none(&policy(&format!("del {selector}")));
    let six = Addresses::Ipv6(None, Some("2001:db8::/32".parse().unwrap()));
    let six = Traffic::Matching(Match { addresses: six, ..Match::default() });
    let selector = "src ::/0 dst 2001:db8::/32 dir out";
    let template = "tmpl src 2001:db8:a::1 dst 2001:db8:a::2 proto esp mode tunnel";
    watched.one(
        &policy(&format!("add {selector} {template}")),
        &six,
        "dir out src ::/0 dst 2001:db8::/32 with a template",
    );
    watched.none(&policy("flush"));
    watched.one(&policy("setdefault fwd block"), &ALL, "ip xfrm policy setdefault fwd block");
    watched.none(&policy("setdefault fwd accept"));
    watched.one(&policy("setdefault out block"), &ALL, "ip xfrm policy setdefault out block");
    watched.none(&policy("setdefault out accept"));
}

#[test]
fn qdiscs_and_tc_filters() {
    let Some(mut watched) = Watched::new("tc") else { return };
    let (input, output) = (Traffic::In(watched.index("a")), Traffic::Out(watched.index("a")));
    watched.one(
        "tc qdisc add dev a root tbf rate 1mbit burst 10k latency 50ms",
        &output,
        "tc qdisc tbf on a",
    );
    watched.none("tc qdisc del dev a root");
    watched.nothing_after("tc qdisc add dev a clsact");
    let drop = "u32 match u32 0 0 flowid 1:1";
    watched.one(&format!("tc filter add dev a ingress {drop}"), &input, "tc filter u32 at ingress on a");
    watched.none("tc filter del dev a ingress");
    watched.one(&format!("tc filter add dev a egress {drop}"), &output, "tc filter u32 at egress on a");
    watched.none("tc filter del dev a egress");
    watched.nothing_after("tc qdisc del dev a clsact");
    watched.nothing_after("tc qdisc add dev a ingress");
    watched.one(&format!("tc filter add dev a parent ffff: {drop}"), &input, "tc filter u32 at ingress on a");
    watched.none("tc qdisc del dev a ingress");
    watched.one("tc qdisc add dev a root handle 1: htb", &output, "tc qdisc htb on a");
    watched.none("ip link del dev a");
}

#[test]
fn legacy_tables() {
    let Some(mut watched) = Watched::new("legacy") else { return };
    if !watched.namespace.shell("iptables-legacy -L FORWARD") {
        eprintln!("skipped: this machine has no legacy iptables");
        return;
    }
    watched.one(
        "iptables-legacy -P FORWARD DROP",
        &IPV4,
        "chain FORWARD of legacy iptables table filter has policy DROP",
    );
    watched.none("iptables-legacy -P FORWARD ACCEPT");
    watched.nothing_after("iptables-legacy -A INPUT -j DROP");
    let input = watched.index("a");
    let http = Match {
        input: Some(input),
        addresses: Addresses::Ipv4(Some("10.0.0.0/12".parse().unwrap()), None),
        protocol: Some(6),
        destination_ports: Some(80..=90),
        ..Match::default()
    };
    let rule = "FORWARD -i a -s 10.0.0.0/12 -p tcp --dport 80:90 -j DROP";
    let why = "rule 1 of chain FORWARD of legacy iptables table filter: DROP";
    watched.one(&format!("iptables-legacy -A {rule}"), &Traffic::Matching(http), why);
    watched.none(&format!("iptables-legacy -D {rule}"));
    let fragments = Traffic::Fragments { ipv4: true, ipv6: false };
    let tracked =
        "match conntrack in legacy iptables table filter: connection tracking reassembles fragments";
    watched.one(
        "iptables-legacy -N own && iptables-legacy -A own -m conntrack --ctstate INVALID -j DROP",
        &fragments,
        tracked,
    );
    watched.one("iptables-legacy -A FORWARD -s 10.0.0.0/8 -j own", &IPV4, "match conntrack");
    watched.one("iptables-legacy -F FORWARD", &fragments, tracked);
    watched.none("iptables-legacy -F own");
    let nat = "POSTROUTING -t nat -o b -j MASQUERADE";
    watched.one(
        &format!("iptables-legacy -A {nat}"),
        &IPV4,
        "chain POSTROUTING of legacy iptables table nat: MASQUERADE",
    );
    watched.none(&format!("iptables-legacy -D {nat}"));
    let counts = "INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT";
    let kept = "legacy iptables table nat: connections keep the translation that they have";
    watched.one(&format!("iptables-legacy -A {counts}"), &IPV4, kept);
    watched.none(&format!("iptables-legacy -D {counts}"));
    let six = Addresses::Ipv6(None, Some("2001:db8::/32".parse().unwrap()));
    let six = Traffic::Matching(Match { addresses: six, protocol: Some(17), ..Match::default() });
    let rule = "FORWARD -i a+ -d 2001:db8::/32 -p udp -j ACCEPT";
    watched.one(&format!("ip6tables-legacy -A {rule}"), &six, "ip6tables table filter: ACCEPT");
    watched.none(&format!("ip6tables-legacy -D {rule}"));
}

/// Commands for nft that add this many rules, each for another address.
fn rules(count: u32) -> String {
    let mut text = "table ip t { chain fw { type filter hook forward priority 0;\n".to_owned();
    for index in 0..count {
        text += &format!("ip saddr 10.0.{}.{} drop\n", index / 256, index % 256);
    }
    text + "}\n}\n"
}

#[test]
fn a_ruleset_of_thousands_of_rules() {
    let Some(mut watched) = Watched::new("large") else { return };
    let file = std::env::temp_dir().join(format!("{}.nft", watched.namespace.name));
    let load = format!("nft -f {}", file.display());
    std::fs::write(&file, rules(900)).unwrap();
    watched.after(&load, |list| list.len() == 900);
    watched.none("nft flush ruleset");
    std::fs::write(&file, rules(5000)).unwrap();
    watched.one(&load, &IPV4, "5000 different matches, more than the 1000 that brickmoon tells apart");
    println!("5,000 rules: {:?}", watched.watch.statistics());
    watched.none("nft flush ruleset");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn lost_events_are_recovered() {
    let options = LinuxOnlyOptions { receive_buffer: 2048, ..LinuxOnlyOptions::default() };
    let Some(mut watched) = Watched::with("lost", options) else { return };
    let file = std::env::temp_dir().join(format!("{}.nft", watched.namespace.name));
    std::fs::write(&file, rules(500)).unwrap();
    watched.after(&format!("nft -f {}", file.display()), |list| list.len() == 500);
    std::fs::remove_file(&file).unwrap();
    assert!(watched.watch.statistics().overruns > 0, "the buffer was too large for this test");
    watched.none("nft flush ruleset");
    assert_eq!(watched.watch.audit().unwrap(), [""; 0]);
}

#[test]
fn an_audit_without_missed_events_finds_nothing() {
    let Some(mut watched) = Watched::new("audit") else { return };
    watched.one("iptables -P FORWARD DROP", &IPV4, "policy drop");
    assert_eq!(watched.watch.audit().unwrap(), [""; 0]);
    watched.none("iptables -P FORWARD ACCEPT");
    assert_eq!(watched.watch.audit().unwrap(), [""; 0]);
}
