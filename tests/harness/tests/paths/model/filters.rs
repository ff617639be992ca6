//! Filters of brickmoon's configuration in the words of a step, and what has the same meaning in nftables, which filters
//! in Linux alone.
//!
//! The first line may say what becomes of packets that no rule matches, each other line is a rule: its action, then keys
//! of `[[filter.rule]]` with their values. No line means no filters.
//!
//! ```text
//! unmatched drop
//! accept destination 10.20.0.0/16 protocol udp destination_ports 53 port r0
//! ```

use std::fmt::Write;

/// Packets of a chain: of IPv6 or IPv4, and whether they are later fragments, which have no ports.
type Packets = (bool, bool);

/// The configuration of brickmoon.
pub fn config(text: &str) -> String {
    let mut config = format!("[filter]\nunmatched = '{}'\n", unmatched(text));
    for rule in rules(text) {
        let _ = write!(config, "[[filter.rule]]\naction = '{}'\n", rule[0]);
        for pair in rule[1..].chunks_exact(2) {
            let (key, value) = (pair[0], pair[1]);
            let quote = if value.parse::<u16>().is_ok() { "" } else { "'" };
            let _ = writeln!(config, "{key} = {quote}{value}{quote}");
        }
    }
    config
}

/// The same in nftables for what comes in on a port, as lines of `nft`. What Linux would not forward passes, as with
/// brickmoon's filters.
pub fn ruleset(text: &str, port: &str) -> String {
    let mut chains = String::new();
    for packets in [(false, false), (false, true), (true, false), (true, true)] {
        let _ = writeln!(chains, " chain {} {{", chain(packets));
        chains += if packets.0 {
            "  ip6 daddr { ff00::/8, fe80::/10 } accept\n  fib daddr type { local, anycast } accept\n"
        } else {
            "  ip daddr { 224.0.0.0/4, 255.255.255.255 } accept\n  fib daddr type { local, broadcast, multicast } accept\n"
        };
        for rule in rules(text) {
            if let Some(line) = of_rule(&rule, packets, port) {
                let _ = writeln!(chains, "  {line}");
            }
        }
        let _ = writeln!(chains, "  {}\n }}", unmatched(text));
    }
    format!(
        "table netdev {} {{\n{chains} chain of_port {{\n  type filter hook ingress device {port} priority 0;\n  \
         meta protocol ip ip frag-off & 0x1fff != 0 goto {}\n  meta protocol ip goto {}\n  \
         meta protocol ip6 frag frag-off != 0 goto {}\n  meta protocol ip6 goto {}\n }}\n}}\n",
        table(port),
        chain((false, true)),
        chain((false, false)),
        chain((true, true)),
        chain((true, false)),
    )
}

/// The name of the table for a port.
pub fn table(port: &str) -> String {
    format!("filters_{port}")
}

fn chain((six, later): Packets) -> String {
    format!("ip{}{}", if six { "v6" } else { "v4" }, if later { "_later" } else { "" })
}

fn unmatched(text: &str) -> &str {
    text.lines().find_map(|line| line.strip_prefix("unmatched ")).unwrap_or("accept")
}

fn rules(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().filter(|line| !line.starts_with("unmatched")).map(|line| line.split(' ').collect())
}

/// A rule of nftables; `None` if the rule is about other packets, another port, or drops by ports what has none.
fn of_rule(rule: &[&str], (six, later): Packets, port: &str) -> Option<String> {
    let mut line = String::new();
    for pair in rule[1..].chunks_exact(2) {
        let (key, value) = (pair[0], pair[1]);
        let family = if six { "ip6" } else { "ip" };
        match key {
            "source" | "destination" if value.contains(':') != six => return None,
            "port" if value != port => return None,
            "source_ports" | "destination_ports" if later && rule[0] == "drop" => return None,
            "source" => line += &format!("{family} saddr {value} "),
            "destination" => line += &format!("{family} daddr {value} "),
            "protocol" => line += &format!("meta l4proto {value} "),
            "source_ports" if !later => line += &format!("th sport {value} "),
            "destination_ports" if !later => line += &format!("th dport {value} "),
            _ => {}
        }
    }
    Some(line + rule[0])
}
