//! Compares the filters of both paths: the same rules, the same frames, the same verdicts and counts.

#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bm_fastpath::{AttachChoice, Filters, Kernel, Rate, Situation, SourceCheck, Tag, Verdict};
use bm_fib::memory::Part;
use bm_fib::next_hop::{Action as Hop, Gateway, NextHopWriter};
use bm_fib::published::Readers;
use bm_fib::sets::SetWriter;
use bm_fib::{BuildFib, Change, Chunk17, NextHop, Range6};
use bm_filter::{Action, AnyPrefix, Flat, Rule, Tree, UNMATCHED};
use bm_forward::filter::{FilterSet, RuleCounts, SourceRates, Taken, takes};
use bm_forward::tables::{Feasible, Interface, PortInterfaces, ReversePath, Settings, Tables, Vlan, Vrf};

/// Port 0, its VLAN 7 as interface 1, port 1 as interface 2.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const RULES: u16 = 24;
const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
const LOCAL6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0xfe);

/// Pseudo-random numbers, the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * u64::from(sides)) >> 32) as u32
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.roll(all.len() as u32) as usize]
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.roll(256) as u8).collect()
    }
}

const SOURCES: [[u8; 4]; 9] = [
    [192, 0, 2, 1],
    [192, 0, 2, 200],
    [192, 0, 3, 1],
    [198, 51, 100, 1],
    [203, 0, 113, 9],
    [10, 0, 0, 1],
    [0, 0, 0, 0],
    [127, 0, 0, 1],
    [192, 0, 2, 254],
];
const DESTINATIONS: [[u8; 4]; 8] = [
    [198, 51, 100, 7],
    [198, 51, 101, 7],
    [192, 0, 2, 254],
    [192, 0, 2, 9],
    [224, 0, 0, 5],
    [255, 255, 255, 255],
    [240, 1, 2, 3],
    [10, 9, 9, 9],
];
const SOURCES6: [&str; 6] =
    ["2001:db8:1::1", "2001:db8:1::ffff", "2001:db8:2::1", "fe80::1", "::", "2001:db8:9::1"];
const DESTINATIONS6: [&str; 5] =
    ["2001:db8:2::7", "2001:db8:1::fe", "ff02::1", "fe80::9", "2001:db8:2:0:1::7"];
const PREFIXES: [&str; 10] = [
    "192.0.2.0/24",
    "192.0.2.128/25",
    "192.0.2.1",
    "0.0.0.0/0",
    "198.51.100.0/23",
    "240.0.0.0/4",
    "2001:db8:1::/48",
    "2001:db8:2::7",
    "2001:db8::/32",
    "::/0",
];
const PROTOCOLS: [u8; 14] = [6, 6, 17, 17, 1, 58, 132, 33, 136, 50, 47, 44, 51, 253];
const PORTS: [u16; 6] = [53, 80, 1024, 65_535, 0, 4000];

fn rules(dice: &mut Dice) -> Vec<(Rule, Option<u16>)> {
    let count = dice.roll(u32::from(RULES) + 1);
    let prefix = |dice: &mut Dice| (dice.roll(2) == 0).then(|| dice.one_of(&PREFIXES).parse().unwrap());
    let ports = |dice: &mut Dice| {
        let (first, last) = (dice.one_of(&PORTS), dice.one_of(&PORTS));
        (dice.roll(3) == 0).then(|| first.min(last)..=first.max(last))
    };
    let rule = |dice: &mut Dice| {
        let source: Option<AnyPrefix> = prefix(dice);
        let destination = prefix(dice)
            .filter(|to: &AnyPrefix| source.is_none_or(|from: AnyPrefix| from.is_ipv6() == to.is_ipv6()));
        let rule = Rule {
            action: dice.one_of(&[Action::Accept, Action::Drop]),
            source,
            destination,
            protocol: (dice.roll(2) == 0).then(|| dice.one_of(&PROTOCOLS)),
            source_ports: ports(dice),
            destination_ports: ports(dice),
            ..Rule::default()
        };
        (rule, (dice.roll(6) == 0).then(|| dice.one_of(&[0, 2])))
    };
    (0..count).map(|_| rule(dice)).collect()
}

fn frame(dice: &mut Dice) -> Vec<u8> {
    let mut frame = if dice.roll(12) == 0 { vec![2, 0, 0, 0, 0, 9] } else { MAC.to_vec() };
    frame.extend([2, 0, 0, 0, 9, 9]);
    for _ in 0..[0, 0, 0, 0, 1, 1, 2, 3][dice.roll(8) as usize] {
        frame.extend(dice.one_of(&[[0x81, 0], [0x81, 0], [0x88, 0xa8]]));
        frame.extend([0x20, dice.one_of(&[0, 7, 7, 8])]);
    }
    if dice.roll(2) == 0 {
        frame.extend([8, 0]);
        frame.extend(packet4(dice));
    } else {
        frame.extend([0x86, 0xdd]);
        frame.extend(packet6(dice));
    }
    if dice.roll(10) == 0 {
        let cut = 14 + dice.roll(frame.len() as u32 - 14) as usize;
        frame.truncate(cut);
    }
    if dice.roll(20) == 0 {
        let at = dice.roll(frame.len() as u32) as usize;
        frame[at] = dice.roll(256) as u8;
    }
    frame
}

/// The part after the IP headers: ports that rules match, and a random part of the rest.
fn payload(dice: &mut Dice) -> Vec<u8> {
    let length = dice.one_of(&[0, 3, 4, 7, 8, 15, 16, 19, 20, 40]);
    let ports = [dice.one_of(&PORTS), dice.one_of(&PORTS)].map(u16::to_be_bytes).concat();
    [ports, dice.bytes(36)].concat()[..length].to_vec()
}

fn packet4(dice: &mut Dice) -> Vec<u8> {
    let (options, payload) = (dice.one_of(&[0, 0, 0, 4, 12]), payload(dice));
    let length = 20 + options + payload.len();
    let length = if dice.roll(12) == 0 { dice.roll(64) as usize } else { length };
    let fragment = dice.one_of(&[0u16, 0, 0, 0x4000, 0x2000, 0x2001, 1, 2, 0x1fff]);
    let mut packet = vec![0x45 + (options / 4) as u8, 0, 0, length as u8, 0, 1];
    packet.extend(fragment.to_be_bytes());
    packet.extend([2, dice.one_of(&PROTOCOLS), 0, 0]);
    packet.extend(dice.one_of(&SOURCES));
    packet.extend(dice.one_of(&DESTINATIONS));
    let sum = bm_wire::checksum::checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(vec![1; options]);
    packet.extend(payload);
    packet
}

fn packet6(dice: &mut Dice) -> Vec<u8> {
    let mut chain: Vec<u8> = (0..dice.one_of(&[0, 0, 0, 1, 1, 2, 3, 8, 9]))
        .map(|_| dice.one_of(&[0, 43, 60, 44, 44, 51]))
        .collect();
    chain.push(dice.one_of(&PROTOCOLS));
    let mut rest = Vec::new();
    for pair in chain.windows(2) {
        let [this, next] = pair else { continue };
        match this {
            44 => rest.extend([*next, 0, dice.one_of(&[0, 0, 0, 1]), dice.one_of(&[0, 1, 1, 8]), 0, 0, 0, 1]),
            51 => rest.extend([vec![*next, 1], vec![0; 10]].concat()),
            _ => {
                let units = dice.one_of(&[0u8, 0, 1, 30]);
                let size = 6 + if units == 30 { 8 } else { 8 * usize::from(units) };
                rest.extend([*next, units]);
                rest.extend(vec![0; size]);
            }
        }
    }
    rest.extend(payload(dice));
    let length = if dice.roll(12) == 0 { dice.roll(64) as usize } else { rest.len() };
    let address = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
    let mut packet = vec![0x60, 0, 0, 0, 0, length as u8, chain[0], 2];
    packet.extend(address(dice.one_of(&SOURCES6)));
    packet.extend(address(dice.one_of(&DESTINATIONS6)));
    packet.extend(rest);
    packet
}

/// One set of tables that both paths read.
struct Lab {
    kernel: Kernel,
    ifindex: u32,
    situation: Situation,
    counts: Arc<RuleCounts>,
    rates: Arc<SourceRates>,
    readers: Readers,
    hops: NextHopWriter,
    ipv4: Chunk17,
    ipv6: Range6,
    ways4: (Chunk17, SetWriter),
    ways6: (Range6, SetWriter),
}

fn run(arguments: &str) {
    assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
}

/// Environment variable, set in the program that runs inside the namespace.
const INSIDE: &str = "BM_FILTERS_INSIDE";

struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _gone = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Runs `body` in a network namespace: starts this program again, so that no thread has to change namespaces.
fn inside(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("skipped: {test} needs root for a network namespace and BPF");
        return;
    }
    let namespace = Namespace(format!("bm-filters-{}", std::process::id()));
    run(&format!("netns add {}", namespace.0));
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &namespace.0]).arg(std::env::current_exe().unwrap());
    let ended = command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").status().unwrap();
    assert!(ended.success(), "{test} failed inside its namespace");
}

fn lab() -> Lab {
    run("link add name in address 02:00:00:00:00:01 type veth peer name far");
    run("link set dev in up");
    run("link set dev far up");
    let mut kernel = Kernel::load(Duration::from_secs(60)).unwrap();
    let ifindex = kernel.attach("in", AttachChoice::Xdp).unwrap().ifindex;
    let readers = Readers::new();
    let source = kernel.source(Part::NextHops).unwrap();
    let mut hops = NextHopWriter::with_room_in(1 << 16, 18, &readers, &source).unwrap();
    let mut chunk = |part| {
        let source = kernel.source(part).unwrap();
        (Chunk17::build_in(&mut [].into_iter(), &readers, &source).unwrap(), source)
    };
    let (mut ipv4, _) = chunk(Part::Ipv4);
    let (mut ways4, source4) = chunk(Part::Sources4);
    let mut range = |part| {
        let source = kernel.source(part).unwrap();
        (Range6::build_in(&mut [].into_iter(), &readers, &source).unwrap(), source)
    };
    let (mut ipv6, _) = range(Part::Ipv6);
    let (mut ways6, source6) = range(Part::Sources6);
    let mut sets4 = SetWriter::with_width_in(bm_fastpath::INTERFACES, &readers, &source4).unwrap();
    let mut sets6 = SetWriter::with_width_in(bm_fastpath::INTERFACES, &readers, &source6).unwrap();

    let mut add = |action, interface| hops.add(action, Gateway { address: None, interface }, 0).unwrap();
    let out = |interface| Hop::Forward { mac: [2; 6], interface };
    let [to0, to1, to2] = [0, 1, 2].map(|interface| add(out(interface), u32::from(interface)));
    let (host, resolve, blackhole) = (add(Hop::Host, 0), add(Hop::Resolve, 1), add(Hop::Blackhole, 0));
    let group = hops.add_group(&[(to2, 7), (to1, 1)]).unwrap();
    let routes4: [(&str, NextHop); 9] = [
        ("0.0.0.0/0", to2),
        ("192.0.2.0/24", to0),
        ("192.0.2.128/25", to1),
        ("192.0.2.254/32", host),
        ("192.0.3.0/24", group),
        ("198.51.100.0/24", resolve),
        ("203.0.113.0/24", blackhole),
        ("10.0.0.0/8", host),
        ("127.0.0.0/8", host),
    ];
    let routes4 = routes4.map(|(prefix, hop)| Change::Set(prefix.parse().unwrap(), hop));
    ipv4.apply(&routes4).unwrap();
    let routes6: [(&str, NextHop); 4] = [
        ("2001:db8:1::/48", to0),
        ("2001:db8:1::fe/128", host),
        ("2001:db8:2::/48", group),
        ("2001:db8:1::ffff/128", resolve),
    ];
    ipv6.apply(&routes6.map(|(prefix, hop)| Change::Set(prefix.parse().unwrap(), hop))).unwrap();
    let sets: [(&str, &[u16]); 4] =
        [("0.0.0.0/0", &[0, 2]), ("192.0.2.0/24", &[]), ("203.0.113.0/24", &[1, 2]), ("10.0.0.0/8", &[0])];
    for (prefix, ways) in sets {
        ways4.apply(&[Change::Set(prefix.parse().unwrap(), sets4.take(ways))]).unwrap();
    }
    ways6.apply(&[Change::Set("2001:db8:9::/48".parse().unwrap(), sets6.take(&[0, 1]))]).unwrap();

    let interface = |index, ifindex, tag: Option<Tag>| bm_fastpath::Interface {
        index,
        ifindex,
        vlan: tag,
        mac: MAC,
        mtu: 1500,
        forward: [true; 2],
        sends: true,
        looked_at: true,
        ..bm_fastpath::Interface::default()
    };
    let tag = Tag { port: ifindex, protocol: 0x8100, id: 7 };
    let interfaces = vec![interface(0, ifindex, None), interface(1, 70, Some(tag)), interface(2, 77, None)];
    let (local_ipv4, local_ipv6) = (vec![LOCAL], vec![LOCAL6]);
    let situation = Situation { interfaces, local_ipv4, local_ipv6, feasible: true, ..Situation::default() };
    let counts = Arc::new(RuleCounts::new().unwrap());
    let rates = Arc::new(SourceRates::new(7).unwrap());
    let _no_sockets = kernel.take_claims().unwrap();
    let (ways4, ways6) = ((ways4, sets4), (ways6, sets6));
    Lab { kernel, ifindex, situation, counts, rates, readers, hops, ipv4, ipv6, ways4, ways6 }
}

impl Lab {
    /// Sets these filters in both paths; returns what workers read.
    fn filter(&mut self, filters: Filters, checks: [SourceCheck; 3], unknown: [bool; 2]) -> Tables {
        let filters = Arc::new(filters);
        self.situation.filters = Some(Arc::clone(&filters));
        self.situation.unknown = unknown;
        let interfaces = self.situation.interfaces.iter_mut();
        interfaces.zip(checks).for_each(|(interface, check)| interface.check = check);
        self.kernel.publish(&self.situation).unwrap();
        for counter in (0..RULES).chain([UNMATCHED]) {
            self.kernel.clear_rule_count(counter).unwrap();
            self.counts.clear(counter);
        }
        let interface = |(index, vlan): (u16, Option<Vlan>)| Interface {
            name: format!("eth{index}"),
            ifindex: u32::from(index) + 1,
            port: index / 2,
            vlan,
            mac: MAC,
            mtu: 1500,
            up: true,
            vrf: 0,
            forward_ipv4: true,
            forward_ipv6: true,
            reverse_path: ReversePath::Off,
            linux_only_in: [false; 2],
            linux_only_out: false,
            linux_only_fragments: [false; 2],
            accept_local: false,
            hop_limit: 64,
            ipv4: Vec::new(),
            ipv6: Vec::new(),
        };
        let tag = Vlan { protocol: 0x8100, id: 7 };
        let ports = vec![
            PortInterfaces { untagged: Some(0), tagged: vec![(tag, 1)] },
            PortInterfaces { untagged: Some(2), tagged: vec![] },
        ];
        let vrf = Vrf { ipv4: self.ipv4.reader(), ipv6: self.ipv6.reader() };
        let interfaces = [(0, None), (1, Some(tag)), (2, None)].map(interface).to_vec();
        let next_hops = Arc::clone(self.hops.table());
        let local = (vec![LOCAL], vec![LOCAL6]);
        let feasible = Feasible {
            ipv4: (self.ways4.0.reader(), Arc::clone(self.ways4.1.table())),
            ipv6: (self.ways6.0.reader(), Arc::clone(self.ways6.1.table())),
        };
        let set = FilterSet {
            filters,
            checks: checks.to_vec(),
            unknown,
            ports: vec![true; 2],
            counts: Arc::clone(&self.counts),
            rates: Some(Arc::clone(&self.rates)),
        };
        Tables::new(vec![vrf], interfaces, ports, next_hops, local, Settings::default())
            .with_feasible(vec![feasible])
            .with_filters(Some(Arc::new(set)))
    }

    /// What the kernel path does with a frame: the reason for dropping it or leaving it to Linux.
    fn in_kernel(&mut self, frame: &[u8]) -> Option<&'static str> {
        let named = |lab: &Self| -> Vec<_> { lab.kernel.counters(0).unwrap().named().collect() };
        let before = named(self);
        let (verdict, _) = self.kernel.trial(self.ifindex, frame).unwrap();
        let mut counted = before.iter().zip(named(self)).filter(|(before, after)| **before != *after);
        let name = counted.find(|(_, (name, _))| !name.ends_with("_bytes")).map_or("", |(_, (name, _))| name);
        let dropped = name.strip_prefix("drop_");
        assert_eq!(dropped.is_some(), verdict == Verdict::Drop, "{frame:02x?}");
        dropped.or((name == FIREWALL).then_some(FIREWALL))
    }
}

/// The kernel path's counter of packets that only Linux may handle.
const FIREWALL: &str = "linux_firewall";

#[test]
fn both_paths_decide_the_same_for_any_frame() {
    inside("both_paths_decide_the_same_for_any_frame", compare);
}

fn compare() {
    let mut lab = lab();
    let rounds = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(48);
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let mut reader = lab.readers.register();
    let mut seen = std::collections::BTreeMap::<_, usize>::new();
    for round in 0..rounds {
        let rules = rules(&mut dice);
        let flat = |rules: &[(Rule, Option<u16>)], first: u16| -> Vec<Flat> {
            let numbered = rules.iter().zip(first..);
            numbered.flat_map(|((rule, interface), at)| Flat::of(rule, at, *interface)).collect()
        };
        // Claims, for which there are no workers, and a rate that no source exceeds: both change nothing.
        let claims = if dice.roll(2) == 0 { self::rules(&mut dice) } else { Vec::new() };
        let plenty = Rate { packets: 10_000_000, burst: 10_000_000, lengths: [24, 48] };
        let linux_only = if dice.roll(2) == 0 { self::rules(&mut dice) } else { Vec::new() };
        let of_linux = linux_only.iter().flat_map(|(rule, interface)| Flat::may_match(rule, *interface));
        let tree = Tree::grow_with(flat(&rules, 0), flat(&claims, RULES)).unwrap();
        let filters = Filters {
            tree: tree.with_linux_only(of_linux.collect()).unwrap(),
            drop_unmatched: dice.roll(4) == 0,
            drop_tiny_fragments: dice.roll(2) == 0,
            rate: (dice.roll(2) == 0).then_some(plenty),
        };
        const CHECKS: [SourceCheck; 4] =
            [SourceCheck::None, SourceCheck::Strict, SourceCheck::Loose, SourceCheck::Feasible];
        let checks = [0; 3].map(|_: u8| dice.one_of(&CHECKS));
        let unknown = [0; 2].map(|_: u8| dice.roll(6) == 0);
        let tables = lab.filter(filters, checks, unknown);
        for _ in 0..200 {
            let frame = frame(&mut dice);
            let in_kernel = lab.in_kernel(&frame);
            let by_worker = takes(&tables, 0, &frame, 0).map(|taken| match taken {
                Taken::Drop(reason) => reason.name(),
                Taken::LinuxOnly => FIREWALL,
            });
            assert_eq!(
                by_worker, in_kernel,
                "round {round}, {checks:?}, {unknown:?}: {frame:02x?}\n{rules:#?}"
            );
            *seen.entry(by_worker).or_default() += 1;
        }
        for counter in (0..rules.len() as u16).chain([UNMATCHED]) {
            let counted = (lab.counts.count(counter), lab.kernel.rule_count(counter).unwrap());
            assert_eq!(counted.0, counted.1, "round {round}, rule {counter}: {rules:#?}");
        }
        reader.quiescent();
    }
    for reason in [None, Some("filter"), Some(FIREWALL), Some("tiny_fragment"), Some("reverse_path")] {
        assert!(seen.get(&reason).is_some_and(|count| *count > rounds), "{reason:?}: {seen:?}");
    }
}
