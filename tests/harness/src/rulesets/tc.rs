//! Qdiscs and filters for `tc -batch -`.

use super::{Net, Random, parse};
use std::net::IpAddr;

/// Filters that drop at ingress or egress, and qdiscs that let all through. Interfaces must have none before.
pub fn tc(net: &Net, random: &mut Random) -> String {
    let mut text = String::new();
    for interface in [net.input, net.output(random)] {
        if random.one_in(2) {
            continue;
        }
        text += &format!("qdisc add dev {interface} clsact\n");
        for _ in 0..random.below(3) {
            let hook = random.choice(&["ingress", "egress"]);
            text += &format!("filter add dev {interface} {hook} {}\n", filter(net, random));
        }
    }
    if random.one_in(3) {
        let qdisc = random.choice(&["tbf rate 1gbit burst 1mb latency 50ms", "pfifo limit 1000"]);
        text += &format!("qdisc add dev {} root {qdisc}\n", net.output(random));
    }
    text
}

/// A program of the old sort: 2 drops, 0 lets through.
fn filter(net: &Net, random: &mut Random) -> String {
    let (protocol, program) = match random.below(4) {
        0 => ("ip", "1,6 0 0 2".to_owned()),
        1 => ("ipv6", "1,6 0 0 2".to_owned()),
        // By the protocol of IPv4.
        2 => ("ip", format!("4,48 0 0 23,21 0 1 {},6 0 0 2,6 0 0 0", random.choice(&[6, 17, 47]))),
        // By the destination's first two bytes.
        _ => {
            let IpAddr::V4(target) = parse(random.choice(net.targets4)) else { panic!("one of IPv4") };
            let half = u32::from(target) >> 16;
            ("ip", format!("4,40 0 0 30,21 0 1 {half},6 0 0 2,6 0 0 0"))
        }
    };
    format!("protocol {protocol} bpf da bytecode \"{program}\"")
}
