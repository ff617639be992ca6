//! Random rulesets that concern connections, and changes to them, for `nft -f -` and `iptables-nft-restore`.
//!
//! Every ruleset has a table `base` that tracks all connections: packets that brickmoon forwards without Linux's knowledge
//! begin none, which is documented, and would be a difference under the next ruleset. NAT has one answer only: each
//! connection has a port of its own, and the two that have the same are translated to one of two ports.

use crate::flows::traffic::COLLIDING;
use bm_tests::rulesets::Random;
use std::fmt::Write;

/// A ruleset: the command, and what it reads.
pub type Loads = Vec<(&'static str, String)>;

/// Marks, sets and maps that rules refer to.
const OBJECTS: &str = " set hosts { type ipv4_addr; elements = { 192.0.2.7, 10.9.9.9 }; }
 set nets { type ipv4_addr; flags interval; elements = { 172.16.0.0/16, 10.1.0.0/16 }; }
 set ports { type inet_service; elements = { 53, 443 }; }
 set pairs { type ipv4_addr . inet_service; elements = { 10.9.9.9 . 80, 10.2.9.9 . 53 }; }
 set seen { type ipv4_addr; size 1000; flags dynamic; }
 map marks { type inet_service : mark; elements = { 53 : 1, 80 : 2, 7000 : 3 }; }
 map servers { type inet_service : ipv4_addr; elements = { 8080 : 192.0.2.5, 5353 : 192.0.2.6 }; }
";
const ADDRESSES: &[&str] = &["192.0.2.7", "172.16.0.9", "10.9.9.9", "10.2.9.9", "198.51.100.7", "10.1.1.200"];

/// Where a rule stands: some statements are for some hooks only.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hook {
    Raw,
    Mangle,
    Forward,
    Postrouting,
    /// A chain that others jump to.
    Own,
}

/// The ruleset to begin with, which Linux does not refuse.
pub fn first() -> Loads {
    vec![("nft -f -", base())]
}

/// A whole ruleset, in place of the one before.
pub fn ruleset(random: &mut Random) -> Loads {
    let mut loads = vec![("nft -f -", base() + &table(random))];
    if random.one_in(3) {
        loads.push(("iptables-nft-restore", iptables(random)));
    }
    loads
}

/// A change to a ruleset, which Linux may refuse.
pub fn change(random: &mut Random) -> Loads {
    let text = match random.below(8) {
        0 | 1 => format!("add rule inet t forward {}\n", rule(random, Hook::Forward)),
        2 => format!("insert rule inet t forward {}\n", rule(random, Hook::Forward)),
        3 => {
            let verb = random.choice(&["add", "delete"]);
            format!("{verb} element inet t hosts {{ {} }}\n", random.choice(ADDRESSES))
        }
        4 => format!("{} element inet t ports {{ {} }}\n", random.choice(&["add", "delete"]), port(random)),
        5 => format!("flush chain inet t {}\n", random.choice(&["forward", "one", "mangle"])),
        6 => random
            .choice(&["delete table inet t\n", "add table inet t { flags dormant; }\n", "add table inet t\n"])
            .to_owned(),
        _ => return ruleset(random),
    };
    vec![("nft -f -", text)]
}

fn port(random: &mut Random) -> u16 {
    random.choice(super::traffic::PORTS)
}

/// What Linux calls invalid it does not translate, so it is dropped: an answer to it would find its ports taken.
fn base() -> String {
    let (port, to, to_port) = COLLIDING;
    format!(
        "flush ruleset
table inet base {{
 chain f {{ type filter hook forward priority -50; ct state invalid drop; }}
 chain n {{
  type nat hook postrouting priority srcnat - 1;
  udp sport {port} ip daddr {to} udp dport {to_port} snat ip to 198.51.100.1:4000-4001
 }}
}}
"
    )
}

fn table(random: &mut Random) -> String {
    let mut text = format!("table inet t {{\n{OBJECTS}");
    let chains = [
        ("one", Hook::Own, ""),
        ("raw", Hook::Raw, "type filter hook prerouting priority raw;"),
        ("mangle", Hook::Mangle, "type filter hook prerouting priority mangle;"),
        ("forward", Hook::Forward, "type filter hook forward priority filter;"),
        ("last", Hook::Postrouting, "type filter hook postrouting priority mangle;"),
    ];
    for (name, hook, what) in chains {
        let is_there = matches!(hook, Hook::Own | Hook::Forward) || random.one_in(3);
        if !is_there {
            continue;
        }
        let policy = if hook == Hook::Forward && random.one_in(3) { " policy drop;" } else { "" };
        let _written = writeln!(text, " chain {name} {{\n  {what}{policy}");
        if hook == Hook::Forward && !random.one_in(4) {
            text += random.choice(STATEFUL);
        }
        for _ in 0..random.below(4) {
            let rule = if hook == Hook::Raw { untracking(random) } else { rule(random, hook) };
            let _written = writeln!(text, "  {rule}");
        }
        if !policy.is_empty() {
            text += random.choice(&["  ct state new accept\n", "  iifname r0 accept\n", "  accept\n"]);
        }
        text += " }\n";
    }
    text + &translation(random) + "}\n"
}

/// How stateful firewalls begin.
const STATEFUL: &[&str] = &[
    "  ct state established,related accept\n",
    "  ct state vmap { established : accept, related : accept, invalid : drop }\n",
    "  ct state { established, related } counter accept\n",
    "  ct state established ct direction reply accept\n",
    "  ct status dnat accept\n  ct state established accept\n",
    "  ct state != new accept\n",
];

/// Destination NAT, and source NAT.
fn translation(random: &mut Random) -> String {
    let mut text = String::new();
    if random.one_in(2) {
        text += " chain to {\n  type nat hook prerouting priority dstnat;\n";
        for _ in 0..1 + random.below(2) {
            text += random.choice(&[
                "  iifname r1 tcp dport 8080 dnat ip to 192.0.2.5:80\n",
                "  iifname r1 udp dport 5353 dnat ip to 192.0.2.5:53\n",
                "  iifname r1 dnat ip to tcp dport map @servers\n",
                "  ip daddr 10.1.9.9 dnat ip to 10.9.9.8\n",
                "  iifname r0 udp dport 53 dnat ip to 10.9.9.53\n",
                "  iifname r0 tcp dport 443 redirect to :3128\n",
                "  ip6 daddr 2001:db8:a101::9 tcp dport 80 dnat ip6 to [2001:db8:a000::8]:8080\n",
                "  ip daddr 203.0.113.1 dnat ip to 192.0.2.5\n",
            ]);
        }
        text += " }\n";
    }
    if random.one_in(2) {
        text += " chain from {\n  type nat hook postrouting priority srcnat;\n";
        for _ in 0..1 + random.below(2) {
            text += random.choice(&[
                "  oifname r1 masquerade\n",
                "  oifname { r1, r2 } ip saddr 192.0.2.0/24 masquerade\n",
                "  oifname r1 ip saddr 172.16.0.0/16 snat ip to 198.51.100.9\n",
                "  oifname r2 snat ip to 203.0.113.8\n",
                "  oifname r1 snat ip to ip saddr map { 192.0.2.7 : 198.51.100.8, 172.16.0.9 : 198.51.100.9 }\n",
                "  oifname r1 ip6 saddr 2001:db8:c000::/36 masquerade\n",
                "  oifname r0 ct status dnat masquerade\n",
            ]);
        }
        text += " }\n";
    }
    text
}

/// A rule before connections are known. It treats all packets of one direction alike: if only some of them were tracked,
/// others that are not translated would be answered, and a connection begun by an answer finds its ports taken.
fn untracking(random: &mut Random) -> String {
    let matches = match random.below(5) {
        0 => random.choice(&["iifname r0 ", "iifname r1 ", "iifname { r0, r2 } "]).to_owned(),
        1 => format!("ip saddr {} ", random.choice(ADDRESSES)),
        2 => format!("udp dport {} ", port(random)),
        3 => "ip daddr @nets ".to_owned(),
        _ => String::new(),
    };
    matches + random.choice(&["notrack", "notrack", "counter", "meta mark set 1", "log"])
}

/// A rule: some matches, and a statement.
fn rule(random: &mut Random, hook: Hook) -> String {
    let mut text = String::new();
    if random.one_in(3) {
        text += random.choice(&["iifname r0 ", "iifname r1 ", "iifname { r0, r2 } ", "iifname \"r*\" "]);
    }
    if random.one_in(3) {
        text += &network(random);
    }
    if random.one_in(3) {
        text += &transport(random);
    }
    if random.one_in(3) {
        text += random.choice(&[
            "ct state new ",
            "ct state established ",
            "ct direction original ",
            "ct direction reply ",
            "ct mark 1 ",
            "ct status dnat ",
            "ct status snat ",
            "ct protocol tcp ",
        ]);
    }
    if random.one_in(6) {
        text +=
            random.choice(&["meta mark 1 ", "meta mark != 0 ", "meta length > 600 ", "meta pkttype host "]);
    }
    text + &statement(random, hook)
}

fn network(random: &mut Random) -> String {
    match random.below(8) {
        0 => format!("ip saddr {} ", random.choice(ADDRESSES)),
        1 => format!("ip daddr {} ", random.choice(ADDRESSES)),
        2 => "ip saddr @hosts ".to_owned(),
        3 => "ip daddr @nets ".to_owned(),
        4 => "ip saddr != @nets ".to_owned(),
        5 => "ip6 saddr 2001:db8:c000::/36 ".to_owned(),
        6 => "ip dscp 0 ".to_owned(),
        _ => "ip daddr != @hosts ".to_owned(),
    }
}

fn transport(random: &mut Random) -> String {
    let protocol = random.choice(&["tcp", "udp"]);
    match random.below(7) {
        0 => format!("{protocol} dport {} ", port(random)),
        1 => format!("{protocol} sport {} ", port(random)),
        2 => format!("{protocol} dport @ports "),
        3 => "meta l4proto { tcp, udp } th dport 53 ".to_owned(),
        4 => "tcp flags & (syn | ack) == syn ".to_owned(),
        5 => "tcp flags & (fin | rst) != 0 ".to_owned(),
        _ => format!("ip daddr . {protocol} dport @pairs "),
    }
}

fn statement(random: &mut Random, hook: Hook) -> String {
    let verdicts = ["accept", "accept", "drop", "counter", "counter accept", "return", "log", "log drop"];
    let marks = ["meta mark set 1", "meta mark set 2", "meta mark set 0"];
    let of_connections = [
        "ct mark set 1",
        "ct mark set meta mark",
        "meta mark set ct mark",
        "meta mark set th dport map @marks",
    ];
    let each_packet = [
        "limit rate 1/hour burst 20 packets drop",
        "limit rate over 1/hour burst 30 packets drop",
        "quota over 20 kbytes drop",
        "numgen inc mod 5 0 drop",
        "ip dscp set cs1",
        "update @seen { ip saddr }",
        "update @seen { ip saddr limit rate over 1/hour burst 20 packets } drop",
        "tcp option maxseg size set 1300",
    ];
    let here: &[&str] = match hook {
        Hook::Forward => {
            &["reject", "jump one", "goto one", "ct state vmap { new : jump one, established : accept }"]
        }
        Hook::Mangle | Hook::Postrouting => &["jump one"],
        Hook::Own | Hook::Raw => &[],
    };
    let list = match random.below(10) {
        0..=3 => &verdicts[..],
        4 | 5 if !here.is_empty() => here,
        4..=6 => &of_connections,
        7 => &marks,
        // What differs from packet to packet hides all else, so it is rare.
        8 => &each_packet,
        _ => &verdicts,
    };
    random.choice(list).to_owned()
}

/// Rules of iptables beside them.
fn iptables(random: &mut Random) -> String {
    let mut text = String::new();
    if random.one_in(2) {
        text += "*mangle\n:PREROUTING ACCEPT [0:0]\n";
        for _ in 0..1 + random.below(2) {
            text += random.choice(&[
                "-A PREROUTING -j CONNMARK --restore-mark\n",
                "-A PREROUTING -i r0 -p tcp -j MARK --set-mark 1\n",
                "-A PREROUTING -m mark --mark 1 -j CONNMARK --save-mark\n",
                "-A PREROUTING -m conntrack --ctstate NEW -j CONNMARK --set-mark 2\n",
            ]);
        }
        text += "COMMIT\n";
    }
    if random.one_in(2) {
        text += "*nat\n:PREROUTING ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n";
        for _ in 0..1 + random.below(2) {
            text += random.choice(&[
                "-A POSTROUTING -o r1 -j MASQUERADE\n",
                "-A POSTROUTING -o r2 -s 192.0.2.0/24 -j SNAT --to-source 203.0.113.9\n",
                "-A PREROUTING -i r1 -p tcp --dport 8080 -j DNAT --to-destination 192.0.2.5:80\n",
                "-A PREROUTING -i r1 -p udp -m addrtype --dst-type LOCAL -j DNAT --to-destination 192.0.2.6\n",
            ]);
        }
        text += "COMMIT\n";
    }
    text += random.choice(&["*filter\n:FORWARD ACCEPT [0:0]\n", "*filter\n:FORWARD DROP [0:0]\n"]);
    text += random.choice(&["", "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"]);
    for _ in 0..random.below(4) {
        text += random.choice(&[
            "-A FORWARD -i r0 -j ACCEPT\n",
            "-A FORWARD -p udp --dport 53 -j DROP\n",
            "-A FORWARD -p tcp -m multiport --dports 80,443 -m conntrack --ctstate NEW -j ACCEPT\n",
            "-A FORWARD -s 172.16.0.0/16 -m comment --comment lan -j RETURN\n",
            "-A FORWARD -m conntrack --ctstate INVALID -j DROP\n",
            "-A FORWARD -m limit --limit 1/hour --limit-burst 9 -j ACCEPT\n",
            "-A FORWARD -m conntrack --ctdir REPLY -j ACCEPT\n",
            "-A FORWARD -m connmark --mark 2 -j ACCEPT\n",
            "-A FORWARD -p tcp -j REJECT --reject-with tcp-reset\n",
        ]);
    }
    text + "COMMIT\n"
}
