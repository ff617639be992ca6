use bm_frame::{FramePool, Freelist};
use bm_link::Link;
use bm_stats::{Registry, Scope};
use bm_vlb::address::{Port, Sample, To};
use bm_vlb::balancer::Peer;
use bm_vlb::membership::Epoch;
use bm_vlb::quota::Mode;

use super::*;

const OWN: u16 = 5;
/// The other nodes; the link to each is its place here.
const NODES: [u16; 3] = [1, 2, 7];

fn node(number: u16) -> Node {
    Node::new(number).expect("small")
}

fn to(output: u16) -> Destination {
    let port = Port::new(0).expect("small");
    Destination { epoch: Epoch::new(3), output: node(output), port, to: To::Neighbor(9) }
}

/// A UDP packet of flow `flow` for an output node, as the router leaves it.
fn frame(output: u16, flow: u8, length: usize) -> Vec<u8> {
    let source = Source { input: node(OWN), via: None, sample: None }.mac();
    let mut frame = [&to(output).mac().0[..], &source.0, &[8, 0]].concat();
    let total = (length - 14) as u16;
    frame.extend([0x45, 0, (total >> 8) as u8, total as u8, 0, 0, 0, 0, 63, 17, 0, 0]);
    frame.extend([10, 0, 0, flow, 10, 0, 1, 1, 0x30, flow, 0x12, 0x34, 0, 8, 0, 0]);
    frame.resize(length, 0xee);
    frame
}

struct Lab {
    app: Balancing,
    links: Vec<Link>,
    frames: Freelist,
    registry: Registry,
    peers: Arc<PublishedPeers>,
}

impl Lab {
    fn new(mode: Mode, input_bps: u64) -> Self {
        let registry = Registry::anonymous(128).unwrap();
        let peers = Arc::new(PublishedPeers::new(8));
        let scope = Scope::Balancer { worker: 0 };
        let counts = BalancingCounters {
            account: Account::open(&registry, scope).unwrap(),
            counters: Counters::open(&registry, scope).unwrap(),
        };
        let settings = Settings { mode, ..Settings::new(node(OWN), input_bps) };
        let link = |number: &u16| FabricPort { name: format!("fab{number}"), node: Some(node(*number)) };
        let links: Vec<_> = NODES.iter().map(link).collect();
        let names: Vec<_> = links.iter().map(|link| link.name.clone()).collect();
        let plan = BalancingPlan { settings, links, peers: peers.clone(), workers: 1 };
        let mut app = Balancing::new(plan, 0, counts);
        app.connect(&names, &names);
        let links = (0..2 * NODES.len()).map(|_| Link::new()).collect();
        let frames = Freelist::new(FramePool::new(4096, 2048).unwrap(), 256);
        let lab = Self { app, links, frames, registry, peers };
        lab.up(&NODES);
        lab
    }

    /// Makes these links the ones that are up.
    fn up(&self, nodes: &[u16]) {
        let mut peers = [Peer::default(); 8];
        nodes.iter().for_each(|at| {
            peers[usize::from(*at)] = Peer { capacity_bps: 1_000_000_000, transit: true };
        });
        self.peers.publish(&peers, &[]);
    }

    /// Pushes frames that the router has put on the links to their output nodes; returns what leaves, by link.
    fn push(&mut self, frames: &[Vec<u8>], now_ns: u64) -> Vec<Vec<Vec<u8>>> {
        for bytes in frames {
            let output =
                Destination::parse(Mac(*bytes.first_chunk().unwrap())).map_or(1, |to| to.output.number());
            let at = NODES.iter().position(|node| *node == output).unwrap_or(0);
            let frame = self.frames.allocate_with(bytes).unwrap();
            self.links[at].transmit(frame).unwrap();
        }
        let (inputs, outputs) = ([0, 1, 2], [3, 4, 5]);
        let mut io = Io::new(&mut self.links, &inputs, &outputs, &mut self.frames, now_ns);
        self.app.push(&mut io);
        let mut taken = Vec::new();
        for link in &mut self.links[NODES.len()..] {
            let mut of_link = Vec::new();
            while let Some(frame) = link.receive() {
                of_link.push(frame.data().to_vec());
                self.frames.free(frame);
            }
            taken.push(of_link);
        }
        taken
    }

    fn counter(&self, name: &str) -> u64 {
        let name = format!("balancer/0/{name}");
        self.registry.counters().iter().filter(|(other, _)| *other == name).map(|(_, value)| value).sum()
    }
}

fn source(frame: &[u8]) -> Source {
    Source::parse(Mac(*frame[6..].first_chunk().unwrap())).unwrap()
}

#[test]
fn only_the_source_mac_is_written() {
    let mut lab = Lab::new(Mode::DirectOnly, 1_000_000_000);
    let sent = frame(2, 1, 200);
    let [one, two, seven] = &lab.push(&[sent.clone(), sent.clone()], 1_000)[..] else {
        panic!("three links")
    };
    assert_eq!((one.len(), two.len(), seven.len()), (0, 2, 0));
    for (sequence, frame) in (0..).zip(two) {
        assert_eq!((&frame[..6], &frame[12..]), (&sent[..6], &sent[12..]));
        let Source { input, via, sample } = source(frame);
        assert_eq!((input, via, sample.map(|sample| sample.sequence)), (node(OWN), None, Some(sequence)));
    }
    assert_eq!(["received", "sent", "direct", "sampled"].map(|name| lab.counter(name)), [2; 4]);
}

#[test]
fn packets_beyond_the_quota_go_over_all_intermediates() {
    // R/N is 1 Mbit/s, the quota 2: of each millisecond of 4 Mbit/s (500 bytes) half has to go elsewhere.
    let mut lab = Lab::new(Mode::default(), 4_000_000);
    let mut counts = [0; 3];
    for ms in 0..2000u64 {
        // Each packet a flowlet of its own.
        let frames = [frame(2, ms as u8, 238), frame(2, (ms + 128) as u8, 238)];
        for (count, frames) in counts.iter_mut().zip(lab.push(&frames, (ms + 1) * 1_000_000)) {
            *count += frames.len();
            for frame in frames {
                let via = source(&frame).via;
                assert_eq!(Mac(*frame.first_chunk().unwrap()), to(2).mac());
                assert!(via.is_none_or(|via| NODES.contains(&via.number()) && via != node(2)));
            }
        }
    }
    let [one, direct, seven] = counts;
    assert_eq!(one + direct + seven, 4000);
    assert!((1900..2150).contains(&direct), "{counts:?}");
    assert!(one.abs_diff(seven) < 60, "{counts:?}");
    assert_eq!(lab.counter("direct"), direct as u64);
    assert_eq!(lab.counter("intermediate"), (one + seven) as u64);
    assert_eq!(lab.counter("sent"), 4000);
}

#[test]
fn below_the_quota_everything_is_direct() {
    let mut lab = Lab::new(Mode::default(), 4_000_000);
    for ms in 0..500u64 {
        let sent = lab.push(&[frame(2, ms as u8, 200)], (ms + 1) * 1_000_000);
        assert_eq!(sent[1].len(), 1, "at {ms} ms");
    }
    assert_eq!((lab.counter("direct"), lab.counter("intermediate")), (500, 0));
}

#[test]
fn a_lost_link_moves_packets_and_without_any_they_are_dropped() {
    let mut lab = Lab::new(Mode::default(), 1_000_000_000);
    lab.up(&[1, 7]);
    let over: usize = lab.push(&[frame(2, 1, 100), frame(2, 2, 100)], 1_000).iter().map(Vec::len).sum();
    assert_eq!((over, lab.counter("intermediate")), (2, 2));
    lab.up(&[2]);
    assert_eq!(lab.push(&[frame(2, 1, 100)], 2_000)[1].len(), 1);
    lab.up(&[]);
    assert!(lab.push(&[frame(2, 1, 100), frame(1, 1, 100)], 3_000).iter().all(Vec::is_empty));
    assert_eq!((lab.counter("drop/interface_down"), lab.counter("received")), (2, 5));
    assert_eq!(lab.counter("sent") + 2, 5);
}

#[test]
fn frames_that_are_not_for_another_node_stay_as_they_are() {
    let mut lab = Lab::new(Mode::Classic, 1_000_000_000);
    let foreign = [&[2, 0, 0, 0, 0, 1][..], &[2; 6], &[8, 0], &[0; 50]].concat();
    let arp = [&to(2).mac().0[..], &[2; 6], &[8, 6], &[0; 50]].concat();
    let sent = lab.push(&[foreign.clone(), arp], 1_000);
    assert!(sent[0].contains(&foreign), "{sent:?}");
    assert_eq!(sent.iter().map(Vec::len).sum::<usize>(), 2);
}

#[test]
fn workers_number_different_flows() {
    let sampled = |worker| {
        let peers = Arc::new(PublishedPeers::new(8));
        peers.publish(&[Peer { capacity_bps: 1, transit: true }; 8], &[]);
        let mut balancer = Balancer::new(Settings::new(node(OWN), 1_000_000_000));
        PeersCopy::new(&peers).bring(&peers, &mut balancer, 0);
        let mut chooser = Chooser { balancer, sampler: Sampler::default(), worker, workers: 2, sampled: 0 };
        let flows = (0..200u8).filter_map(|flow| match chooser.source(node(OWN), &frame(2, flow, 100), 1) {
            LinkChoice::To(_, Source { sample: Some(Sample { flow, .. }), .. }) => Some(flow),
            _ => None,
        });
        flows.collect::<std::collections::BTreeSet<_>>()
    };
    let (one, two) = (sampled(0), sampled(1));
    assert!(one.len() > 20 && two.len() > 20 && one.is_disjoint(&two), "{one:?} {two:?}");
}
