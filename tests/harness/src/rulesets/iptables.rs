//! Rules for `iptables-restore`, of both sorts of iptables.

use super::{Net, Random};

/// Empties the tables of legacy iptables: one that is not in a text keeps its rules.
pub const LEGACY_FLUSH: &str = "for t in filter mangle raw; do iptables-legacy -t $t -F; iptables-legacy -t $t -X; \
    for c in FORWARD PREROUTING POSTROUTING; do iptables-legacy -t $t -P $c ACCEPT 2>/dev/null; done; done; true";

/// A table with one chain in the way of routed packets, and one of the administrator's own.
pub fn iptables(net: &Net, random: &mut Random) -> String {
    let (table, chain) = random.choice(&[
        ("filter", "FORWARD"),
        ("mangle", "FORWARD"),
        ("mangle", "PREROUTING"),
        ("mangle", "POSTROUTING"),
        ("raw", "PREROUTING"),
    ]);
    let policy = if random.one_in(8) { "DROP" } else { "ACCEPT" };
    let mut text = format!("*{table}\n:{chain} {policy} [0:0]\n:own - [0:0]\n");
    for _ in 0..random.below(5) {
        text += &(rule(net, random, chain) + "\n");
    }
    // Connections that are tracked for the machine itself are tracked for routed packets as well.
    if table == "filter" && random.one_in(2) {
        let (chain, tracking) = random.choice(&[
            ("INPUT", "-m conntrack --ctstate ESTABLISHED -j ACCEPT"),
            ("INPUT", "-m state --state INVALID -j DROP"),
            ("OUTPUT", "-m conntrack --ctstate NEW"),
        ]);
        text += &format!(":{chain} ACCEPT [0:0]\n-A {chain} {tracking}\n");
    }
    text + "COMMIT\n"
}

fn rule(net: &Net, random: &mut Random, chain: &str) -> String {
    let own = random.one_in(4);
    let mut rule = format!("-A {} ", if own { "own" } else { chain });
    if random.one_in(3) && chain != "POSTROUTING" && !own {
        let (input, output) = (net.input, net.output(random));
        rule += &match random.below(5) {
            0 => format!("-i {output} "),
            1 => format!("! -i {input} "),
            2 => format!("-i {input}+ "),
            3 => "-i gone ".to_owned(),
            _ => format!("-i {input} "),
        };
    }
    for (flag, source) in [("-s", true), ("-d", false)] {
        if random.one_in(2) {
            let not = if random.one_in(5) { "! " } else { "" };
            rule += &format!("{not}{flag} {} ", net.prefix(random, true, source));
        }
    }
    rule += random.choice(&[
        "",
        "",
        "-p tcp ",
        "! -p tcp ",
        "-p udp --dport 53 ",
        "-p tcp --sport 22:100 ",
        "-p tcp ! --dport 80 ",
    ]);
    let jumps = !own && random.one_in(4);
    rule + if jumps { "-j own" } else { random.choice(&["-j DROP", "-j DROP", "-j ACCEPT", "-j RETURN", ""]) }
}
