//! The sources: the packets that external ports of each node receive.
//!
//! Packets come in trains of one flow at the rate of the ports, with pauses between them. The number of packets in a
//! flow follows Zipf's law: one of size n or more is as likely as 1/n. Sizes of frames are IMIX (7 of 64, 4 of 594, 1
//! of 1518).

use bm_vlb::Node;
use bm_wire::flow::Key;

use crate::options::{Matrix, Options};
use crate::random::Random;

/// What a frame takes on a link in addition to its bytes: preamble and gap.
pub const GAP_BYTES: u64 = 20;
/// Number of flows of each class at a time, per node.
const FLOWS: usize = 64;
/// Maximum number of packets in a flow, and in a train.
const FLOW_MAX: u64 = 20_000;
const TRAIN_MAX: u64 = 16;

/// Time for this many bytes at a rate.
#[inline]
pub fn time_ns(bytes: u64, bps: u64) -> u64 {
    bytes * 8_000_000_000 / bps
}

#[derive(Clone, Copy)]
struct Flow {
    hash: u32,
    output: Node,
    left: u64,
}

/// Where the flows of a class go.
#[derive(Clone, Copy)]
enum To {
    One(Node),
    /// All other nodes in turn.
    All,
}

/// A part of what a node receives for other nodes.
struct Class {
    to: To,
    /// Its share of the node's load.
    weight: u64,
    /// Bytes sent, divided by the weight: the class with the lowest value is next.
    sent: u64,
    flows: Vec<Flow>,
}

/// A received packet.
#[derive(Clone, Copy)]
pub struct Arrival {
    /// Number of its flow.
    pub flow: u32,
    /// The output node.
    pub output: Node,
    /// Its length without preamble and gap.
    pub bytes: u16,
}

/// The source of one node.
pub struct TrafficSource {
    own: u16,
    nodes: u16,
    random: Random,
    classes: Vec<Class>,
    next_output: u16,
    /// Class and flow of the train, and how many packets are left of it.
    train: (usize, usize, u64),
    /// Duration of the packets of the train so far.
    train_ns: u64,
    bps: u64,
    load_percent: u64,
    flow_seed: u64,
    flow_count: u32,
}

impl TrafficSource {
    /// The source of a node; `None` if it receives nothing.
    pub fn new(own: Node, options: &Options, flow_seed: u64) -> Option<Self> {
        let nodes = options.terminals() as u16;
        let classes = classes(own.number(), nodes, options.matrix, options.seed)
            .into_iter()
            .filter(|(_, weight)| *weight > 0)
            .map(|(to, weight)| Class { to, weight, sent: 0, flows: Vec::new() });
        let mut random = Random::new(options.seed, 1000 + u64::from(own.number()));
        let mut source = Self {
            own: own.number(),
            nodes,
            classes: classes.collect(),
            next_output: random.below(nodes.into()) as u16,
            train: (0, 0, 0),
            train_ns: 0,
            bps: options.input_bps,
            load_percent: options.load_percent,
            flow_seed,
            flow_count: 0,
            random,
        };
        for class in 0..source.classes.len() {
            for _ in 0..FLOWS {
                let flow = source.new_flow(class);
                source.classes[class].flows.push(flow);
            }
        }
        (!source.classes.is_empty()).then_some(source)
    }

    fn new_flow(&mut self, class: usize) -> Flow {
        let output = match self.classes[class].to {
            To::One(node) => node,
            To::All => self.turn(),
        };
        self.flow_count += 1;
        let key = Key::V4 {
            source: 0x0a00_0000 | u32::from(self.own),
            destination: 0x0b00_0000 | u32::from(output.number()),
            ports: ((self.flow_count >> 16) as u16, self.flow_count as u16),
            protocol: 17,
        };
        let left = ((1 << 32) / (self.random.below(1 << 32) + 1)).clamp(1, FLOW_MAX);
        Flow { hash: key.hash(self.flow_seed), output, left }
    }

    /// The next one of all other nodes.
    fn turn(&mut self) -> Node {
        loop {
            self.next_output = (self.next_output + 1) % self.nodes;
            if let Some(node) = Node::new(self.next_output).filter(|node| node.number() != self.own) {
                return node;
            }
        }
    }

    /// The packet that is received now, and the time in ns until the next one.
    pub fn next(&mut self) -> (Arrival, u64) {
        if self.train.2 == 0 {
            self.begin_train();
        }
        let (class, place, left) = self.train;
        let bytes = match self.random.below(12) {
            0..7 => 64u16,
            7..11 => 594,
            _ => 1518,
        };
        let on_wire = u64::from(bytes) + GAP_BYTES;
        let flow = self.classes[class].flows[place];
        self.classes[class].sent += on_wire * 1_000_000 / self.classes[class].weight;
        self.train = (class, place, left - 1);
        let packet_ns = time_ns(on_wire, self.bps);
        self.train_ns += packet_ns;
        if flow.left <= 1 {
            self.classes[class].flows[place] = self.new_flow(class);
            self.train.2 = 0;
        } else {
            self.classes[class].flows[place].left -= 1;
        }
        let pause = if self.train.2 == 0 { self.pause() } else { 0 };
        (Arrival { flow: flow.hash, output: flow.output, bytes }, packet_ns + pause)
    }

    fn begin_train(&mut self) {
        let classes = 0..self.classes.len();
        let class = classes.min_by_key(|class| self.classes[*class].sent).unwrap_or_default();
        let place = self.random.below(FLOWS as u64) as usize;
        // Half of the trains are single packets.
        let packets = if self.random.one_in(2) { 1 } else { 1 + self.random.below(TRAIN_MAX) };
        self.train = (class, place, packets);
        self.train_ns = 0;
    }

    /// A pause after a train, so that the load is right on average.
    fn pause(&mut self) -> u64 {
        let mean = self.train_ns * (100 - self.load_percent) / self.load_percent;
        self.random.below(2 * mean + 1)
    }
}

fn to(number: u16) -> To {
    Node::new(number).map_or(To::All, To::One)
}

/// What a node sends to which outputs, in millionths of its load.
fn classes(own: u16, nodes: u16, matrix: Matrix, seed: u64) -> Vec<(To, u64)> {
    const ALL: u64 = 1_000_000;
    let others = u64::from(nodes) - 1;
    match matrix {
        Matrix::Uniform => vec![(To::All, ALL)],
        Matrix::Hot if own == 0 => vec![(To::All, ALL)],
        Matrix::Hot => {
            let hot = ALL / others;
            vec![(to(0), hot), (To::All, ALL - hot)]
        }
        Matrix::Permutation => {
            let by = 1 + Random::new(seed, 7).below(others) as u16;
            vec![(to((own + by) % nodes), ALL)]
        }
        Matrix::Adversarial => {
            let share = ALL / u64::from(nodes);
            match own {
                0 => vec![(to(1), share), (to(2), ALL - share)],
                // Output 1 cannot send more than R.
                3 => vec![(to(1), ALL - share)],
                _ => Vec::new(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// What a source offers to each output in a while, and in total, in percent of R.
    fn offered(options: &Options, own: u16) -> (BTreeMap<u16, f64>, f64) {
        let own = Node::new(own).expect("a node");
        let Some(mut source) = TrafficSource::new(own, options, 3) else { return (BTreeMap::new(), 0.0) };
        let (mut bytes, mut time) = (BTreeMap::<u16, u64>::new(), 0);
        for _ in 0..200_000 {
            let (arrival, after) = source.next();
            *bytes.entry(arrival.output.number()).or_default() += u64::from(arrival.bytes) + GAP_BYTES;
            time += after;
        }
        let percent = |bytes: u64| time_ns(bytes, options.input_bps) as f64 / time as f64 * 100.0;
        let total = percent(bytes.values().sum());
        (bytes.into_iter().map(|(output, bytes)| (output, percent(bytes))).collect(), total)
    }

    #[test]
    fn sources_follow_the_traffic_matrix() {
        let options = |matrix, load_percent| Options { matrix, load_percent, ..Options::default() };
        let (uniform, load) = offered(&options(Matrix::Uniform, 95), 3);
        assert!(uniform.len() == 15 && (load - 95.0).abs() < 1.0, "{uniform:?} {load}");
        let (permutation, load) = offered(&options(Matrix::Permutation, 100), 3);
        assert!(permutation.len() == 1 && load > 99.99, "{permutation:?} {load}");
        let (adversarial, _) = offered(&options(Matrix::Adversarial, 100), 0);
        assert!(
            (adversarial[&1] - 6.25).abs() < 0.1 && (adversarial[&2] - 93.75).abs() < 0.1,
            "{adversarial:?}"
        );
        assert!(offered(&options(Matrix::Adversarial, 100), 5).0.is_empty());
        let (hot, _) = offered(&options(Matrix::Hot, 90), 5);
        assert!((10.0..13.5).contains(&hot[&0]), "{hot:?}");
    }

    #[test]
    fn each_output_of_a_permutation_has_one_input() {
        for seed in 0..50 {
            let targets: std::collections::BTreeSet<u16> = (0..9)
                .map(|own| match classes(own, 9, Matrix::Permutation, seed)[0].0 {
                    To::One(node) if node.number() != own => node.number(),
                    _ => panic!("node {own} sends to itself or to all"),
                })
                .collect();
            assert_eq!(targets.len(), 9);
        }
    }
}
