//! IPsec policies for `ip -batch -`.

use super::{Net, PORTS, Random};

/// Policies that block, let through, or want a tunnel that there is not.
pub fn xfrm(net: &Net, random: &mut Random) -> String {
    (0..1 + random.below(4)).map(|_| policy(net, random) + "\n").collect()
}

fn policy(net: &Net, random: &mut Random) -> String {
    let four = !random.one_in(3);
    let direction = random.choice(&["fwd", "fwd", "out", "out", "in"]);
    let [source, target] = [true, false].map(|source| {
        let any = if four { "0.0.0.0/0" } else { "::/0" };
        if random.one_in(3) { any.to_owned() } else { net.prefix(random, four, source) }
    });
    // Two with the same selector are one: the latter.
    let mut text = format!("xfrm policy update dir {direction} src {source} dst {target} ");
    match random.below(5) {
        0 => text += &format!("proto {} dport {} ", random.choice(&["tcp", "udp"]), random.choice(&PORTS)),
        1 => text += &format!("proto {} ", random.choice(&["tcp", "udp", "47"])),
        _ => {}
    }
    if random.one_in(6) {
        text += &format!("dev {} ", net.any_interface(random));
    }
    text += &format!("priority {} ", random.below(5));
    let (near, far) = if four { ("192.0.2.1", "198.51.100.9") } else { ("2001:db8::1", "2001:db8::9") };
    match random.below(4) {
        0 | 1 => text + "action block",
        2 => text + "action allow",
        _ => {
            // Linux has no tunnel out that may be missing.
            let how = random.choice(&["tunnel level required", "transport level use"]);
            text + &format!("tmpl src {near} dst {far} proto esp mode {how}")
        }
    }
}
