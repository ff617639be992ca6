//! The same filters as nftables tables, which filter where brickmoon does not get the packets.
//!
//! Linux alone forwards from `r0` to `r1`, once without tables and once with them. What comes out with them is what came
//! out without, less what the filters of both paths drop: frame by frame, for each family of tables.

use crate::frames::{self, Dice};
use crate::lab::{Lab, lab};
use crate::{LOCAL, LOCAL6, MAC, inside, run};
use bm_control::config::Config;
use bm_control::nftables::{PortInterface, PortNow, tables};
use bm_fastpath::Filters;
use bm_filter::{Action, Flat, Rule, Tree};
use bm_forward::filter::{FilterVerdict, takes};
use bm_netlink::nft::{Family, Nft};
use bm_tests::sys::{PacketSocket, interface_index, wait_readable};
use bm_wire::ReversePath;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Rules that are tried, unless told otherwise, and frames for each.
const ROUNDS: usize = 16;
const FRAMES: u16 = 200;
/// How long a frame may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long nothing has to come before all has.
const QUIET: Duration = Duration::from_millis(60);
/// Name of the tables.
const NAME: &str = "brickmoon_filters_test";
/// Where everything leaves to.
const NEIGHBOR: [u8; 6] = [2, 0, 0, 0, 0, 0x77];

/// Protocols with ports: the configuration refuses ports with any other.
const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];

/// Extension headers of IPv6: hop-by-hop, routing, fragment, authentication, destination.
const EXTENSIONS: [u8; 5] = [0, 43, 44, 51, 60];

/// Who forwards from `r0` to `r1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Routed,
    Bridged,
}

/// Linux, and the far ends of its links.
struct Linux {
    way: Way,
    ifindex: u32,
    sender: PacketSocket,
    receiver: PacketSocket,
}

impl Linux {
    fn new() -> Self {
        let mac = MAC.map(|byte| format!("{byte:02x}")).join(":");
        let neighbor = NEIGHBOR.map(|byte| format!("{byte:02x}")).join(":");
        for line in [
            format!("link add name r0 address {mac} type veth peer name h0"),
            "link add name r1 type veth peer name h1".into(),
        ] {
            run(&line);
        }
        let settings = [
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/r0/rp_filter", "0"),
            ("ipv6/conf/h0/disable_ipv6", "1"),
            ("ipv6/conf/h1/disable_ipv6", "1"),
        ];
        for (name, value) in settings {
            std::fs::write(format!("/proc/sys/net/{name}"), value).unwrap();
        }
        for line in [
            "link set dev h0 arp off up",
            "link set dev h1 arp off up",
            "link set dev r0 up",
            "link set dev r1 up",
            "link add name br type bridge mcast_snooping 0",
            "link set dev br arp off up",
            &format!("addr add {LOCAL}/32 dev r0"),
            &format!("addr add {LOCAL6}/128 dev r0 nodad"),
            "addr add 198.18.0.1/24 dev r1",
            &format!("neigh add 198.18.0.2 lladdr {neighbor} dev r1"),
            &format!("neigh add fe80::77 lladdr {neighbor} dev r1"),
            "route add default via 198.18.0.2",
            "-6 route add default via fe80::77 dev r1",
        ] {
            run(line);
        }
        let open = |name| PacketSocket::open(interface_index(name).unwrap()).unwrap();
        let (sender, receiver) = (open("h0"), open("h1"));
        Self { way: Way::Routed, ifindex: interface_index("r0").unwrap(), sender, receiver }
    }

    /// Makes a bridge forward in the router's place.
    fn bridge(&mut self) {
        self.way = Way::Bridged;
        run("link set dev r0 master br");
        run("link set dev r1 master br");
    }

    /// The numbers of the frames that come out: at least those expected, and whatever comes until all is quiet.
    fn forwards(&self, all: &[Vec<u8>], expected: &BTreeSet<u16>) -> BTreeSet<u16> {
        for frame in all {
            let mut frame = frame.clone();
            if self.way == Way::Bridged && frame[..6] == MAC {
                // A bridge forwards what is for another MAC.
                frame[..6].copy_from_slice(&NEIGHBOR);
            }
            self.sender.send(&frame).unwrap();
        }
        let (begin, mut out) = (Instant::now(), BTreeSet::new());
        loop {
            let more = wait_readable(&[&self.receiver], QUIET).unwrap();
            if !more && (out.is_superset(expected) || begin.elapsed() > PATIENCE) {
                return out;
            }
            while let Some(captured) = self.receiver.receive().unwrap() {
                out.extend(number(&captured.frame));
            }
        }
    }
}

/// The number of a frame, unless Linux made it.
fn number(frame: &[u8]) -> Option<u16> {
    let tags =
        frame.get(12..)?.chunks_exact(4).take_while(|tag| matches!(tag[..2], [0x81, 0] | [0x88, 0xa8]));
    let at = 14 + 4 * tags.count();
    let two =
        |at: usize| frame.get(at..).and_then(|bytes| bytes.first_chunk()).map(|two| u16::from_be_bytes(*two));
    let own = [&LOCAL.octets()[..], &[198, 18, 0, 1]].contains(&frame.get(at + 12..at + 16)?);
    match two(at - 2)? {
        0x0800 if !own => two(at + 4),
        0x86dd if frame.get(at + 8..at + 24) != Some(&LOCAL6.octets()) => two(at + 2),
        _ => None,
    }
}

/// The number of tags of a frame.
fn tags(frame: &[u8]) -> usize {
    frame[12..].chunks_exact(4).take_while(|tag| matches!(tag[..2], [0x81, 0] | [0x88, 0xa8])).count()
}

/// Whether the tables may drop a frame that the filters pass (docs/filters.md): IPv6 with extension headers that nftables
/// may be unable to follow, and frames with more than one tag.
fn may_be_dropped(family: Family, frame: &[u8]) -> bool {
    let at = 14 + 4 * tags(frame);
    let has_extensions =
        frame[at - 2..at] == [0x86, 0xdd] && frame.get(at + 6).is_some_and(|next| EXTENSIONS.contains(next));
    has_extensions || tags(frame) > 1 && family != Family::Inet
}

/// Whether the tables may pass a frame that the filters drop because of its tags: Linux has removed all of them.
fn may_pass(family: Family, frame: &[u8]) -> bool {
    tags(frame) > 2 && family == Family::Inet
}

/// Settings of filters, as the configuration has them and as both paths read them.
struct Chosen {
    config: Config,
    filters: Filters,
}

impl Chosen {
    fn random(dice: &mut Dice) -> Self {
        let mut rules = Vec::new();
        let mut flat = Vec::new();
        for ((mut rule, interface), at) in frames::rules(dice).into_iter().zip(0..) {
            if !rule.protocol.is_some_and(|protocol| WITH_PORTS.contains(&protocol)) {
                (rule.source_ports, rule.destination_ports) = (None, None);
            }
            let port = interface.map(|interface| if interface == 0 { "r0" } else { "r1" }.to_owned());
            flat.extend(Flat::from_rule(&rule, at, interface));
            rules.push(Rule { port, ..rule });
        }
        let (drop_unmatched, drop_tiny_fragments) = (dice.roll(4) == 0, dice.roll(2) == 0);
        let action = |drop: bool| if drop { Action::Drop } else { Action::Accept };
        let text = "[[port]]\ndevice = 'r0'\n[[port]]\ndevice = 'r1'\n";
        let mut config = Config::parse(Path::new("test.toml"), text).unwrap();
        config.filter.rules = rules;
        config.filter.unmatched = action(drop_unmatched);
        config.filter.tiny_fragments = action(drop_tiny_fragments);
        let tree = Tree::grow(flat).unwrap();
        Self { config, filters: Filters { tree, drop_unmatched, drop_tiny_fragments, rate: None } }
    }

    /// Puts the tables of one family for `r0`; which, if there are any.
    fn put(&self, nft: &mut Nft, family: Family, ifindex: u32) -> bool {
        let interface = match family {
            Family::Netdev => PortInterface::Unusable(ifindex),
            Family::Inet => {
                PortInterface::ByWorkers { ifindex, mac: [0; 6], vlans_in_vrf: false, marked: false }
            }
            Family::Bridge => PortInterface::Missing,
        };
        let port = PortNow { name: "r0".into(), device: "r0".into(), index: 0, interface };
        let made = tables(&self.config, &[], NAME, &[port]).into_iter().find(|table| table.family == family);
        made.iter().for_each(|table| nft.put(table).unwrap());
        made.is_some()
    }
}

/// The numbers of the frames that both paths drop.
fn dropped(lab: &mut Lab, chosen: &Chosen, all: &[Vec<u8>]) -> BTreeSet<u16> {
    let mut reader = lab.readers.register();
    let tables = lab.filter(chosen.filters.clone(), [ReversePath::Off; 3], [false; 2]);
    let mut dropped = BTreeSet::new();
    for (frame, at) in all.iter().zip(0..) {
        let by_worker = takes(&tables, 0, frame, 0).map(|taken| match taken {
            FilterVerdict::Drop(reason) => reason.name(),
            FilterVerdict::LinuxOnly => panic!("nothing is Linux's: {frame:02x?}"),
        });
        assert_eq!(by_worker, lab.in_kernel(frame), "{frame:02x?}\n{:#?}", chosen.config.filter);
        dropped.extend(by_worker.map(|_| at));
    }
    reader.quiescent();
    dropped
}

#[test]
fn nftables_decides_as_both_paths_do() {
    inside("nftables::nftables_decides_as_both_paths_do", compare);
}

/// The number of the first frame of a round: never 0, which frames that Linux makes have.
fn first(round: usize) -> u16 {
    1 + round as u16 * FRAMES
}

fn compare() {
    let Some(mut nft) = Nft::open().unwrap() else {
        return eprintln!("skipped: this Linux has no nftables");
    };
    let (mut lab, mut linux) = (lab(), Linux::new());
    let rounds = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(ROUNDS);
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut made: Vec<_> = Vec::new();
    for round in 0..rounds {
        let chosen = Chosen::random(&mut dice);
        let first = first(round);
        let all: Vec<_> = (0..FRAMES).map(|at| frames::frame(&mut dice, first.wrapping_add(at))).collect();
        made.push((chosen, all));
    }
    let (mut seen, mut stricter) = ([0; 3], [0; 2]);
    let numbered = |round: usize, of: &BTreeSet<u16>| -> BTreeSet<u16> {
        of.iter().map(|at| first(round).wrapping_add(*at)).collect()
    };
    // Some frames have no room for their number, or come out after their round.
    let of_round = |round: usize, out: BTreeSet<u16>| -> BTreeSet<u16> {
        let first = first(round);
        out.into_iter().filter(|number| number.wrapping_sub(first) < FRAMES).collect()
    };
    // What Linux routes by itself; in the bridge it forwards more, but what is malformed need not pass there.
    let mut routed = Vec::new();
    let mut drops = Vec::new();
    for (round, (chosen, all)) in made.iter().enumerate() {
        drops.push(numbered(round, &dropped(&mut lab, chosen, all)));
        routed.push(of_round(round, linux.forwards(all, &BTreeSet::new())));
    }
    for family in [Family::Netdev, Family::Inet, Family::Bridge] {
        if family == Family::Bridge {
            linux.bridge();
        }
        for (round, (chosen, all)) in made.iter().enumerate() {
            let there = chosen.put(&mut nft, family, linux.ifindex);
            let expected: BTreeSet<u16> = routed[round].difference(&drops[round]).copied().collect();
            let first = first(round);
            let inexact =
                |number: &&u16| may_be_dropped(family, &all[usize::from(number.wrapping_sub(first))]);
            let certain = expected.iter().filter(|number| !inexact(number)).copied().collect();
            let mut out = of_round(round, linux.forwards(all, &certain));
            out.retain(|number| !may_pass(family, &all[usize::from(number.wrapping_sub(first))]));
            let frames = |numbers: Vec<&u16>| -> Vec<String> {
                let of = |number: &u16| format!("{:02x?}", all.get(usize::from(number.wrapping_sub(first))));
                numbers.into_iter().take(3).map(of).collect()
            };
            let passed = frames(out.intersection(&drops[round]).collect());
            assert!(
                passed.is_empty(),
                "{family:?}, round {round}: filters forbid {passed:#?}\n{:#?}",
                chosen.config.filter
            );
            let (strict, lacking): (Vec<_>, Vec<_>) = expected.difference(&out).partition(inexact);
            let lacking = frames(lacking);
            assert!(
                lacking.is_empty(),
                "{family:?}, round {round}: lost {lacking:#?}\n{:#?}",
                chosen.config.filter
            );
            stricter[0] += strict.len();
            stricter[1] += expected.iter().filter(inexact).count();
            if linux.way == Way::Routed {
                assert!(
                    out.is_subset(&expected),
                    "{family:?}, round {round}: Linux alone does not forward it"
                );
            }
            seen[0] += expected.len();
            seen[1] += drops[round].intersection(&routed[round]).count();
            if there {
                seen[2] += 1;
                nft.remove(family, NAME).unwrap();
            }
        }
    }
    println!("{} frames passed and {} were dropped, with {} tables", seen[0], seen[1], seen[2]);
    assert!(
        seen[0] > rounds * 20 && seen[1] > rounds * 20 && seen[2] > rounds,
        "nothing was tried: {seen:?}"
    );
}
