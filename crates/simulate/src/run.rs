//! A run: events in the order of time, with checks after each of them.

use bm_vlb::rollout::Stage;
use bm_vlb::{
    Change, Choice, DelaySpread, Destination, Epoch, Link, Node, Packet, Peer, Source, Step, To, Topology,
    TransitDrop, receive,
};

use crate::account::{Account, Loss};
use crate::control::Store;
use crate::faults::{self, Fault};
use crate::links::{Frame, HOP_NS, QUEUE_NS, Queue, Truth};
use crate::options::{Options, Shape};
use crate::random::Random;
use crate::server::{DELTA_NS, Server, index, neighbor, port};
use crate::traffic::{GAP_BYTES, time_ns};
use crate::wheel::Wheel;

/// How soon other nodes notice that a node or a link has failed: some heartbeats.
const DETECT_NS: u64 = 6_000_000;
/// Maximum delay of a message of the store, and the interval at which it is repeated.
const MESSAGE_NS: u64 = 1_000_000;
const REPEAT_NS: u64 = 3_000_000;
/// Interval of the checks of all sums, and of new values of delta.
const TICK_NS: u64 = 1_000_000;
/// How long after the last packet was received all must have left or be lost.
const DRAIN_NS: u64 = 30_000_000_000;
/// Neighbors of an output node; they have different indices in each epoch.
const NEIGHBORS: u16 = 256;

enum Event {
    /// A node receives a packet on an external port.
    Arrival(Node),
    /// A frame arrives at a node.
    Frame(Frame),
    Fault(Fault),
    /// A fault has been noticed.
    Noticed(Fault),
    /// A message of the store arrives at a node, or an answer at the store.
    Message(Node, Stage),
    Answer(Node, Stage),
    Tick,
}

/// The state of a simulation between two events.
pub(crate) struct Run {
    pub(crate) options: Options,
    pub(crate) topology: Topology,
    pub(crate) servers: Vec<Server>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) account: Account,
    wheel: Wheel<Event>,
    store: Store,
    /// Nodes that the others consider failed.
    suspected: Vec<bool>,
    /// The pairs of nodes without a link between them, as far as that has been noticed.
    broken: Vec<(Node, Node)>,
    spread: DelaySpread,
    random: Random,
    hops_max: u8,
}

impl Run {
    pub(crate) fn new(options: Options, topology: Topology) -> Self {
        // No event is added less than this before its time: the shortest frame, or the delay to the next node.
        let shortest = time_ns(64 + GAP_BYTES, options.input_bps).min(HOP_NS);
        let mut random = Random::new(options.seed, 1);
        let servers = (0..topology.nodes()).filter_map(Node::new);
        let servers = servers.map(|node| Server::new(node, &options, &topology, &mut random)).collect();
        Self {
            servers,
            queues: vec![Queue::default(); topology.links().len()],
            account: Account::default(),
            wheel: Wheel::new(shortest.max(2).ilog2()),
            store: Store::new(topology.terminals()),
            suspected: vec![false; topology.nodes().into()],
            broken: Vec::new(),
            spread: DelaySpread::new(100_000_000),
            hops_max: match options.shape {
                Shape::Mesh(_) => 2,
                Shape::Fly { n, .. } => 2 * (n as u8 + 1),
            },
            random,
            topology,
            options,
        }
    }

    /// The first events.
    pub(crate) fn start(&mut self) {
        for node in self.terminals() {
            self.refresh(node, 0);
            let first = 1 + self.random.below(50_000);
            self.wheel.add(first, Event::Arrival(node));
        }
        if self.options.faults {
            let faults = faults::plan(&self.topology, self.options.time_ns, self.options.seed);
            faults.into_iter().for_each(|(at, fault)| self.wheel.add(at, Event::Fault(fault)));
        }
        self.wheel.add(TICK_NS, Event::Tick);
    }

    fn terminals(&self) -> impl Iterator<Item = Node> + use<> {
        (0..self.topology.terminals()).filter_map(Node::new)
    }

    pub(crate) fn go(&mut self) -> Result<(), (u64, String)> {
        let (until, mut spare) = (self.options.time_ns + DRAIN_NS, Vec::new());
        while let Some(mut events) = self.wheel.next(until, spare) {
            for (at, event) in events.drain(..) {
                self.event(event, at).map_err(|what| (at, what))?;
            }
            spare = events;
            if self.account.under_way == 0 && self.wheel.now_ns() > self.options.time_ns {
                break;
            }
        }
        self.check_sums().map_err(|what| (until, what))?;
        let open = self.queues.iter().position(|queue| queue.sent != queue.arrived);
        match (self.account.under_way, open) {
            (0, None) => Ok(()),
            (0, Some(link)) => {
                Err((until, format!("link {link} sent more frames than arrived or were lost")))
            }
            (left, _) => Err((until, format!("{left} packets neither left the cluster nor were lost"))),
        }
    }

    fn event(&mut self, event: Event, now: u64) -> Result<(), String> {
        match event {
            Event::Arrival(node) => self.arrival(node, now),
            Event::Frame(frame) => return self.frame(frame, now),
            Event::Fault(fault) => self.fault(fault, now),
            Event::Noticed(fault) => self.noticed(fault, now),
            Event::Message(node, stage) => self.message(node, stage, now),
            Event::Answer(node, stage) => self.answer(node, stage, now),
            Event::Tick => return self.tick(now),
        }
        Ok(())
    }

    /// Receives a packet on a port of a node.
    fn arrival(&mut self, node: Node, now: u64) {
        if now >= self.options.time_ns {
            return;
        }
        let server = &mut self.servers[node.index()];
        let Some(source) = &mut server.source else { return };
        let (arrival, after) = source.next();
        self.wheel.add(now + after, Event::Arrival(node));
        if !server.is_up {
            return;
        }
        self.account.events += 1;
        self.account.offered += 1;
        self.account.under_way += 1;
        let on_wire = u64::from(arrival.bytes) + GAP_BYTES;
        server.offered += on_wire;
        server.handled += on_wire;
        if arrival.output.number() == 0 {
            server.to_hot.0 += on_wire;
        }
        let local = now + server.skew_ns;
        let packet = Packet { flow: arrival.flow, output: arrival.output, bytes: on_wire as u32 };
        let choice = server.balancer.choose(&packet, local);
        let (epoch, neighbor) = (server.sends.0, (arrival.flow % u32::from(NEIGHBORS)) as u16);
        let destination = Destination {
            epoch,
            output: arrival.output,
            port: port(neighbor),
            to: To::Neighbor(index(neighbor, epoch)),
        };
        let via = if let Choice::Via(via) = choice { Some(via) } else { None };
        let sample = server.sampler.sample(arrival.flow, local);
        let source = Source { input: node, via, sample };
        let bps = self.options.input_bps;
        let output = &mut self.servers[arrival.output.index()];
        output.to_it.0 += 1;
        // Half of a full queue: packets that arrive over several paths need some more room.
        output.is_overloaded |= output.ideal.waits_ns(now) > QUEUE_NS / 2;
        let _sent = output.ideal.send(arrival.bytes, bps, now);
        if choice == Choice::Unreachable {
            return self.account.lose(Loss::Unreachable);
        }
        let frame = Frame {
            addresses: (destination.mac(), source.mac()),
            at: node,
            link: 0,
            flow: arrival.flow,
            bytes: arrival.bytes,
            hops: 0,
            truth: Truth { output: arrival.output, neighbor, since_ns: now },
        };
        self.send(frame, via.unwrap_or(arrival.output), now);
    }

    /// Sends a frame over the link to a node.
    #[inline]
    fn send(&mut self, frame: Frame, target: Node, now: u64) {
        let Some(link) = self.topology.next_link(frame.at, target, frame.flow) else {
            return self.account.lose(Loss::Failed);
        };
        let Link { to, bps, .. } = self.topology.links()[link.index()];
        match self.queues[link.index()].send(frame.bytes, bps, now) {
            Some(sent) => {
                let frame = Frame { at: to, link: link.0, hops: frame.hops + 1, ..frame };
                self.wheel.add(sent + HOP_NS, Event::Frame(frame));
            }
            None => self.account.lose(Loss::LinkFull),
        }
    }

    /// Receives a frame at a node.
    fn frame(&mut self, mut frame: Frame, now: u64) -> Result<(), String> {
        self.account.events += 1;
        self.queues[frame.link as usize].arrived += 1;
        let link = &self.topology.links()[frame.link as usize];
        let server = &mut self.servers[frame.at.index()];
        if link.bps == 0 || !server.is_up {
            self.account.lose(Loss::Failed);
            return Ok(());
        }
        if frame.hops > self.hops_max {
            return Err(format!("a frame looped: it crossed {} links", frame.hops));
        }
        let addresses = Destination::parse(frame.addresses.0)
            .and_then(|destination| Ok((destination, Source::parse(frame.addresses.1)?)));
        let (destination, source) = addresses.map_err(|why| {
            format!("node {} received a frame with an invalid address: {why}", frame.at.number())
        })?;
        let is_relay = self.topology.is_relay(frame.at);
        server.handled += u64::from(frame.bytes) + GAP_BYTES;
        match receive(frame.at, is_relay, &destination, source, &mut server.tables) {
            Step::Deliver(table) => {
                let table = *table;
                return self.deliver(&frame, &destination, &source, table, now);
            }
            Step::Forward(target, source) => {
                frame.addresses.1 = source.mac();
                self.send(frame, target, now);
            }
            Step::Drop(TransitDrop::Epoch) => self.account.lose(Loss::Epoch),
            Step::Drop(TransitDrop::Stray) => {
                return Err(format!("node {} received a frame that does not name it", frame.at.number()));
            }
        }
        Ok(())
    }

    /// A frame is at its output node: that must be the right one, and so must the neighbor.
    fn deliver(
        &mut self,
        frame: &Frame,
        destination: &Destination,
        source: &Source,
        table: Epoch,
        now: u64,
    ) -> Result<(), String> {
        let truth = frame.truth;
        let neighbor = match destination.to {
            To::Neighbor(number) => Some(neighbor(number, table)),
            _ => None,
        };
        if frame.at != truth.output
            || neighbor != Some(truth.neighbor)
            || destination.port != port(truth.neighbor)
        {
            return Err(format!(
                "a packet for {:?} left through a wrong port of node {}",
                truth.output,
                frame.at.number()
            ));
        }
        let server = &mut self.servers[frame.at.index()];
        server.order.count(source);
        let delay = now - truth.since_ns;
        self.spread.add(delay, now);
        if server.ports.send(frame.bytes, self.options.input_bps, now).is_none() {
            self.account.lose(Loss::OutputFull);
            return Ok(());
        }
        server.to_it.1 += 1;
        self.account.deliver(frame.hops, delay);
        if frame.at.number() == 0 {
            self.servers[source.input.index()].to_hot.1 += u64::from(frame.bytes) + GAP_BYTES;
        }
        Ok(())
    }

    /// Checks the sums, and gives all inputs the current delta.
    fn tick(&mut self, now: u64) -> Result<(), String> {
        if self.options.delta_ns.is_none() {
            let delta = self.spread.delta_ns(DELTA_NS);
            self.servers.iter_mut().for_each(|server| server.balancer.set_delta(delta));
        }
        if now < self.options.time_ns {
            self.wheel.add(now + TICK_NS, Event::Tick);
        }
        self.check_sums()
    }

    fn check_sums(&self) -> Result<(), String> {
        if !self.account.is_closed() {
            return Err("the packets received are not those sent, lost and in flight".into());
        }
        match self.queues.iter().position(|queue| queue.arrived > queue.sent) {
            Some(link) => Err(format!("more frames arrived over link {link} than were sent")),
            None => Ok(()),
        }
    }

    fn fault(&mut self, fault: Fault, now: u64) {
        match fault {
            Fault::Node(node, is_up) => self.servers[node.index()].is_up = is_up,
            Fault::Link(link, is_up) => {
                self.topology.set_rate(link, if is_up { self.options.link_bps() } else { 0 });
            }
            Fault::Store(node, hears) => self.servers[node.index()].hears_store = hears,
            Fault::Frozen(frozen) => {
                if self.store.freeze(frozen) {
                    self.tell(now);
                }
            }
            Fault::Drain(node) => self.change(Change::Drain(node), now),
        }
        if matches!(fault, Fault::Node(..) | Fault::Link(..)) {
            self.wheel.add(now + DETECT_NS + self.random.below(DETECT_NS / 2), Event::Noticed(fault));
        }
    }

    fn noticed(&mut self, fault: Fault, now: u64) {
        match fault {
            // A node that returns before anybody has noticed was never away.
            Fault::Node(node, is_up) if is_up != self.servers[node.index()].is_up => {}
            Fault::Node(node, false) => {
                self.suspected[node.index()] = true;
                self.change(Change::Dead(node), now);
            }
            Fault::Node(node, true) => {
                self.suspected[node.index()] = false;
                self.change(Change::Join(node), now);
                self.change(Change::Ready(node), now);
            }
            _ => {}
        }
        self.broken = self.broken_pairs();
        self.terminals().for_each(|node| self.refresh(node, now));
    }

    fn change(&mut self, change: Change, now: u64) {
        if self.store.change(change) {
            self.tell(now);
        }
    }

    /// Sends the current stage to all nodes that have not answered.
    fn tell(&mut self, now: u64) {
        let stage = self.store.stage();
        let terminals = self.terminals().filter(|node| self.store.waits_for(*node)).collect::<Vec<_>>();
        for node in terminals {
            let after = MESSAGE_NS / 4 + self.random.below(MESSAGE_NS);
            self.wheel.add(now + after, Event::Message(node, stage));
        }
    }

    /// Whether a message between the store and a node is lost.
    fn is_lost(&mut self, node: Node) -> bool {
        let server = &self.servers[node.index()];
        !server.is_up || !server.hears_store || self.random.one_in(20)
    }

    fn message(&mut self, node: Node, stage: Stage, now: u64) {
        if stage != self.store.stage() || !self.store.waits_for(node) {
            return;
        }
        // Repeated until it is answered.
        if now < self.options.time_ns {
            self.wheel.add(now + REPEAT_NS, Event::Message(node, stage));
        }
        if self.is_lost(node) {
            return;
        }
        let server = &mut self.servers[node.index()];
        match stage {
            Stage::Prepare(epoch) => server.tables.advance(epoch, epoch),
            Stage::Use(epoch) => {
                server.sends = (epoch, self.store.current());
                self.refresh(node, now);
            }
            Stage::Idle => {}
        }
        self.wheel.add(now + MESSAGE_NS / 4 + self.random.below(MESSAGE_NS), Event::Answer(node, stage));
    }

    fn answer(&mut self, node: Node, stage: Stage, now: u64) {
        if !self.is_lost(node) && self.store.done(node, stage) {
            self.tell(now);
        }
    }

    /// Tells a node about links and members.
    fn refresh(&mut self, node: Node, now: u64) {
        let view = self.store.at(self.servers[node.index()].sends.1);
        let peers = self.terminals().map(|other| Peer {
            capacity_bps: if other == node || self.suspected[other.index()] || !view.is_output(other) {
                0
            } else {
                self.topology.capacity(node, other)
            },
            transit: view.is_intermediate(other),
        });
        let peers: Vec<_> = peers.collect();
        let server = &mut self.servers[node.index()];
        server.balancer.set_peers(&peers, now + server.skew_ns);
        server.balancer.set_broken(&self.broken);
    }

    /// The pairs of nodes between which no link, or no path of a fly, is left.
    fn broken_pairs(&self) -> Vec<(Node, Node)> {
        if self.topology.links().iter().all(|link| link.bps > 0) {
            return Vec::new();
        }
        let pairs = self.terminals().flat_map(|from| self.terminals().map(move |to| (from, to)));
        pairs.filter(|(from, to)| from != to && self.topology.capacity(*from, *to) == 0).collect()
    }
}
