//! The balancer of an input node: which packets go straight to their output node, and over which node the others go.
//!
//! ```text
//!             flowlet known, its path has room ─────────────► the same path
//! packet ─┤
//!             new, or its path is full ─► quota of the output ─► direct
//!                                            └─ used up ─► next intermediate with room ─► via
//! ```
//!
//! Each output has a token bucket for its quota, and each intermediate one for what this input may send over it. The former
//! are deeper, so that a burst to one output stays on its link. A new flowlet goes direct only if there are tokens for
//! several packets: else each flowlet that begins while the quota is used up would take the few there are, and be split a
//! packet later.
//!
//! A choice looks at a few intermediates at most and allocates nothing.

use bm_wire::flow;

use crate::address::Node;
use crate::bucket::Bucket;
use crate::flowlet::{FlowletPath, Flowlets};
use crate::quota::{Mode, Rates, rates};

/// How many intermediates are tried for one packet.
const PROBES: usize = 8;
/// What the bucket of a quota holds: what it gets in this time, but no more than so many of the smallest buckets. Bursts to
/// one output are the rule where traffic is uniform, while traffic that exceeds the quota all the time never fills it.
const QUOTA_NS: u64 = 100_000_000;
const QUOTA_DEPTH: u64 = 16;
/// What an intermediate may get beyond its share, so that uneven packet sizes find room: a 64th.
const SLACK: u64 = 64;

/// What does not change while a balancer exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// This node.
    pub own: Node,
    /// R: what all external ports of this node receive together.
    pub input_bps: u64,
    /// How packets are distributed.
    pub mode: Mode,
    /// Size of the flowlet table.
    pub flowlets: u32,
    /// The gap after which a flow may take another path; 0: each packet for itself.
    pub delta_ns: u64,
    /// Seed of the flow hash and of the order of intermediates. It must be another than that of ECMP, else all flows that
    /// have the same next hop would be in the same part of the flowlet table.
    pub seed: u64,
    /// How long a bucket can collect tokens.
    pub burst_ns: u64,
    /// The least depth of a bucket; a few times the largest frame.
    pub burst_bytes: u64,
}

impl Settings {
    /// The depth of a bucket with this rate, in bytes.
    fn depth(&self, bps: u64) -> u64 {
        let bytes = u128::from(bps) * u128::from(self.burst_ns) / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX).max(self.burst_bytes)
    }

    /// Usual settings of a node.
    pub fn new(own: Node, input_bps: u64) -> Self {
        Self {
            own,
            input_bps,
            mode: Mode::default(),
            flowlets: 4096,
            delta_ns: 1_000_000,
            seed: 1,
            burst_ns: 2_000_000,
            burst_bytes: 6_000,
        }
    }
}

/// What an input knows about another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Capacity of the live links to it; 0 if there is none.
    pub capacity_bps: u64,
    /// Whether it forwards for others: it does not while it drains.
    pub transit: bool,
}

/// A packet to be distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its flow, as [`Balancer::flow`] says.
    pub flow: u32,
    /// Its output node.
    pub output: Node,
    /// Its length on the link.
    pub bytes: u32,
}

/// Where a packet goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// To its output node.
    Direct,
    /// To this intermediate.
    Via(Node),
    /// Nowhere: there is neither a link to its output node nor an intermediate.
    Unreachable,
}

/// What a balancer has done, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent straight to their output.
    pub direct: u64,
    /// Sent to an intermediate.
    pub via: u64,
    /// Without any way.
    pub unreachable: u64,
    /// First packets of flowlets.
    pub flowlets: u64,
    /// Moved to another path within a flowlet, since theirs was full or gone.
    pub splits: u64,
    /// Sent over an intermediate that was full, as were all others tried.
    pub on_credit: u64,
}

struct PeerState {
    direct: Bucket,
    /// A flowlet begins direct if the bucket has tokens for these bytes.
    begins_with: u64,
    transit: Bucket,
    capacity_bps: u64,
    /// Whether some intermediates cannot reach it.
    broken: bool,
}

impl PeerState {
    /// A node to which nothing may be sent.
    fn unlinked(now_ns: u64) -> Self {
        Self {
            direct: Bucket::new(0, 0, now_ns),
            begins_with: 0,
            transit: Bucket::new(0, 0, now_ns),
            capacity_bps: 0,
            broken: false,
        }
    }
}

/// The balancer of one input node; each worker has its own, with its part of R.
pub struct Balancer {
    settings: Settings,
    peers: Vec<PeerState>,
    /// The intermediates in an order of this node's own, so that nodes which start together choose different ones.
    ring: Vec<u16>,
    /// For each node whether it is in the ring.
    carries: Vec<bool>,
    cursor: usize,
    flowlets: Flowlets,
    /// Links that other nodes have lost: (output, intermediate), sorted.
    broken: Vec<(u16, u16)>,
    counts: Counts,
}

impl Balancer {
    /// A balancer that knows no other node yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            peers: Vec::new(),
            ring: Vec::new(),
            carries: Vec::new(),
            cursor: 0,
            flowlets: Flowlets::new(settings.flowlets, settings.delta_ns),
            broken: Vec::new(),
            counts: Counts::default(),
            settings,
        }
    }

    /// Reserves memory for the state of this many nodes, so that nothing is allocated later.
    pub fn reserve(&mut self, nodes: usize) {
        self.peers.reserve(nodes);
        self.ring.reserve(nodes);
        self.carries.reserve(nodes);
        self.broken.reserve(nodes * nodes);
    }

    /// Sets what is known about all nodes, by number. Quotas change with it; flowlets stay on their paths as long as these
    /// exist. The entry of this node itself does not matter.
    pub fn set_peers(&mut self, peers: &[Peer], now_ns: u64) {
        let own = self.settings.own.index();
        let live = peers.iter().enumerate().filter(|(at, peer)| *at != own && peer.capacity_bps > 0);
        let (mut others, mut total) = (0, 0);
        for (_, peer) in live {
            others += 1;
            total += peer.capacity_bps;
        }
        self.peers.resize_with(peers.len(), || PeerState::unlinked(now_ns));
        for (at, peer) in peers.iter().enumerate() {
            // Classic VLB also chooses the input itself; its share is the average one.
            let capacity = if at == own { total / others.max(1) } else { peer.capacity_bps };
            let rates = rates(self.settings.mode, self.settings.input_bps, capacity, total, others);
            self.set_rates(at, rates, now_ns);
            self.peers[at].capacity_bps = if at == own { 0 } else { peer.capacity_bps };
        }
        let classic = self.settings.mode == Mode::Classic;
        // In the same memory: workers do not allocate.
        self.carries.clear();
        self.carries.extend(
            peers
                .iter()
                .enumerate()
                .map(|(at, peer)| if at == own { classic } else { peer.transit && peer.capacity_bps > 0 }),
        );
        self.ring.clear();
        self.ring.reserve(peers.len());
        self.ring.extend((0..).zip(&self.carries).filter(|(_, carries)| **carries).map(|(at, _)| at));
        shuffle(&mut self.ring, self.settings.seed ^ own as u64);
        self.cursor = 0;
    }

    fn set_rates(&mut self, at: usize, rates: Rates, now_ns: u64) {
        let (settings, peer) = (&self.settings, &mut self.peers[at]);
        let transit = rates.transit_bps + rates.transit_bps / SLACK;
        let (usual, is_new) = (settings.depth(rates.direct_bps), peer.direct.bps() == 0);
        let in_time = u128::from(rates.direct_bps) * u128::from(QUOTA_NS) / 8_000_000_000;
        let most = settings.burst_bytes * QUOTA_DEPTH;
        let deep = usual.max(u64::try_from(in_time).unwrap_or(u64::MAX).min(most));
        peer.direct = peer.direct.changed(rates.direct_bps, deep, now_ns);
        peer.begins_with = usual / 2;
        if is_new {
            peer.direct.lower(usual);
        }
        peer.transit = peer.transit.changed(transit, settings.depth(transit), now_ns);
    }

    /// Sets the links that other nodes have lost: (intermediate, output).
    pub fn set_broken(&mut self, links: &[(Node, Node)]) {
        self.broken.clear();
        self.broken.extend(links.iter().map(|(from, to)| (to.number(), from.number())));
        self.broken.sort_unstable();
        for (at, peer) in self.peers.iter_mut().enumerate() {
            let first = self.broken.partition_point(|&(to, _)| usize::from(to) < at);
            peer.broken = self.broken.get(first).is_some_and(|&(to, _)| usize::from(to) == at);
        }
    }

    /// Sets the gap after which a flow may take another path.
    pub fn set_delta(&mut self, ns: u64) {
        self.settings.delta_ns = ns;
        self.flowlets.set_delta(ns);
    }

    /// The number of a packet's flow.
    #[inline]
    pub fn flow(&self, key: &flow::Key) -> u32 {
        key.hash(self.settings.seed)
    }

    /// What it has done.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The quotas and shares towards a node, as they are now.
    pub fn rates(&self, node: Node) -> Option<Rates> {
        let peer = self.peers.get(node.index())?;
        Some(Rates { direct_bps: peer.direct.bps(), transit_bps: peer.transit.bps() })
    }

    /// Chooses the path of a packet.
    #[inline]
    pub fn choose(&mut self, packet: &Packet, now_ns: u64) -> Choice {
        let output = packet.output.index();
        let choice = match self.settings.mode {
            _ if output >= self.peers.len() => Choice::Unreachable,
            Mode::DirectOnly if self.peers[output].capacity_bps == 0 => Choice::Unreachable,
            Mode::DirectOnly => Choice::Direct,
            Mode::DirectVlb(_) | Mode::Classic => self.balance(packet, now_ns),
        };
        match choice {
            Choice::Direct => self.counts.direct += 1,
            Choice::Via(_) => self.counts.via += 1,
            Choice::Unreachable => self.counts.unreachable += 1,
        }
        choice
    }

    #[inline]
    fn balance(&mut self, packet: &Packet, now_ns: u64) -> Choice {
        let known = self.flowlets.find(packet.flow, now_ns);
        let way = match known {
            Some(way) if self.has_room(way, packet, now_ns) => way,
            _ => match self.begin(packet, known.is_some(), now_ns) {
                Some(way) => way,
                None => return Choice::Unreachable,
            },
        };
        self.flowlets.set(packet.flow, now_ns, way);
        match way {
            FlowletPath::Via(node) if !self.is_end(node, packet) => {
                Node::new(node).map_or(Choice::Unreachable, Choice::Via)
            }
            _ => Choice::Direct,
        }
    }

    /// Spends the tokens of a path, if it exists and has room.
    #[inline]
    fn has_room(&mut self, way: FlowletPath, packet: &Packet, now_ns: u64) -> bool {
        let bucket = match way {
            FlowletPath::Direct => &mut self.peers[packet.output.index()].direct,
            FlowletPath::Via(node) if self.leads_to(node, packet) => {
                &mut self.peers[usize::from(node)].transit
            }
            FlowletPath::Via(_) => return false,
        };
        bucket.refill(now_ns);
        bucket.take(packet.bytes)
    }

    /// The path of a new flowlet, or of the rest of one that was split.
    fn begin(&mut self, packet: &Packet, split: bool, now_ns: u64) -> Option<FlowletPath> {
        if split {
            self.counts.splits += 1;
        } else {
            self.counts.flowlets += 1;
        }
        let PeerState { direct, begins_with, .. } = &mut self.peers[packet.output.index()];
        direct.refill(now_ns);
        if direct.has(*begins_with) && direct.take(packet.bytes) {
            return Some(FlowletPath::Direct);
        }
        if let Some(node) = self.next_with_room(packet, now_ns) {
            return Some(FlowletPath::Via(node));
        }
        let output = &mut self.peers[packet.output.index()];
        output.direct.take_on_credit(packet.bytes);
        (output.capacity_bps > 0).then_some(FlowletPath::Direct)
    }

    /// The next intermediate in turn that has room; if none of those tried has, the one with the most.
    fn next_with_room(&mut self, packet: &Packet, now_ns: u64) -> Option<u16> {
        let mut best: Option<(i64, u16)> = None;
        for _ in 0..PROBES.min(self.ring.len()) {
            let node = self.ring[self.cursor];
            self.cursor = if self.cursor + 1 == self.ring.len() { 0 } else { self.cursor + 1 };
            if !self.leads_to(node, packet) {
                continue;
            }
            let bucket = &mut self.peers[usize::from(node)].transit;
            bucket.refill(now_ns);
            if bucket.take(packet.bytes) {
                return Some(node);
            }
            if best.is_none_or(|(level, _)| bucket.level() > level) {
                best = Some((bucket.level(), node));
            }
        }
        let (_, node) = best?;
        self.counts.on_credit += 1;
        self.peers[usize::from(node)].transit.take_on_credit(packet.bytes);
        Some(node)
    }

    /// Whether a packet over this node reaches its output.
    #[inline]
    fn leads_to(&self, node: u16, packet: &Packet) -> bool {
        let output = &self.peers[packet.output.index()];
        if !self.carries[usize::from(node)] {
            return false;
        }
        if self.is_end(node, packet) {
            return self.settings.mode == Mode::Classic && output.capacity_bps > 0;
        }
        !output.broken || self.broken.binary_search(&(packet.output.number(), node)).is_err()
    }

    /// Whether the node is the packet's input or output: over it means straight to the output.
    #[inline]
    fn is_end(&self, node: u16, packet: &Packet) -> bool {
        node == packet.output.number() || node == self.settings.own.number()
    }
}

/// Puts the nodes into an order that depends on the seed (Fisher and Yates, with SplitMix64).
fn shuffle(nodes: &mut [u16], seed: u64) {
    let mut state = seed;
    for at in (1..nodes.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let random = mixed ^ mixed >> 31;
        let other = flow::choose((random >> 32) as u32, at as u32 + 1);
        nodes.swap(at, other as usize);
    }
}

#[cfg(test)]
mod tests;
