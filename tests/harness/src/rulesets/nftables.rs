//! Rulesets for `nft -f -`, each in place of all before.

use super::{Net, PORTS, Random, elements};

/// A table with a base chain and some others, of which each leads only to those before it.
pub fn nftables(net: &Net, random: &mut Random) -> String {
    match random.below(8) {
        0 => on_interface(net, random),
        1 => translation(net, random),
        2 => elements(net, random),
        _ => routed(net, random),
    }
}

fn routed(net: &Net, random: &mut Random) -> String {
    let family = random.choice(&["inet", "ip", "ip6"]);
    let hook = random.choice(&["prerouting", "forward", "postrouting"]);
    let mut text = format!("flush ruleset\ntable {family} t {{\n");
    let chains = random.below(3);
    for chain in 0..chains {
        text += &format!(" chain c{chain} {{\n");
        for _ in 0..random.below(3) {
            text += &format!("  {}\n", rule(net, random, family, chain));
        }
        text += " }\n";
    }
    let policy = if random.one_in(8) { "drop" } else { "accept" };
    text += &format!(" chain base {{\n  type filter hook {hook} priority 0; policy {policy};\n");
    for _ in 0..random.below(4) {
        text += &format!("  {}\n", rule(net, random, family, chains));
    }
    // The kernel rejects packets at some hooks only.
    text.replace("reject", if hook == "forward" { "reject" } else { "drop" }) + " }\n}\n"
}

/// A chain at an interface's ingress or egress.
fn on_interface(net: &Net, random: &mut Random) -> String {
    let (hook, interface) =
        if random.one_in(2) { ("ingress", net.input) } else { ("egress", net.output(random)) };
    let family = if hook == "ingress" { random.choice(&["inet", "netdev"]) } else { "netdev" };
    let mut text = format!(
        "flush ruleset\ntable {family} t {{\n chain base {{\n  type filter hook {hook} device {interface} priority 0; policy accept;\n"
    );
    for _ in 0..1 + random.below(3) {
        let statement =
            random.choice(&["drop", "drop", "accept", "counter", "return", "limit rate 1/hour drop"]);
        text += &format!("  {}{statement}\n", matches(net, random, "inet"));
    }
    text + " }\n}\n"
}

/// NAT of one address, always the same: two flows that want the same ports, also of rulesets before, would get others
/// by chance.
fn translation(net: &Net, random: &mut Random) -> String {
    let (source, target) = (net.sources4[0], net.targets4[0]);
    let text = match random.below(3) {
        0 => "type nat hook prerouting priority dstnat; ip daddr TARGET dnat to OTHER",
        1 => "type nat hook postrouting priority srcnat; ip saddr SOURCE masquerade",
        _ => "type nat hook postrouting priority srcnat; ip saddr SOURCE udp dport 53 snat to 192.0.2.200",
    };
    // Beside it, so that no probe goes there by itself.
    let other = format!("{}.77", target.rsplit_once('.').map_or(target, |(net, _)| net));
    let text = text.replace("TARGET", target).replace("OTHER", &other).replace("SOURCE", source);
    format!("flush ruleset\ntable ip t {{\n chain base {{\n  {text}\n }}\n}}\n")
}

/// Matches of a rule, in nft's words.
fn matches(net: &Net, random: &mut Random, family: &str) -> String {
    let four = family != "ip6" && (family == "ip" || random.one_in(2));
    let (mut text, mut transport) = (String::new(), false);
    for _ in 0..random.below(4) {
        // Two words about one header would contradict each other, which nft refuses.
        let what = random.below(if transport { 6 } else { 10 });
        transport |= what >= 6;
        text += &match what {
            0 => interface(net, random, "iifname", net.input),
            1 => {
                let output = net.output(random);
                interface(net, random, "oifname", output)
            }
            2 | 3 => address(net, random, four, "saddr"),
            4 | 5 => address(net, random, four, "daddr"),
            6 => format!("meta l4proto {} ", random.choice(&["tcp", "udp", "47", "{ 6, 17 }"])),
            7 => {
                let ports = random.choice(&["22", "53-100", "{ 22, 53 }", "!= 80", "> 1000"]);
                format!("{} dport {ports} ", random.choice(&["tcp", "udp"]))
            }
            8 => {
                let protocol = random.choice(&["tcp", "udp"]);
                format!(
                    "{protocol} sport {} {protocol} dport {} ",
                    random.choice(&PORTS),
                    random.choice(&PORTS)
                )
            }
            _ => random
                .choice(&["th dport 53 ", "meta pkttype host ", "meta length > 20 ", "meta mark 0 "])
                .to_owned(),
        };
    }
    text
}

fn interface(net: &Net, random: &mut Random, side: &str, usual: &str) -> String {
    match random.below(4) {
        0 => format!("{side} {} ", net.any_interface(random)),
        1 => format!("{side} \"{usual}*\" "),
        2 => format!("{side} gone "),
        _ => format!("{side} {usual} "),
    }
}

fn address(net: &Net, random: &mut Random, four: bool, side: &str) -> String {
    let not = if random.one_in(5) { "!= " } else { "" };
    let word = if four { "ip" } else { "ip6" };
    format!("{word} {side} {not}{} ", net.prefix(random, four, side == "saddr"))
}

fn rule(net: &Net, random: &mut Random, family: &str, chains: usize) -> String {
    let matches = matches(net, random, family);
    let mut statements = vec![
        "drop",
        "drop",
        "drop",
        "counter",
        "accept",
        "accept",
        "return",
        "reject",
        "meta mark set 7",
        "counter drop",
        "limit rate 1/hour drop",
        "log",
        "ct state new drop",
        "ct state established accept",
    ];
    let set = format!("ip daddr set {}", net.targets4[0]);
    if family == "ip" {
        statements.extend(["ip ttl set 9", "ip dscp set cs1", &set]);
    }
    if chains > 0 && random.one_in(3) {
        return format!("{matches}{} c{}", random.choice(&["jump", "goto"]), random.below(chains));
    }
    // Rules about connections hide all others, so they are rare.
    let mut statement = random.choice(&statements);
    if statement.starts_with("ct") && !random.one_in(4) {
        statement = "drop";
    }
    format!("{matches}{statement}")
}
