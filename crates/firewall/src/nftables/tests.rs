//! Rules as the kernel lists them (Linux 6.18, written by nft 1.0.6 and iptables-nft 1.8.9), and what comes of them.

use super::analysis::analyse;
use super::step::{States, Target};
use super::{Base, DeviceName, Flowtable, Place, Rule, Ruleset, TableName, nfproto, rule, tracking};
use crate::condition::{Condition, Families};
use crate::entries::Entries;
use crate::names::{Device, Names};
use crate::{Addresses, Match, Traffic};
use bm_netlink::attribute::Attributes;
use bm_netlink::link::{Kind, Link};
use bm_netlink::message::Message;
use bm_wire::Family;

/// `iifname "eth0" ip saddr 10.0.0.0/12 tcp dport 80 drop` of an inet table.
const NARROW: &str = "
    060001006600000007000200667700000c00030000000000000000043c02040024000100090001006d65746100000000
    14000200080002000000000608000100000000013800010008000100636d70002c000200080001000000000108000200
    0000000018000300140001006574683000000000000000000000000024000100090001006d6574610000000014000200
    080002000000000f08000100000000012c00010008000100636d70002000020008000100000000010800020000000000
    0c0003000500010002000000340001000c0001007061796c6f6164002400020008000100000000010800020000000001
    080003000000000c08000400000000044c0001000c00010062697477697365003c000200080001000000000108000200
    00000001080003000000000408000600000000000c00040008000100fff000000c00050008000100000000002c000100
    08000100636d700020000200080001000000000108000200000000000c000300080001000a0000002400010009000100
    6d6574610000000014000200080002000000001008000100000000012c00010008000100636d70002000020008000100
    0000000108000200000000000c0003000500010006000000340001000c0001007061796c6f6164002400020008000100
    000000010800020000000002080003000000000208000400000000022c00010008000100636d70002000020008000100
    0000000108000200000000000c0003000600010000500000300001000e000100696d6d6564696174650000001c000200
    0800010000000000100002000c0002000800010000000000";
/// `ct state established accept`
const CT_STATE: &str = "
    060001006600000007000200667700000c00030000000000000000050c0006000000000000000004cc00040020000100
    070001006374000014000200080001000000000108000200000000004c0001000c00010062697477697365003c000200
    08000100000000010800020000000001080003000000000408000600000000000c00040008000100020000000c000500
    08000100000000002c00010008000100636d700020000200080001000000000108000200000000010c00030008000100
    00000000300001000e000100696d6d6564696174650000001c0002000800010000000000100002000c00020008000100
    00000001";
/// `ip saddr 10.1.0.1 ip daddr 10.2.0.0/16 jump x`
const JUMP: &str = "
    060001006600000007000200667700000c00030000000000000000060c00060000000000000000054c01040024000100
    090001006d6574610000000014000200080002000000000f08000100000000012c00010008000100636d700020000200
    080001000000000108000200000000000c0003000500010002000000340001000c0001007061796c6f61640024000200
    08000100000000010800020000000001080003000000000c08000400000000042c00010008000100636d700020000200
    080001000000000108000200000000000c000300080001000a010001340001000c0001007061796c6f61640024000200
    08000100000000010800020000000001080003000000001008000400000000022c00010008000100636d700020000200
    080001000000000108000200000000000c000300060001000a020000380001000e000100696d6d656469617465000000
    240002000800010000000000180002001400020008000100fffffffd0600020078000000";
/// `tcp dport { 22, 23 } reject`
const SET: &str = "
    060001006600000007000200667700000c00030000000000000000080c0006000000000000000006dc00040024000100
    090001006d6574610000000014000200080002000000001008000100000000012c00010008000100636d700020000200
    080001000000000108000200000000000c0003000500010006000000340001000c0001007061796c6f61640024000200
    0800010000000001080002000000000208000300000000020800040000000002300001000b0001006c6f6f6b75700000
    200002000b0001005f5f73657430000008000200000000010800050000000000240001000b00010072656a6563740000
    1400020008000100000000020500020001000000";
/// `oifname "eth1" accept`
const ACCEPT: &str = "
    060001006600000007000200667700000c00030000000000000000090c00060000000000000000089000040024000100
    090001006d6574610000000014000200080002000000000708000100000000013800010008000100636d70002c000200
    08000100000000010800020000000000180003001400010065746831000000000000000000000000300001000e000100
    696d6d6564696174650000001c0002000800010000000000100002000c0002000800010000000001";
/// `ip saddr 192.0.2.1 tcp sport 5 tcp dport 6 drop`: both ports by one load.
const BOTH_PORTS: &str = "
    060001006600000007000200667700000c000300000000000000000a0c00060000000000000000099401040024000100
    090001006d6574610000000014000200080002000000000f08000100000000012c00010008000100636d700020000200
    080001000000000108000200000000000c0003000500010002000000340001000c0001007061796c6f61640024000200
    08000100000000010800020000000001080003000000000c08000400000000042c00010008000100636d700020000200
    080001000000000108000200000000000c00030008000100c000020124000100090001006d6574610000000014000200
    080002000000001008000100000000012c00010008000100636d70002000020008000100000000010800020000000000
    0c0003000500010006000000340001000c0001007061796c6f6164002400020008000100000000010800020000000002
    080003000000000008000400000000042c00010008000100636d70002000020008000100000000010800020000000000
    0c0003000800010000050006300001000e000100696d6d6564696174650000001c000200080001000000000010000200
    0c0002000800010000000000";
/// `meta mark set 5`
const MARK: &str = "
    060001006600000007000200667700000c000300000000000000000b0c000600000000000000000a540004002c000100
    0e000100696d6d6564696174650000001800020008000100000000010c00020008000100050000002400010009000100
    6d657461000000001400020008000200000000030800030000000001";
/// `iifname "eth*" udp sport 1000-2000 counter drop`
const RANGE: &str = "
    060001006600000007000200667700000c000300000000000000000c0c000600000000000000000b8c01040024000100
    090001006d6574610000000014000200080002000000000608000100000000012c00010008000100636d700020000200
    080001000000000108000200000000000c000300070001006574680024000100090001006d6574610000000014000200
    080002000000001008000100000000012c00010008000100636d70002000020008000100000000010800020000000000
    0c0003000500010011000000340001000c0001007061796c6f6164002400020008000100000000010800020000000002
    080003000000000008000400000000022c00010008000100636d70002000020008000100000000010800020000000005
    0c0003000600010003e800002c00010008000100636d700020000200080001000000000108000200000000030c000300
    0600010007d000002c0001000c000100636f756e746572001c0002000c00010000000000000000000c00020000000000
    00000000300001000e000100696d6d6564696174650000001c0002000800010000000000100002000c00020008000100
    00000000";
/// `iptables -t nat -A POSTROUTING -o eth1 -j MASQUERADE`
const MASQUERADE: &str = "
    080001006e61740010000200504f5354524f5554494e47000c0003000000000000000002cc0004002400010009000100
    6d6574610000000014000200080002000000000708000100000000013000010008000100636d70002400020008000100
    000000010800020000000000100003000900010065746831000000002c0001000c000100636f756e746572001c000200
    0c00010000000000000000000c0002000000000000000000480001000b0001007461726765740000380002000f000100
    4d415351554552414445000008000200000000001c000300010000000000000000000000000000000000000000000000";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

fn read(hex: &str) -> Rule {
    rule::read(None, Attributes::new(&bytes(hex))).unwrap()
}

/// Interfaces `eth0` (2), `eth1` (3), the VLAN `eth0.5` (4) on the first, and the VRF `red` (5).
fn names() -> Names {
    let link = |ifindex, name: &str, kind| Link { ifindex, name: name.into(), kind, ..Link::default() };
    let vlan = Kind::Vlan { id: 5, protocol: 0x8100 };
    let mut names = Names::default();
    for link in [
        link(2, "eth0", Kind::Device),
        link(3, "eth1", Kind::Device),
        Link { lower: Some(2), ..link(4, "eth0.5", vlan) },
        link(5, "red", Kind::Vrf { table: 10 }),
    ] {
        names.apply(Message::Link(link));
    }
    names
}

const ALL: Traffic = Traffic::All { ipv4: true, ipv6: true };

fn table(family: u8) -> TableName {
    TableName { family, name: "t".into() }
}

fn base(family: u8, families: Families) -> Base {
    Base {
        table: table(family),
        name: "fw".into(),
        place: Place::Ip(families),
        drops: false,
        is_nat: false,
        states: States::OF_FLOWS,
    }
}

/// A ruleset of one inet table with a base chain `fw` and other chains.
fn ruleset(chains: &[(&str, Vec<Rule>)]) -> Ruleset {
    let chains = chains.iter().map(|(name, rules)| ((table(nfproto::INET), Box::from(*name)), rules.clone()));
    let bases = vec![base(nfproto::INET, Families::BOTH)];
    Ruleset { bases, chains: chains.collect(), ..Ruleset::default() }
}

fn list(ruleset: &Ruleset) -> Vec<(Traffic, String)> {
    let mut entries = Entries::default();
    analyse(ruleset, &names(), &mut entries);
    entries.finish().into_iter().map(|entry| (entry.traffic, entry.why)).collect()
}

/// What one rule of a chain comes to.
fn of_rule(rule: Rule) -> Vec<(Traffic, String)> {
    list(&ruleset(&[("fw", vec![rule])]))
}

fn ipv4(source: &str, destination: Option<&str>) -> Addresses {
    Addresses::Ipv4(Some(source.parse().unwrap()), destination.map(|prefix| prefix.parse().unwrap()))
}

fn dropping(condition: Condition) -> Rule {
    Rule { handle: 9, condition, effect: Some("drop".into()), ..Rule::default() }
}

#[test]
fn matches_before_the_verdict_restrict_the_packets() {
    let narrow = Match {
        input: Some(2),
        protocol: Some(6),
        addresses: ipv4("10.0.0.0/12", None),
        destination_ports: Some(80..=80),
        ..Match::default()
    };
    let why = "rule 1 (handle 4) of chain fw of table inet t: drop".to_owned();
    assert_eq!(of_rule(read(NARROW)), [(Traffic::Matching(narrow), why)]);
    let both = Match {
        protocol: Some(6),
        addresses: ipv4("192.0.2.1/32", None),
        source_ports: Some(5..=5),
        destination_ports: Some(6..=6),
        ..Match::default()
    };
    assert_eq!(of_rule(read(BOTH_PORTS))[0].0, Traffic::Matching(both));
    let range = Match { protocol: Some(17), source_ports: Some(1000..=2000), ..Match::default() };
    assert_eq!(
        of_rule(read(RANGE))[0].0,
        Traffic::Matching(range),
        "names that begin like this do not narrow"
    );
}

#[test]
fn sets_do_not_restrict_but_matches_before_them_do() {
    let tcp = Match { protocol: Some(6), ..Match::default() };
    assert_eq!(of_rule(read(SET))[0].0, Traffic::Matching(tcp));
}

#[test]
fn rules_with_ct_apply_to_all_packets() {
    for (rule, what) in [(CT_STATE, "a match by ct"), (MASQUERADE, "MASQUERADE")] {
        let found = of_rule(read(rule));
        assert_eq!(found[0].0, ALL);
        assert!(found[0].1.ends_with(what), "{}", found[0].1);
    }
}

#[test]
fn connection_tracking_implies_reassembly_of_fragments() {
    let reasons = |ruleset: &Ruleset| {
        let mut entries = Entries::default();
        tracking::analyse(ruleset, &mut entries);
        entries.finish().into_iter().map(|entry| (entry.traffic, entry.why)).collect::<Vec<_>>()
    };
    let fragments = |ipv4, ipv6| Traffic::Fragments { ipv4, ipv6 };
    // No base chain leads there, and yet the kernel tracks for it.
    let mut ruleset = ruleset(&[("lonely", vec![read(ACCEPT), read(CT_STATE)])]);
    let why = "rule 2 (handle 5) of chain lonely of table inet t: a match by ct: connection tracking reassembles fragments";
    assert_eq!(reasons(&ruleset), [(fragments(true, true), why.to_owned())]);
    ruleset.chains.clear();
    ruleset.chains.insert((table(nfproto::IPV4), "out".into()), vec![read(MASQUERADE)]);
    ruleset.chains.insert((table(nfproto::NETDEV), "in".into()), vec![read(CT_STATE)]);
    ruleset.tracking.push((table(nfproto::IPV6), "ct helper ftp".into()));
    let found: Vec<_> = reasons(&ruleset).into_iter().map(|(traffic, _)| traffic).collect();
    assert_eq!(found, [fragments(true, false), fragments(false, true)]);
    for untracked in [NARROW, JUMP, SET, ACCEPT, MARK, RANGE] {
        assert_eq!(read(untracked).tracks, None);
    }
}

#[test]
fn accept_rules_are_ignored_and_mark_rules_are_not() {
    assert_eq!(of_rule(read(ACCEPT)), []);
    assert_eq!(of_rule(read(MARK))[0].0, ALL);
}

#[test]
fn a_chain_is_followed_with_the_matches_of_the_jump() {
    let jump = read(JUMP);
    assert_eq!(list(&ruleset(&[("fw", vec![jump.clone()]), ("x", vec![])])), []);
    assert_eq!(list(&ruleset(&[("fw", vec![jump.clone()]), ("x", vec![read(ACCEPT)])])), []);
    let udp = Condition { protocol: Some(17), ..Condition::default() };
    let found = list(&ruleset(&[("fw", vec![jump]), ("x", vec![read(ACCEPT), dropping(udp)])]));
    let both = ipv4("10.1.0.1/32", Some("10.2.0.0/16"));
    let wanted = Match { protocol: Some(17), addresses: both, ..Match::default() };
    let why = "rule 2 (handle 9) of chain x of table inet t: drop".to_owned();
    assert_eq!(found, [(Traffic::Matching(wanted), why)]);
    // A chain to which nothing leads has no say.
    assert_eq!(list(&ruleset(&[("fw", vec![]), ("x", vec![read(MARK)])])), []);
}

#[test]
fn endless_chains_apply_to_all_packets() {
    let chains: Vec<(String, Vec<Rule>)> = (0..15)
        .map(|depth| {
            let target = format!("c{}", depth + 1);
            let jump = Rule { targets: vec![Target::anyhow(&target)], ..Rule::default() };
            (if depth == 0 { "fw".into() } else { format!("c{depth}") }, vec![jump; 10])
        })
        .collect();
    let chains: Vec<_> = chains.iter().map(|(name, rules)| (name.as_str(), rules.clone())).collect();
    let found = list(&ruleset(&chains));
    assert_eq!(found, [(ALL, "chain fw of table inet t leads to more than 50000 rules".to_owned())]);
}

#[test]
fn interfaces_by_name() {
    let named = |name: &str| Some(Device::Name(name.into()));
    let matching =
        |condition: Condition| of_rule(dropping(condition)).into_iter().map(|(traffic, _)| traffic);
    let only = |condition| matching(condition).next();
    let input = |name| Condition { input: named(name), ..Condition::default() };
    assert_eq!(only(input("eth0")), Some(Traffic::In(2)));
    assert_eq!(only(input("eth9")), None, "no packet comes from an interface that is not there");
    assert_eq!(only(input("red")), Some(ALL), "packets of all members of a VRF");
    let output = |name| Condition { output: named(name), ..Condition::default() };
    assert_eq!(only(output("eth1")), Some(Traffic::Out(3)));
    assert_eq!(only(output("eth9")), None);
    let both = Condition { output: named("eth1"), ..input("eth0") };
    assert_eq!(only(both), Some(Traffic::In(2)));
    let six = Condition { family: Some(Family::V6), ..output("eth1") };
    assert_eq!(only(six), Some(Traffic::Out(3)));
}

#[test]
fn ports_count_only_if_the_protocol_is_known() {
    let ports = |protocol| {
        let condition = Condition { protocol, destination_ports: Some(53..=53), ..Condition::default() };
        of_rule(dropping(condition)).remove(0).0
    };
    assert_eq!(ports(None), ALL);
    let udp = Match { protocol: Some(17), destination_ports: Some(53..=53), ..Match::default() };
    assert_eq!(ports(Some(17)), Traffic::Matching(udp));
    let sctp = Match { protocol: Some(132), ..Match::default() };
    assert_eq!(ports(Some(132)), Traffic::Matching(sctp));
}

#[test]
fn ingress_chains_apply_to_upper_interfaces() {
    let device = |name: &str| DeviceName::Exactly(name.into());
    let mut ruleset = ruleset(&[("fw", vec![dropping(Condition::default())])]);
    ruleset.bases[0].place = Place::Ingress(vec![device("eth0"), device("eth9")]);
    let traffic =
        |ruleset: &Ruleset| list(ruleset).into_iter().map(|(traffic, _)| traffic).collect::<Vec<_>>();
    assert_eq!(traffic(&ruleset), [Traffic::In(2), Traffic::In(4)]);
    ruleset.bases[0].place = Place::Egress(vec![device("eth1")]);
    assert_eq!(traffic(&ruleset), [Traffic::Out(3)]);
    ruleset.bases[0].place = Place::Egress(vec![DeviceName::Prefix("eth".into())]);
    assert_eq!(traffic(&ruleset), [ALL]);
    ruleset.chains.clear();
    assert_eq!(traffic(&ruleset), []);
    ruleset.bases[0].drops = true;
    assert_eq!(traffic(&ruleset), [ALL]);
}

#[test]
fn flowtables_apply_at_ingress() {
    let devices = vec![DeviceName::Exactly("eth0".into()), DeviceName::Exactly("eth9".into())];
    let flowtable = Flowtable { table: table(nfproto::INET), name: "f".into(), devices };
    let why = || "flowtable f of table inet t".to_owned();
    let listed = list(&Ruleset { flowtables: vec![flowtable], ..Ruleset::default() });
    assert_eq!(listed, [(Traffic::In(2), why()), (Traffic::In(4), why())]);
}

#[test]
fn truncated_rules_cause_no_panic() {
    for hex in [NARROW, CT_STATE, JUMP, SET, BOTH_PORTS, RANGE, MARK, MASQUERADE] {
        let whole = bytes(hex);
        for end in 0..whole.len() {
            let _any = rule::read(None, Attributes::new(&whole[..end]));
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0xff;
            let _any = rule::read(None, Attributes::new(&changed));
        }
    }
}
