//! The text of a lab, line by line. Errors panic with the line: this is for tests.

use std::net::IpAddr;
use std::str::FromStr;

use bm_fib::NextHop;
use bm_fib::next_hop::Action;
use bm_wire::Mac;

use super::world::{AnyPrefix, World};
use crate::tables::{Interface, ReversePath, Vlan, ipsec_mac};

/// The words of a line that are not read yet.
struct Words<'a> {
    line: &'a str,
    words: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
}

impl<'a> Words<'a> {
    fn next(&mut self) -> &'a str {
        self.words.next().unwrap_or_else(|| panic!("{:?} ends too early", self.line))
    }

    fn read<T: FromStr>(&mut self) -> T {
        read(self.line, self.next())
    }

    fn has(&mut self, word: &str) -> bool {
        self.words.next_if_eq(&word).is_some()
    }

    /// The number after `word`, if that comes next.
    fn number(&mut self, word: &str) -> Option<u16> {
        self.has(word).then(|| self.read())
    }
}

fn read<T: FromStr>(line: &str, word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{line:?}: cannot read {word:?}"))
}

pub fn lines(text: &str, world: &mut World) {
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut words = Words { line, words: line.split_whitespace().peekable() };
        let removes = words.has("no");
        match words.next() {
            "interface" => world.add_interface(interface(&mut words)),
            "neighbor" => neighbor(&mut words, world, removes),
            "route" => route(&mut words, world, removes),
            other => panic!("{line:?}: {other:?} is neither interface, neighbor nor route"),
        }
    }
}

/// `NAME PORT MAC [if_id N] [vlan N] [mtu N] [vrf N] [hop-limit N] [down] [no-forwarding] [strict|loose] [accept-local] [redirects] [linux-cuts] [ADDRESS/LENGTH]...`
fn interface(words: &mut Words<'_>) -> Interface {
    let (name, port, mac) = (words.next().to_string(), words.read(), words.read::<Mac>());
    let if_id = words.number("if_id").map_or(0, u32::from);
    let vlan = words.number("vlan").map(|id| Vlan { protocol: 0x8100, id });
    let mtu = words.number("mtu").unwrap_or(1500);
    let vrf = words.number("vrf").unwrap_or(0);
    let hop_limit = words.number("hop-limit").unwrap_or(64) as u8;
    let (up, forwards) = (!words.has("down"), !words.has("no-forwarding"));
    let reverse_path = match (words.has("strict"), words.has("loose")) {
        (true, _) => ReversePath::Strict,
        (_, true) => ReversePath::Loose,
        _ => ReversePath::Off,
    };
    let accept_local = words.has("accept-local");
    let redirects = [words.has("redirects"); 2];
    let linux_cuts = words.has("linux-cuts");
    let mut interface = Interface {
        name,
        ifindex: 0,
        port,
        if_id,
        vlan,
        mac: if if_id == 0 { mac.0 } else { ipsec_mac(if_id) },
        mtu,
        up,
        vrf,
        forward_ipv4: forwards,
        forward_ipv6: forwards,
        reverse_path,
        linux_only_in: [false; 2],
        by_flow: [false; 2],
        linux_only_out: false,
        linux_cuts,
        linux_only_fragments: [false; 2],
        accept_local,
        redirects,
        hop_limit,
        ipv4: Vec::new(),
        ipv6: Vec::new(),
    };
    let line = words.line;
    for word in words.words.by_ref() {
        let (address, length) = word.split_once('/').unwrap_or_else(|| panic!("{line:?}: {word:?}"));
        match read(line, address) {
            IpAddr::V4(address) => interface.ipv4.push((address, read(line, length))),
            IpAddr::V6(address) => interface.ipv6.push((address, read(line, length))),
        }
    }
    interface
}

/// `ADDRESS INTERFACE [MAC]`
fn neighbor(words: &mut Words<'_>, world: &mut World, removes: bool) {
    let address = words.read();
    let interface = world.interface(words.next());
    let mac = (!removes).then(|| words.read::<Mac>().0);
    world.set_neighbor(interface, address, mac);
}

/// `PREFIX [vrf N] via ADDRESS INTERFACE [mtu N] | dev INTERFACE | host | blackhole | unreachable | prohibit |
/// group ADDRESS INTERFACE WEIGHT ...`
fn route(words: &mut Words<'_>, world: &mut World, removes: bool) {
    let (address, length) = words.next().split_once('/').expect("a prefix with its length");
    let prefix = AnyPrefix::of(read(words.line, address), read(words.line, length));
    let vrf = words.number("vrf").unwrap_or(0);
    let hop = (!removes).then(|| hop(words, world));
    world.set(vrf, prefix, hop);
}

fn hop(words: &mut Words<'_>, world: &mut World) -> NextHop {
    match words.next() {
        "via" => {
            let address = words.read();
            let interface = world.interface(words.next());
            let mtu = words.number("mtu").unwrap_or(0);
            world.gateway_hop(interface, Some(address), mtu)
        }
        "dev" => {
            let interface = world.interface(words.next());
            let mtu = words.number("mtu").unwrap_or(0);
            world.gateway_hop(interface, None, mtu)
        }
        "host" => world.plain_hop(0, Action::Host),
        "blackhole" => world.plain_hop(1, Action::Blackhole),
        "unreachable" => world.plain_hop(2, Action::Unreachable),
        "prohibit" => world.plain_hop(3, Action::Prohibit),
        "group" => {
            let mut members = Vec::new();
            while words.words.peek().is_some() {
                let address = words.read();
                let interface = world.interface(words.next());
                members.push((world.gateway_hop(interface, Some(address), 0), words.read()));
            }
            world.group(&members)
        }
        other => panic!("{:?}: {other:?} is no next hop", words.line),
    }
}
