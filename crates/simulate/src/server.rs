//! A server in a run: what it knows, what it has handled, and how it numbers its neighbors.

use bm_vlb::balancer::{Balancer, Settings};
use bm_vlb::{Accepted, Epoch, Node, OrderCounter, Port, Sampler, Topology};

use crate::links::Queue;
use crate::options::Options;
use crate::random::Random;
use crate::traffic::TrafficSource;

/// Minimum gap between flowlets.
pub(crate) const DELTA_NS: u64 = 50_000;
/// Seed of the flow hash.
const FLOW_SEED: u64 = 0x7666_6c62;

/// A node of the simulated cluster, with its balancer and counters.
pub(crate) struct Server {
    pub(crate) balancer: Balancer,
    pub(crate) sampler: Sampler,
    pub(crate) order: OrderCounter,
    pub(crate) source: Option<TrafficSource>,
    pub(crate) tables: Accepted<Epoch>,
    /// The epoch of the frames that it sends, and the membership that goes with it.
    pub(crate) sends: (Epoch, usize),
    pub(crate) is_up: bool,
    pub(crate) hears_store: bool,
    /// How far its clock is ahead.
    pub(crate) skew_ns: u64,
    pub(crate) ports: Queue,
    /// The output ports of a single router with the same traffic.
    pub(crate) ideal: Queue,
    /// Whether these would have had a long queue.
    pub(crate) is_overloaded: bool,
    /// Packets received for its output ports, and those of them that were sent.
    pub(crate) to_it: (u64, u64),
    /// Bytes that it has handled: in, out, or in transit.
    pub(crate) handled: u64,
    pub(crate) offered: u64,
    /// Bytes that its input has offered to node 0, and those of them that were delivered.
    pub(crate) to_hot: (u64, u64),
}

impl Server {
    /// A server that has just started, with the first epoch.
    pub(crate) fn new(node: Node, options: &Options, topology: &Topology, random: &mut Random) -> Self {
        let is_relay = topology.is_relay(node);
        let settings = Settings {
            mode: options.mode,
            delta_ns: options.delta_ns.unwrap_or(DELTA_NS),
            seed: FLOW_SEED,
            burst_bytes: options.burst_bytes,
            flowlets: if is_relay { 1 } else { 4096 },
            ..Settings::new(node, options.input_bps)
        };
        let source = if is_relay { None } else { TrafficSource::new(node, options, FLOW_SEED) };
        Self {
            balancer: Balancer::new(settings),
            sampler: Sampler::default(),
            order: OrderCounter::default(),
            source,
            tables: Accepted::new(Epoch::default(), Epoch::default()),
            sends: (Epoch::default(), 0),
            is_up: true,
            hears_store: true,
            skew_ns: random.below(3_600_000_000_000),
            ports: Queue::default(),
            ideal: Queue::default(),
            is_overloaded: false,
            to_it: (0, 0),
            handled: 0,
            offered: 0,
            to_hot: (0, 0),
        }
    }
}

/// The index of a neighbor in an epoch: a different one in each, so that using the table of another epoch is noticed.
pub(crate) fn index(neighbor: u16, epoch: Epoch) -> u16 {
    neighbor.wrapping_add(u16::from(epoch.number()).wrapping_mul(37))
}

/// The neighbor with an index in an epoch.
pub(crate) fn neighbor(index: u16, epoch: Epoch) -> u16 {
    index.wrapping_sub(u16::from(epoch.number()).wrapping_mul(37))
}

/// The port of a neighbor.
pub(crate) fn port(neighbor: u16) -> Port {
    Port::new((neighbor % u16::from(Port::COUNT)) as u8).unwrap_or(FIRST)
}

const FIRST: Port = match Port::new(0) {
    Some(port) => port,
    None => panic!("there is a port 0"),
};
