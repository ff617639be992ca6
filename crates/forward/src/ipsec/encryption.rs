//! The app behind the router: encrypts what a policy protects, and looks up the route of the ESP packet.
//!
//! ```text
//! from the router, or the slow path ─► policy ─┬─ none, bypass ─► port that the router chose
//!                                              ├─ discard ─► drop
//!                                              └─ protect ─► SA of another worker: its ring               (choice.rs)
//!                                                            SA of this one: encrypt ─► route ─► port, or slow path
//!                                                                             too big ─► slow path: ICMP to the source
//! ```
//!
//! Packets of one SA that follow each other are encrypted together, and their route is looked up once. Packets that leave
//! by an IPsec interface are compared with its policies only (by_interface.rs).
//!
//! The packet has its next hop, its TTL is decremented, and it has passed the filters. If it cannot be encrypted, it is
//! dropped: it is never sent in clear. ICMP errors that quote a packet from a tunnel are encrypted or dropped, too
//! (errors.rs).

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bm_fib::published::{Published, ReaderHandle};
use bm_frame::Frame;
use bm_graph::{App, Io};
use bm_ipsec::{Action, BURST, Direction, Failure, Lanes, Outbound, Policies, Problem, SaId, SaTable, key};
use bm_stats::{Account, Entry, Reason};
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;

use super::choice::{Choices, List, Wants};
use super::frames::WaitingFrame;
use super::interfaces::IPSEC_PORT;
use super::live::{Command, Sender};
use super::path_mtu::PathMtus;
use super::rings::{Rings, stop_inputs};
use super::{Ends, IpsecPlan, IpsecWorker, Owner, SaNumbers, Stop, errors, frames};
use crate::punt_queue::PuntQueue;
use crate::tables::{PublishedTables, Tables};
use crate::verdict::Verdict;

mod by_interface;
mod by_owner;
mod esp_route;

/// Where packets of a link come from: decides whether they can be ESP packets of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Router,
    SlowPath,
    /// Another worker, which has handed it over.
    Worker,
}

/// The app. A link from the router is called `router:` and the name of the port, one from the slow path `slow:`, and one
/// to a port as the port.
pub struct Encryption {
    ports: Vec<String>,
    inputs: Vec<(From, usize)>,
    published: Arc<Published<Tables>>,
    reader: ReaderHandle,
    work: EncryptionState,
}

/// All but the tables.
struct EncryptionState {
    worker: usize,
    outputs: Vec<Option<usize>>,
    /// The port of IPsec interfaces.
    ipsec_port: Option<usize>,
    punt_queue: PuntQueue,
    policies: Arc<Policies>,
    fragmented: errors::Fragmented,
    owners: SaTable<Owner>,
    /// Which SA each policy with several, and each template, uses.
    choices: Choices,
    sas: Vec<Sender>,
    /// Packets of one SA that are encrypted together, at the end of a push at the latest.
    waiting: Vec<WaitingFrame<List>>,
    waiting_for: usize,
    /// Packets whose SA has ended, for another one.
    again: Vec<WaitingFrame<List>>,
    lanes: Lanes,
    /// How many SAs have these ends.
    tunnels: HashMap<Ends, usize>,
    path_mtus: PathMtus,
    rings: Rings,
    account: Account,
}

impl Encryption {
    /// The app of a worker. SAs leave the plan, since nobody else may have their numbers.
    ///
    /// # Errors
    /// An SA that cannot work.
    pub fn new(
        plan: &mut IpsecPlan,
        IpsecWorker { worker, rings: [_, rings], path_mtus }: &mut IpsecWorker,
        ports: Vec<String>,
        tables: &PublishedTables,
        punt_queue: PuntQueue,
        account: Account,
        now_ns: u64,
    ) -> Result<Self, Problem> {
        let mut sas = Vec::new();
        for plan in plan.sas.iter_mut().filter(|plan| plan.worker == *worker) {
            let Some(SaNumbers { block, more, iv_mask }) = plan.numbers.take() else { continue };
            let sa = Outbound::new(&plan.sa, block, iv_mask, now_ns)?.with_used(plan.status.read().used);
            path_mtus.add(sa.id(), plan.status.clone());
            sas.push(Sender::new(&plan.sa, sa, more, plan.status.clone()));
        }
        let owners = plan.owners(*worker, Direction::Out);
        let work = EncryptionState {
            worker: *worker,
            outputs: vec![None; ports.len()],
            ipsec_port: ports.iter().position(|port| port == IPSEC_PORT),
            punt_queue,
            policies: plan.policies.clone(),
            fragmented: errors::Fragmented::default(),
            choices: Choices::new(&plan.lists, &plan.current, &owners),
            owners,
            sas,
            waiting: Vec::with_capacity(BURST),
            waiting_for: 0,
            again: Vec::with_capacity(BURST),
            lanes: Lanes::new(Direction::Out),
            tunnels: plan.tunnels(),
            path_mtus: path_mtus.clone(),
            rings: rings.take(),
            account,
        };
        let (published, reader) = tables.register();
        Ok(Self { ports, inputs: Vec::new(), published, reader, work })
    }
}

impl EncryptionState {
    /// One frame that is to leave through `port`.
    fn leaves(&mut self, io: &mut Io<'_>, tables: &Tables, mut frame: Frame, from: From, port: usize) {
        if Some(port) == self.ipsec_port {
            return self.leaves_by_interface(io, tables, frame, from, port);
        }
        let (interface, now_ns) = (frame.meta().interface, io.now_ns);
        let action = frames::network(frame.data()).and_then(|network| {
            let packet = frames::packet(&frame, network);
            if from == From::SlowPath && self.is_in_tunnel(packet) {
                return None;
            }
            let found = self.policies.find(Direction::Out, &key(packet)?);
            let action = match found.map(|found| found.action) {
                None | Some(Action::Bypass) => {
                    let packet = frame.data_mut().get_mut(network..)?;
                    self.fragmented.protect(&self.policies, tables, packet, found, interface, now_ns)?
                }
                Some(action) => action,
            };
            Some((network, action))
        });
        let outcome = match action {
            None | Some((_, Action::Bypass)) => Ok(port),
            Some((_, Action::Discard)) => Err(Stop::Drop(Reason::IpsecPolicy)),
            Some((network, protect)) => {
                let waiting = WaitingFrame { frame, network, port, more: List::of(protect) };
                let Err(unprotected) = self.protect_by(io, tables, protect, from, waiting) else { return };
                frame = unprotected;
                Err(Failure::NoSa.into())
            }
        };
        self.goes(io, frame, port, outcome);
    }

    /// Does with a frame, which the router has sent to `port`, what was decided.
    #[inline]
    fn goes(&mut self, io: &mut Io<'_>, mut frame: Frame, port: usize, outcome: Result<usize, Stop>) {
        match outcome {
            Ok(port) => self.send(io, frame, port),
            Err(Stop::Drop(reason)) => self.lose(io, frame, reason),
            Err(Stop::To(worker)) => {
                frame.meta_mut().port = port as u16;
                match self.rings.push(worker, frame) {
                    Ok(()) => self.account.add(Entry::Passed, 1),
                    Err(frame) => self.lose(io, frame, Reason::LinkFull),
                }
            }
            Err(Stop::Slow) => self.pass(io, frame, port, Verdict::Encrypted),
            Err(Stop::TooBig(mtu)) => {
                frame.meta_mut().next_hop = mtu.into();
                self.pass(io, frame, port, Verdict::TooBigForEsp);
            }
            Err(Stop::Unprotected(reason)) => {
                frame.meta_mut().next_hop = reason as u32;
                self.pass(io, frame, port, Verdict::Unprotected);
            }
        }
    }

    /// Hands a frame to the slow path.
    fn pass(&mut self, io: &mut Io<'_>, mut frame: Frame, port: usize, verdict: Verdict) {
        let meta = frame.meta_mut();
        (meta.port, meta.verdict) = (port as u16, verdict as u16);
        match self.punt_queue.push(frame, false) {
            Ok(()) => self.account.add(Entry::Passed, 1),
            Err(frame) => self.lose(io, frame, Reason::SlowPathFull),
        }
    }

    fn send(&self, io: &mut Io<'_>, frame: Frame, port: usize) {
        let Some(output) = self.outputs.get(port).copied().flatten() else {
            return self.lose(io, frame, Reason::NoOutput);
        };
        let bytes = frame.len();
        match io.transmit(output, frame) {
            Ok(()) => {
                self.account.add(Entry::Sent, 1);
                self.account.add(Entry::SentBytes, bytes);
            }
            Err(frame) => self.lose(io, frame, Reason::LinkFull),
        }
    }

    fn lose(&self, io: &mut Io<'_>, frame: Frame, reason: Reason) {
        self.account.drop(reason, 1);
        io.frames.free(frame);
    }

    /// Whether a packet is between the ends of a tunnel: then it is one of our ESP packets, since no other may have our
    /// address as its source, except for our own ICMP errors.
    fn is_in_tunnel(&self, packet: &[u8]) -> bool {
        if errors::may_be_icmp(packet) {
            return false;
        }
        let ends = match packet.first().map(|first| first >> 4) {
            Some(4) => Ipv4::parse(packet).ok().map(|ip| Ends {
                source: Ipv4Addr::from(ip.source()).into(),
                destination: Ipv4Addr::from(ip.destination()).into(),
            }),
            Some(6) => Ipv6::parse(packet).ok().map(|ip| Ends {
                source: Ipv6Addr::from(ip.source()).into(),
                destination: Ipv6Addr::from(ip.destination()).into(),
            }),
            _ => None,
        };
        ends.is_some_and(|ends| self.tunnels.contains_key(&ends))
    }

    /// Carries out what has been decided about SAs and policies since the last call.
    fn follow(&mut self) {
        while let Some(command) = self.rings.command() {
            match command {
                Command::Send(sender, ends) => self.add(*sender, ends),
                Command::Elsewhere(id, worker, ends) => {
                    if self.owners.insert(id, Owner::Other(worker)).is_ok() {
                        self.count(ends);
                    }
                }
                Command::Remove(id, ends) => self.remove(id, ends),
                Command::Policies(policies) => self.policies = policies,
                Command::Current(at, sas) => self.choices.set(at, *sas, &self.owners),
                Command::Receive(_) => {}
            }
            self.rings.done();
        }
    }

    fn add(&mut self, sender: Sender, ends: Option<Ends>) {
        if self.owners.insert(sender.sa.id(), Owner::Mine(self.sas.len())).is_ok() {
            self.path_mtus.add(sender.sa.id(), sender.status.clone());
            self.sas.push(sender);
            self.count(ends);
        }
    }

    fn count(&mut self, ends: Option<Ends>) {
        ends.into_iter().for_each(|ends| *self.tunnels.entry(ends).or_default() += 1);
    }

    fn remove(&mut self, id: SaId, ends: Option<Ends>) {
        let Some(owner) = self.owners.remove(id) else { return };
        if let Some(ends) = ends
            && let Some(count) = self.tunnels.get_mut(&ends)
        {
            *count -= 1;
            if *count == 0 {
                self.tunnels.remove(&ends);
            }
        }
        let Owner::Mine(at) = owner else { return };
        self.path_mtus.remove(id);
        self.sas.swap_remove(at);
        // The last one has taken its place.
        if let Some(owner) = self.sas.get(at).and_then(|moved| self.owners.find(moved.sa.id())) {
            *owner = Owner::Mine(at);
        }
    }

    /// Encrypts a packet for an SA of this worker, or lets it wait for those that follow.
    #[inline]
    fn protect(&mut self, io: &mut Io<'_>, tables: &Tables, at: usize, waiting: WaitingFrame<List>) {
        if at != self.waiting_for {
            self.encrypt(io, tables);
        }
        self.waiting_for = at;
        self.waiting.push(waiting);
        if self.waiting.len() == BURST {
            self.encrypt(io, tables);
        }
    }

    /// Encrypts what waits, which is for one SA, and sends it to its next hop.
    fn encrypt(&mut self, io: &mut Io<'_>, tables: &Tables) {
        if self.waiting.is_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut again = std::mem::take(&mut self.again);
        let mut outcomes = [Ok(()); BURST];
        let sender = &mut self.sas[self.waiting_for];
        sender.encrypt(&mut self.lanes, tables, &mut waiting, &mut outcomes, io.now_ns);
        let mut last_route = None;
        for (WaitingFrame { mut frame, network, port, more }, outcome) in waiting.drain(..).zip(outcomes) {
            if outcome.is_err_and(|failure| self.has_another(failure, more)) {
                again.push(WaitingFrame { frame, network, port, more });
                continue;
            }
            let sender = &mut self.sas[self.waiting_for];
            let routed = match outcome {
                Ok(()) => {
                    esp_route::find(tables, &mut frame, network, sender.path_mtu_of_own(), &mut last_route)
                }
                Err(failure) => {
                    sender.status.failed();
                    let refused = sender.refused(&mut frame, network, failure);
                    self.note_interface(tables, &mut frame, port);
                    Err(refused)
                }
            };
            if routed == Err(Failure::TooBig.into()) {
                // The route has got a smaller MTU: the next packet is refused before it is encrypted.
                self.sas[self.waiting_for].look_up_mtu(tables);
            }
            self.goes(io, frame, port, routed);
        }
        self.waiting = waiting;
        let has_ended = !again.is_empty();
        for one in again.drain(..) {
            let owner = self.choices.now(one.more).and_then(|id| self.owners.find(id).copied());
            match owner {
                Some(Owner::Mine(at)) => self.protect(io, tables, at, one),
                Some(Owner::Other(worker)) => self.goes(io, one.frame, one.port, Err(Stop::To(worker))),
                None => self.goes(io, one.frame, one.port, Err(Failure::NoSa.into())),
            }
        }
        self.again = again;
        if has_ended {
            // Each time one SA fewer is left.
            self.encrypt(io, tables);
        }
    }

    /// Whether a packet of a list, which the SA could not encrypt since it has ended, has another SA now. It is as it was
    /// then: lifetime and numbers are checked first.
    fn has_another(&mut self, failure: Failure, list: List) -> bool {
        if !matches!(failure, Failure::Lifetime | Failure::SequenceOverflow) || list == List::One {
            return false;
        }
        let Sender { sa, status, .. } = &self.sas[self.waiting_for];
        let id = sa.id();
        if status.end() {
            self.rings.end_sa();
            self.choices.choose(&self.owners);
        }
        self.choices.now(list).is_some_and(|other| other != id)
    }
}

impl App for Encryption {
    /// # Panics
    /// If an input names no port: its frames would never be processed.
    fn connect(&mut self, inputs: &[String], outputs: &[String]) {
        let unknown = "a link to the encryption is called `router:` or `slow:` and the name of a port";
        self.inputs.clear();
        for name in inputs {
            let (from, port) = name.split_once(':').expect(unknown);
            let from = if from == "slow" { From::SlowPath } else { From::Router };
            self.inputs.push((from, self.ports.iter().position(|other| other == port).expect(unknown)));
        }
        self.work.outputs.clear();
        for port in &self.ports {
            self.work.outputs.push(outputs.iter().position(|name| name == port));
        }
    }

    fn push(&mut self, io: &mut Io<'_>) {
        let Self { inputs, published, reader, work, .. } = self;
        work.follow();
        if work.rings.have_sas_ended() {
            work.choices.choose(&work.owners);
        }
        let tables = published.load(reader);
        while let Some(frame) = work.rings.pop() {
            work.account.add(Entry::Received, 1);
            let port = usize::from(frame.meta().port);
            work.leaves(io, tables, frame, From::Worker, port);
        }
        for (input, &(from, port)) in inputs.iter().enumerate() {
            while let Some(frame) = io.receive(input) {
                work.account.add(Entry::Received, 1);
                work.leaves(io, tables, frame, from, port);
            }
        }
        work.encrypt(io, tables);
        work.rings.wake();
        work.punt_queue.notify();
        reader.quiescent();
    }

    fn before_sleep(&mut self) -> bool {
        self.reader.offline();
        self.work.rings.before_sleep()
    }

    fn after_sleep(&mut self) {
        self.work.rings.after_sleep();
        self.reader.online();
    }

    fn stop(&mut self, io: &mut Io<'_>) {
        self.work.rings.stop(io, &self.work.account);
        stop_inputs(io, &self.work.account);
    }
}
