use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::quota::Rule;

const R: u64 = 1_000_000_000;
const BYTES: u32 = 1000;
/// Between two packets of this length at R.
const PAUSE_NS: u64 = 8_000;

fn node(number: u16) -> Node {
    Node::new(number).expect("a node")
}

fn settings(mode: Mode) -> Settings {
    Settings { mode, burst_bytes: 4_000, ..Settings::new(node(0), R) }
}

fn balancer(settings: Settings, nodes: usize) -> Balancer {
    let mut balancer = Balancer::new(settings);
    balancer.set_peers(&vec![Peer { capacity_bps: R, transit: true }; nodes], 0);
    balancer
}

/// Sends at R from many flows to one output for some time; the packets on each way.
fn flood(balancer: &mut Balancer, output: u16, flows: u32, packets: u64, from_ns: u64) -> BTreeMap<u16, u64> {
    let mut ways = BTreeMap::new();
    for at in 0..packets {
        let flow = (at as u32 % flows).wrapping_mul(0x9e37_79b1);
        let packet = Packet { flow, output: node(output), bytes: BYTES };
        match balancer.choose(&packet, from_ns + at * PAUSE_NS) {
            Choice::Direct => *ways.entry(output).or_default() += 1,
            Choice::Via(via) => *ways.entry(via.number()).or_default() += 1,
            Choice::Unreachable => {}
        }
    }
    ways
}

/// A second of R to one output, in shares of R/N by way: a permutation as one input sees it.
fn shares(mode: Mode, nodes: usize) -> BTreeMap<u16, f64> {
    let mut balancer = balancer(settings(mode), nodes);
    let packets = 1_000_000_000 / PAUSE_NS;
    let ways = flood(&mut balancer, 1, 1000, packets, 0);
    ways.into_iter().map(|(way, count)| (way, count as f64 * nodes as f64 / packets as f64)).collect()
}

#[test]
fn all_of_r_to_one_output_is_spread_by_the_quota() {
    for (mode, direct, via) in [
        (Mode::DirectVlb(Rule::OneShare), 1.0, 15.0 / 14.0),
        (Mode::DirectVlb(Rule::TwoShares), 2.0, 1.0),
        (Mode::Classic, 2.0, 1.0),
    ] {
        let shares = shares(mode, 16);
        assert_eq!(shares.len(), 15, "{mode}: {shares:?}");
        assert!((shares[&1] - direct).abs() < 0.06, "{mode}: direct {}", shares[&1]);
        let vias = || shares.iter().filter(|(way, _)| **way != 1).map(|(_, share)| *share);
        assert!(vias().all(|share| (share - via).abs() < 0.05), "{mode}: {shares:?}");
    }
    assert_eq!(shares(Mode::DirectOnly, 16), BTreeMap::from([(1, 16.0)]));
}

#[test]
fn what_fits_the_quota_goes_direct() {
    let mut balancer = balancer(settings(Mode::default()), 16);
    let mut now = 0;
    for round in 0..10_000u32 {
        let packet = Packet { flow: round % 500, output: node(1 + (round % 15) as u16), bytes: BYTES };
        assert_eq!(balancer.choose(&packet, now), Choice::Direct);
        now += PAUSE_NS;
    }
    assert_eq!((balancer.counts().direct, balancer.counts().via), (10_000, 0));
}

#[test]
fn a_flow_keeps_its_way_until_a_gap() {
    let mut balancer = balancer(settings(Mode::default()), 64);
    flood(&mut balancer, 1, 1000, 3000, 0);
    let start = 3000 * PAUSE_NS;
    let packet = |flow| Packet { flow, output: node(1), bytes: 64 };
    // A way over a node: the quota of node 1 is used up.
    let (flow, way) = (0..100)
        .map(|flow| (flow, balancer.choose(&packet(flow), start)))
        .find(|(_, way)| matches!(way, Choice::Via(_)))
        .expect("a packet over an intermediate");
    let steady: BTreeSet<_> =
        (1..50).map(|at| format!("{:?}", balancer.choose(&packet(flow), start + at * 500_000))).collect();
    assert_eq!(steady, BTreeSet::from([format!("{way:?}")]));
    let later = start + 49 * 500_000 + 1_002_000;
    assert_eq!(balancer.choose(&packet(flow), later), Choice::Direct, "the quota has room again");
}

#[test]
fn a_flow_is_split_only_if_its_way_is_full() {
    // One flow at R: its way takes R/N, so it is split again and again, and no way gets more than its share.
    let mut one = balancer(settings(Mode::default()), 8);
    let ways = flood(&mut one, 1, 1, 20_000, 0);
    assert!(one.counts().splits > 0 && ways.values().max() < Some(&6_000), "{ways:?}");
    // Below its share it stays whole, however many packets it has.
    let mut slow = balancer(settings(Mode::default()), 8);
    let packet = Packet { flow: 3, output: node(1), bytes: BYTES };
    (0..20_000u64).for_each(|at| {
        slow.choose(&packet, at * PAUSE_NS * 8);
    });
    assert_eq!((slow.counts().splits, slow.counts().flowlets), (0, 1));
}

#[test]
fn nodes_that_drain_or_are_gone_carry_nothing() {
    let mut balancer = balancer(settings(Mode::default()), 8);
    flood(&mut balancer, 1, 100, 2000, 0);
    let mut peers = vec![Peer { capacity_bps: R, transit: true }; 8];
    peers[2].transit = false;
    peers[3].capacity_bps = 0;
    balancer.set_peers(&peers, 2000 * PAUSE_NS);
    balancer.set_broken(&[(node(4), node(1)), (node(5), node(6))]);
    let ways = flood(&mut balancer, 1, 100, 2000, 2000 * PAUSE_NS);
    assert_eq!(ways.keys().copied().collect::<Vec<_>>(), [1, 5, 6, 7]);
    assert_eq!(balancer.rates(node(3)), Some(Rates { direct_bps: 0, transit_bps: 0 }));
    assert_eq!(balancer.rates(node(2)).map(|rates| rates.direct_bps), Some(R * 2 / 7));
}

#[test]
fn an_output_without_link_is_reached_over_others() {
    let mut balancer = balancer(settings(Mode::default()), 4);
    let mut peers = vec![Peer { capacity_bps: R, transit: true }; 4];
    peers[1].capacity_bps = 0;
    balancer.set_peers(&peers, 0);
    let ways = flood(&mut balancer, 1, 100, 1000, 0);
    assert_eq!(ways.keys().copied().collect::<Vec<_>>(), [2, 3]);
    balancer.set_peers(&[Peer::default(); 4], 0);
    let packet = Packet { flow: 1, output: node(2), bytes: 64 };
    assert_eq!(balancer.choose(&packet, 0), Choice::Unreachable);
    assert_eq!(balancer.choose(&Packet { output: node(9), ..packet }, 0), Choice::Unreachable);
    assert_eq!(balancer.counts().unreachable, 2);
}

#[test]
fn without_intermediates_all_goes_direct() {
    let mut pair = balancer(settings(Mode::default()), 2);
    assert_eq!(flood(&mut pair, 1, 10, 1000, 0), BTreeMap::from([(1, 1000)]));
}

#[test]
fn slower_links_carry_less() {
    let mut balancer = Balancer::new(settings(Mode::default()));
    let mut peers = vec![Peer { capacity_bps: 4 * R, transit: true }; 8];
    peers[2].capacity_bps = R;
    balancer.set_peers(&peers, 0);
    let ways = flood(&mut balancer, 1, 1000, 50_000, 0);
    let ratio = ways[&3] as f64 / ways[&2] as f64;
    assert!((3.5..4.5).contains(&ratio), "{ways:?}");
}

#[test]
fn the_flow_of_a_packet_depends_on_the_seed() {
    let key = flow::Key::V4 { source: 1, destination: 2, ports: (3, 4), protocol: 17 };
    let of = |seed| balancer(Settings { seed, ..settings(Mode::default()) }, 2).flow(&key);
    assert_ne!(of(1), of(2));
    assert_eq!(of(1), key.hash(1));
}
