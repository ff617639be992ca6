//! Rulesets for `nft -f -` in which something asks for connection tracking where no routed packet comes by. Linux then
//! reassembles fragments all the same.

use super::{Net, Random};

/// A chain at forward that may drop, and connection tracking for another reason.
pub fn tracking(net: &Net, random: &mut Random) -> String {
    let mut text = "flush ruleset\n".to_owned();
    if random.one_in(2) {
        let four = random.one_in(2);
        let prefix = net.prefix(random, four, false);
        let word = if four { "ip" } else { "ip6" };
        text += "table inet f {\n chain base {\n  type filter hook forward priority 0; policy accept;\n";
        text += &format!("  {word} daddr {prefix} drop\n }}\n}}\n");
    }
    let family = random.choice(&["inet", "ip", "ip6"]);
    let flags = if random.one_in(4) { " flags dormant;\n" } else { "" };
    let (objects, rules) = match random.below(6) {
        0 => (helper(family), ""),
        1 => (" set s { type inet_service; flags dynamic; ct count over 5; }\n".to_owned(), ""),
        2 => (String::new(), "ct state invalid drop"),
        3 => (String::new(), "ct state established,related accept"),
        4 => (String::new(), "ct mark set 1"),
        _ => (String::new(), "tcp dport 22 ct count over 5 drop"),
    };
    let chain = match random.below(3) {
        0 => "  type filter hook input priority 0; policy accept;\n",
        1 => "  type filter hook output priority 0; policy accept;\n",
        // Nothing leads there.
        _ => "",
    };
    text + &format!("table {family} t {{\n{flags}{objects} chain c {{\n{chain}  {rules}\n }}\n}}\n")
}

fn helper(family: &str) -> String {
    let layer = if family == "inet" { "ip" } else { family };
    format!(" ct timeout h {{ protocol tcp; l3proto {layer}; policy = {{ established: 9 }}; }}\n")
}
