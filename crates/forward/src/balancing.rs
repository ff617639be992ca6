//! Chooses the fabric link of each packet for another node of the cluster, on the worker that has routed it.
//!
//! ```text
//! router ─► link of the fabric interface that the next hop names ─► Balancing ─┬─► straight to the output node
//!                                                                              └─► over an intermediate
//! ```
//!
//! It comes after the router: the packet has been checked, looked up and rewritten once, and its destination MAC says
//! the output node. Only the source MAC is written here: the intermediate, and for some flows a sequence number. A worker
//! without fabric links has no such app.

use std::sync::Arc;

use bm_frame::{BURST, Burst};
use bm_graph::{App, Io};
use bm_stats::{Account, Counters, Entry, Reason};
use bm_vlb::address::{Destination, Node, Source};
use bm_vlb::balancer::{Balancer, Choice, Counts, Packet, Settings};
use bm_vlb::published::{NO_LINK, PeersCopy, PublishedPeers};
use bm_vlb::reorder::Sampler;
use bm_wire::ethernet::{HEADER_LEN, Mac, ethertype};
use bm_wire::flow::{self, Policy};
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;

use crate::output::NO_OUTPUT;

/// Bytes of a frame on a link beyond its contents: preamble, checksum, gap between frames.
const ON_THE_LINK: usize = 8 + 4 + 12;

bm_stats::counter_kind! {
    /// What a balancer has done, in packets.
    pub enum BalancingCounter {
        /// Sent straight to their output node.
        Direct = "direct",
        /// Sent to an intermediate.
        Intermediate = "intermediate",
        /// First packets of flowlets.
        Flowlets = "flowlets",
        /// Moved to another path within a flowlet, since theirs was full or gone.
        Split = "split",
        /// Sent over an intermediate that had more than its share, as all others tried.
        OverShare = "over_share",
        /// Numbered, so that the output node can count those that arrive late.
        Sampled = "sampled",
    }
}

/// A fabric link, as workers use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricPort {
    /// Name of the interface, and of the links of this app.
    pub name: String,
    /// The node at the other end; `None` while it is no member.
    pub node: Option<Node>,
}

/// What the workers of a node share.
#[derive(Clone)]
pub struct BalancingPlan {
    /// For the balancer of one worker: with its part of what the external ports receive.
    pub settings: Settings,
    /// The fabric links.
    pub links: Vec<FabricPort>,
    /// What is known about other nodes.
    pub peers: Arc<PublishedPeers>,
    /// How many workers there are.
    pub workers: usize,
}

/// Where a worker's balancer counts.
pub struct BalancingCounters {
    /// Frames from the router, which are sent or dropped.
    pub account: Account,
    /// What was chosen.
    pub counters: Counters<BalancingCounter>,
}

/// The app.
pub struct Balancing {
    own: Node,
    links: Vec<FabricPort>,
    /// For each node the index of the link to it; none has that of [`NO_OUTPUT`].
    link_to: Vec<u16>,
    /// For each input the index of its link, and for each link its output.
    inputs: Vec<u16>,
    outputs: Vec<u16>,
    peers: Arc<PublishedPeers>,
    copy: PeersCopy,
    choose: Chooser,
    counts: BalancingCounters,
    counted: Counts,
    work: Box<BurstRoom>,
}

struct BurstRoom {
    burst: Burst,
    between: Burst,
    /// For each frame the index of its link.
    ways: [u16; BURST],
}

/// What a choice depends on.
struct Chooser {
    balancer: Balancer,
    sampler: Sampler,
    /// Of the sampled flows, this worker numbers those with this remainder.
    worker: usize,
    workers: usize,
    sampled: u64,
}

impl Balancing {
    /// The balancer of the worker with this number.
    pub fn new(plan: BalancingPlan, worker: usize, counts: BalancingCounters) -> Self {
        let BalancingPlan { settings, links, peers, workers } = plan;
        let mut balancer = Balancer::new(settings);
        balancer.reserve(peers.nodes());
        let mut link_to = vec![NO_OUTPUT; peers.nodes()];
        for (at, link) in (0..).zip(&links) {
            if let Some(place) = link.node.and_then(|node| link_to.get_mut(node.index())) {
                *place = at;
            }
        }
        Self {
            own: settings.own,
            link_to,
            inputs: Vec::new(),
            outputs: Vec::new(),
            copy: PeersCopy::new(&peers),
            peers,
            choose: Chooser {
                balancer,
                sampler: Sampler::default(),
                worker,
                workers: workers.max(1),
                sampled: 0,
            },
            counts,
            counted: Counts::default(),
            work: Box::new(BurstRoom { burst: Burst::new(), between: Burst::new(), ways: [0; BURST] }),
            links,
        }
    }

    /// Chooses for the frames of a burst that the router has put on the link with this index.
    #[inline(never)]
    fn choose_links(&mut self, link: u16, now_ns: u64) {
        let Self { own, link_to, choose, work, .. } = self;
        let BurstRoom { burst, ways, .. } = &mut **work;
        for (frame, way) in burst.places_mut().iter_mut().zip(ways) {
            let Some(frame) = frame else { continue };
            *way = match choose.source(*own, frame.data(), now_ns) {
                LinkChoice::AsItIs => link,
                LinkChoice::Nowhere => NO_OUTPUT,
                LinkChoice::To(next, source) => {
                    if let Some(place) = frame.data_mut().get_mut(6..12) {
                        place.copy_from_slice(&source.mac().0);
                    }
                    link_to.get(next.index()).copied().unwrap_or(NO_OUTPUT)
                }
            };
        }
    }

    /// Members may have changed, and with them the nodes to which links lead.
    #[cold]
    fn take_links(&mut self) {
        for (place, link) in self.link_to.iter_mut().zip(self.copy.links()) {
            if *link != NO_LINK {
                *place = *link;
            }
        }
    }

    /// Drops the frames of the burst that could not be sent.
    #[cold]
    fn lose_rest(&mut self, io: &mut Io<'_>) {
        let Self { work, outputs, counts, .. } = self;
        let BurstRoom { burst, ways, .. } = &mut **work;
        for (frame, way) in burst.places_mut().iter_mut().zip(ways) {
            let Some(frame) = frame.take() else { continue };
            let has_link = outputs.get(usize::from(*way)).is_some_and(|output| *output != NO_OUTPUT);
            counts.account.drop(if has_link { Reason::LinkFull } else { Reason::InterfaceDown }, 1);
            io.frames.free(frame);
        }
    }

    /// Adds what the balancer has done since the last call.
    fn count(&mut self) {
        let (now, before) = (self.choose.balancer.counts(), self.counted);
        let add = |counter, now: u64, before: u64| {
            if now != before {
                self.counts.counters.add(counter, now - before);
            }
        };
        add(BalancingCounter::Direct, now.direct, before.direct);
        add(BalancingCounter::Intermediate, now.via, before.via);
        add(BalancingCounter::Flowlets, now.flowlets, before.flowlets);
        add(BalancingCounter::Split, now.splits, before.splits);
        add(BalancingCounter::OverShare, now.on_credit, before.on_credit);
        add(BalancingCounter::Sampled, std::mem::take(&mut self.choose.sampled), 0);
        self.counted = now;
    }
}

/// Where a frame goes.
enum LinkChoice {
    /// It is not for another node: as the router has addressed it.
    AsItIs,
    /// There is no way to its output node.
    Nowhere,
    /// To this node first, with this source address.
    To(Node, Source),
}

impl Chooser {
    #[inline]
    fn source(&mut self, own: Node, frame: &[u8], now_ns: u64) -> LinkChoice {
        let to = frame.first_chunk().and_then(|to| Destination::parse(Mac(*to)).ok());
        let Some(output) = to.map(|to| to.output).filter(|output| *output != own) else {
            return LinkChoice::AsItIs;
        };
        let flow = self.flow(frame);
        let bytes = u32::try_from(frame.len() + ON_THE_LINK).unwrap_or(u32::MAX);
        let (next, via) = match self.balancer.choose(&Packet { flow, output, bytes }, now_ns) {
            Choice::Direct => (output, None),
            Choice::Via(node) => (node, Some(node)),
            Choice::Unreachable => return LinkChoice::Nowhere,
        };
        // Workers number different flows, since each counts by itself.
        let is_mine = (flow >> 24) as usize % self.workers == self.worker;
        let sample = if is_mine { self.sampler.sample(flow, now_ns) } else { None };
        self.sampled += u64::from(sample.is_some());
        LinkChoice::To(next, Source { input: own, via, sample })
    }

    /// The number of a packet's flow. Packets that are not IP are one flow.
    #[inline]
    fn flow(&self, frame: &[u8]) -> u32 {
        let Some((header, packet)) = frame.split_at_checked(HEADER_LEN) else { return 0 };
        let key = match u16::from_be_bytes([header[12], header[13]]) {
            ethertype::IPV4 => Ipv4::parse(packet).ok().map(|ip| flow::ipv4(&ip, Policy::Ports)),
            ethertype::IPV6 => Ipv6::parse(packet).ok().map(|ip| flow::ipv6(&ip, Policy::Ports)),
            _ => None,
        };
        key.map_or(0, |key| self.balancer.flow(&key))
    }
}

impl App for Balancing {
    /// # Panics
    /// If an input does not have the name of a fabric link: its frames would never be processed.
    fn connect(&mut self, inputs: &[String], outputs: &[String]) {
        let unknown = "each link to the balancer has the name of a fabric link";
        self.inputs.clear();
        for name in inputs {
            let link = self.links.iter().position(|link| link.name == *name);
            self.inputs.push(link.expect(unknown) as u16);
        }
        self.outputs.clear();
        for link in &self.links {
            let output = outputs.iter().position(|name| *name == link.name);
            self.outputs.push(output.and_then(|at| u16::try_from(at).ok()).unwrap_or(NO_OUTPUT));
        }
    }

    fn push(&mut self, io: &mut Io<'_>) {
        let now_ns = io.now_ns;
        if self.copy.bring(&self.peers, &mut self.choose.balancer, now_ns) {
            self.take_links();
        }
        let mut any = false;
        for input in 0..io.inputs() {
            loop {
                let count = io.receive_burst(input, &mut self.work.burst);
                if count == 0 {
                    break;
                }
                any = true;
                self.counts.account.add(Entry::Received, count);
                let link = self.inputs.get(input).copied().unwrap_or(NO_OUTPUT);
                self.choose_links(link, now_ns);
                let before = io.sent_bytes();
                let BurstRoom { burst, between, ways } = &mut *self.work;
                let sent = io.scatter(burst, ways, &self.outputs, between);
                self.counts.account.add(Entry::Sent, sent);
                self.counts.account.add(Entry::SentBytes, (io.sent_bytes() - before) as usize);
                if sent < count {
                    self.lose_rest(io);
                }
                self.work.burst.reset();
            }
        }
        if any {
            self.count();
        }
    }

    fn stop(&mut self, io: &mut Io<'_>) {
        for input in 0..io.inputs() {
            while let Some(frame) = io.receive(input) {
                self.counts.account.add(Entry::Received, 1);
                self.counts.account.drop(Reason::Stopped, 1);
                io.frames.free(frame);
            }
        }
    }
}

#[cfg(test)]
mod tests;
