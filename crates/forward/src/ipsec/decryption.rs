//! The app ahead of the router: decrypts ESP for this machine's SAs, and checks what arrives in clear.
//!
//! ```text
//! from a port ─┬─ ESP of an SA of this worker ─► decrypt ─► policy ─┐
//!              ├─ ESP of an SA of another one ─► its ring           ├─► router, as if it had arrived on the port
//!              ├─ ESP of no SA ─► drop                              │
//!              └─ anything else ─► policy ──────────────────────────┘
//! ```
//!
//! Packets of one SA that follow each other are decrypted together.
//!
//! ICMP errors about ESP packets that are too big for a link on their way are heeded (path_mtu.rs), and go on.
//!
//! IKE, keepalives, and ESP for addresses that no inbound SA has go on to the router, which gives them to Linux. If SAs are
//! the kernel's own, more of it is (linux.rs).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bm_filter::Key;
use bm_frame::Frame;
use bm_graph::{App, Io};
use bm_ipsec::{
    Action, BURST, Direction, Esp, Failure, Inbound, Lanes, Located, Policies, Problem, SaId, SaTable,
    Template, TooBig, key, locate, names_esp,
};
use bm_stats::{Account, Entry, Reason};
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;
use bm_wire::protocol;

use super::frames::WaitingFrame;
use super::interfaces::ArrivesOn;
use super::linux::LeftToLinux;
use super::live::{Command, Receiver, Report};
use super::path_mtu::PathMtus;
use super::rings::{Rings, stop_inputs};
use super::{IpsecPlan, IpsecWorker, Owner, Stop, errors, frames};
use crate::tables::PublishedTables;

/// The port of UDP encapsulation.
const NAT_TRAVERSAL: [u8; 2] = 4500u16.to_be_bytes();

/// The app.
pub struct Decryption {
    ports: Vec<String>,
    /// For each input the index of its port, and for each port the output to the router.
    inputs: Vec<usize>,
    outputs: Vec<Option<usize>>,
    policies: Arc<Policies>,
    has_policies: bool,
    /// The SAs of the lists that policies name by number.
    lists: Vec<Vec<SaId>>,
    owners: SaTable<Owner>,
    sas: Vec<Receiver>,
    /// Packets of one SA that are decrypted together, at the end of a push at the latest.
    waiting: Vec<WaitingFrame<Esp>>,
    waiting_for: usize,
    /// For each of them, where it came from if that is not where the SA's packets come from.
    senders: Vec<Option<(IpAddr, u16)>>,
    lanes: Lanes,
    /// Destinations of inbound SAs, sorted.
    destinations: Vec<IpAddr>,
    /// Where SAs are the kernel's: what is left to Linux.
    linux: Option<LeftToLinux>,
    interfaces: ArrivesOn,
    path_mtus: PathMtus,
    rings: Rings,
    account: Account,
}

impl Decryption {
    /// The app of a worker, and the rest of what it needs for the other app. Its links have the names of `ports`.
    ///
    /// # Errors
    /// An SA that cannot work.
    pub fn new(
        plan: &IpsecPlan,
        IpsecWorker { worker, rings: [rings, _], path_mtus }: &mut IpsecWorker,
        ports: Vec<String>,
        tables: &PublishedTables,
        account: Account,
        now_ns: u64,
    ) -> Result<Self, Problem> {
        let linux = plan.of_kernel.then(|| {
            let (published, reader) = tables.register();
            LeftToLinux::new(published, reader, *worker)
        });
        let (published, reader) = tables.register();
        let interfaces = ArrivesOn::new(published, reader, &ports);
        let mut sas = Vec::new();
        for plan in &plan.sas {
            if plan.sa.direction != Direction::In || plan.worker != *worker {
                continue;
            }
            let before = plan.status.read();
            let mut sa = Inbound::new(&plan.sa, now_ns)?.with_used(before.used);
            if before.number > 0 {
                sa.resume(before.number);
            }
            sas.push(Receiver::new(&plan.sa, sa, plan.status.clone()));
        }
        let rings = rings.take();
        Ok(Self {
            outputs: vec![None; ports.len()],
            ports,
            inputs: Vec::new(),
            has_policies: plan.policies.has(Direction::In),
            policies: plan.policies.clone(),
            lists: plan.lists.iter().map(|list| list.own.iter().map(|(id, _)| *id).collect()).collect(),
            owners: plan.owners(*worker, Direction::In),
            sas,
            waiting: Vec::with_capacity(BURST),
            waiting_for: 0,
            senders: Vec::new(),
            lanes: Lanes::new(Direction::In),
            destinations: plan.destinations(),
            linux,
            interfaces,
            path_mtus: path_mtus.clone(),
            rings,
            account,
        })
    }

    fn arrives(&mut self, io: &mut Io<'_>, frame: Frame, port: usize, is_handed: bool) {
        match self.decide(&frame, port, io.now_ns) {
            Ok(None) => self.to_router(io, frame, port),
            Ok(Some((at, network, esp))) => {
                if is_handed {
                    self.sas[at].status.handed_over();
                }
                self.waits(io, at, WaitingFrame { frame, network, port, more: esp });
            }
            Err(stop) => self.stops(io, frame, port, stop),
        }
    }

    fn stops(&mut self, io: &mut Io<'_>, mut frame: Frame, port: usize, stop: Stop) {
        match stop {
            Stop::To(worker) => {
                frame.meta_mut().port = port as u16;
                match self.rings.push(worker, frame) {
                    Ok(()) => self.account.add(Entry::Passed, 1),
                    Err(frame) => self.lose(io, frame, Reason::LinkFull),
                }
            }
            Stop::Drop(reason) => self.lose(io, frame, reason),
            // Only encryption hands frames to the slow path.
            Stop::Slow | Stop::TooBig(_) | Stop::Unprotected(_) => self.lose(io, frame, Reason::NoOutput),
        }
    }

    fn to_router(&self, io: &mut Io<'_>, frame: Frame, port: usize) {
        let Some(output) = self.outputs.get(port).copied().flatten() else {
            return self.lose(io, frame, Reason::NoOutput);
        };
        match io.transmit(output, frame) {
            Ok(()) => self.account.add(Entry::Sent, 1),
            Err(frame) => self.lose(io, frame, Reason::LinkFull),
        }
    }

    fn lose(&self, io: &mut Io<'_>, frame: Frame, reason: Reason) {
        self.account.drop(reason, 1);
        io.frames.free(frame);
    }

    /// The SA of this worker that decrypts the frame, and where its packet and its ESP are; or nothing, if it is for the
    /// router as it is.
    #[inline]
    fn decide(
        &mut self,
        frame: &Frame,
        port: usize,
        now_ns: u64,
    ) -> Result<Option<(usize, usize, Esp)>, Stop> {
        let Some(network) = frames::network(frame.data()) else { return Ok(None) };
        let packet = frames::packet(frame, network);
        if may_be_esp(packet) {
            match locate(packet) {
                Ok(Located::Esp(esp)) => match self.owners.find(esp.id(packet)).map(|owner| *owner) {
                    Some(Owner::Mine(at)) => return Ok(Some((at, network, esp))),
                    Some(Owner::Other(worker)) => return Err(Stop::To(worker)),
                    None if self.linux.is_none() && self.is_ours(packet) => return Err(Failure::NoSa.into()),
                    None => {}
                },
                // Linux would reassemble and decrypt it, and does not know which numbers workers have received.
                Err(failure @ (Failure::Fragment | Failure::TooShort))
                    if names_esp(packet) && self.is_ours(packet) =>
                {
                    return Err(failure.into());
                }
                // Behind more headers than are followed here, Linux would find ESP.
                Err(failure @ Failure::Malformed) if self.linux.is_some() && self.is_ours(packet) => {
                    return Err(failure.into());
                }
                Ok(Located::Ike | Located::Keepalive) | Err(_) => {}
            }
        }
        let checked = if self.has_policies { self.check(packet, None) } else { Ok(()) };
        // What policies drop has no effect here either (RFC 4301 6.1.1).
        if checked.is_ok()
            && errors::may_be_icmp(packet)
            && let Some(error) = TooBig::parse(packet)
        {
            self.path_mtus.heed(&error, now_ns);
        }
        if let (Err(_), Some(linux)) = (checked, &mut self.linux)
            && linux.takes(frame.data(), port, now_ns)
        {
            // Linux applies its policies to what is for this machine, and knows those of sockets.
            return Ok(None);
        }
        checked.map(|()| None)
    }

    /// Decrypts a packet, or lets it wait for those that follow.
    #[inline]
    fn waits(&mut self, io: &mut Io<'_>, at: usize, waiting: WaitingFrame<Esp>) {
        if at != self.waiting_for {
            self.decrypt(io);
        }
        self.waiting_for = at;
        self.waiting.push(waiting);
        if self.waiting.len() == BURST {
            self.decrypt(io);
        }
    }

    /// Decrypts what waits, which is for one SA.
    fn decrypt(&mut self, io: &mut Io<'_>) {
        if self.waiting.is_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut outcomes = [Ok(()); BURST];
        if let Some(linux) = &mut self.linux {
            linux.save(waiting.iter().map(|one| &one.frame));
        }
        let receiver = &mut self.sas[self.waiting_for];
        self.senders.clear();
        if receiver.peer.is_some() {
            // Nothing is left of these headers afterwards.
            for one in &waiting {
                let sender = receiver.moved(frames::packet(&one.frame, one.network), &one.more);
                self.senders.push(sender);
            }
        }
        let Receiver { sa, status, .. } = receiver;
        if waiting.len() > 1 && sa.takes_bursts(&mut self.lanes) {
            frames::change_all(&mut waiting, &mut outcomes, |packets, outcomes| {
                sa.decrypt_burst(&mut self.lanes, packets, outcomes, io.now_ns);
            });
        } else {
            for (WaitingFrame { frame, network, more: esp, .. }, outcome) in
                waiting.iter_mut().zip(&mut outcomes)
            {
                *outcome = frames::change(frame, *network, |packet| sa.decrypt(packet, esp, io.now_ns));
            }
        }
        status.write(sa.used(), sa.highest(), sa.expiry(io.now_ns));
        for (at, (one, outcome)) in waiting.drain(..).zip(outcomes).enumerate() {
            let mut one = one;
            let is_reported = self.report_sender(at, outcome, io.now_ns);
            let Receiver { sa, properties, status, .. } = &self.sas[self.waiting_for];
            let (id, properties) = (sa.id(), *properties);
            let checked = match outcome {
                Ok(()) if self.linux.is_some() => {
                    Ok(self.left_or_arrives(at, &mut one, &properties, is_reported, io.now_ns))
                }
                Ok(()) => self
                    .check(frames::packet(&one.frame, one.network), Some((id, properties)))
                    .and_then(|()| self.arrives_on(&mut one.frame, one.network, one.port, properties.if_id)),
                Err(failure) => {
                    status.failed();
                    Err(failure.into())
                }
            };
            match checked {
                Ok(port) => self.to_router(io, one.frame, port),
                Err(stop) => self.stops(io, one.frame, one.port, stop),
            }
        }
        self.waiting = waiting;
    }

    /// Where SAs are the kernel's: the port on which a packet goes on, in clear or as it came, for Linux.
    fn left_or_arrives<T>(
        &self,
        at: usize,
        one: &mut WaitingFrame<T>,
        properties: &Template,
        is_reported: bool,
        now_ns: u64,
    ) -> usize {
        let WaitingFrame { frame, network, port, .. } = one;
        let (network, port) = (*network, *port);
        let Some(linux) = &self.linux else { return port };
        // Linux tells IKE about another sender, if it gets the packet.
        if !is_reported
            && requires(&self.policies, frames::packet(frame, network), properties)
            && let Ok(on) = self.arrives_on(frame, network, port, properties.if_id)
            && !linux.takes(frame.data(), on, now_ns)
        {
            return on;
        }
        linux.restore(at, frame);
        port
    }

    /// The port on which a packet of an SA arrives in clear: that of its ESP packet, or that of its interface.
    fn arrives_on(&self, frame: &mut Frame, network: usize, port: usize, if_id: u32) -> Result<usize, Stop> {
        if if_id == 0 {
            return Ok(port);
        }
        self.interfaces.arrives(frame, network, if_id).map(|()| self.interfaces.port).map_err(Stop::Drop)
    }

    /// Tells the daemon if a packet of the SA came from elsewhere, and was the peer's; whether it was told.
    #[inline]
    fn report_sender(&mut self, at: usize, outcome: Result<(), Failure>, now_ns: u64) -> bool {
        let Some((source, port)) = self.senders.get(at).copied().flatten() else { return false };
        let is_of_peer = outcome.map_or_else(Failure::is_of_peer, |()| true);
        if let Some(moved) =
            is_of_peer.then(|| self.sas[self.waiting_for].report(source, port, now_ns)).flatten()
        {
            self.rings.commands.iter_mut().for_each(|commands| commands.report(Report::Moved(moved)));
            return true;
        }
        false
    }

    /// RFC 4301 5.2: whether a policy lets a packet pass that came out of this SA, or in clear.
    fn check(&self, packet: &[u8], from: Option<(SaId, Template)>) -> Result<(), Stop> {
        // The router drops what is malformed.
        let Some(key) = key(packet) else { return Ok(()) };
        let if_id = from.map_or(0, |(_, from)| from.if_id);
        match find(&self.policies, if_id, &key) {
            // As in Linux: what comes out of an interface needs a policy.
            None if if_id != 0 => Err(Stop::Drop(Reason::IpsecPolicy)),
            Some(Action::Discard) => Err(Stop::Drop(Reason::IpsecPolicy)),
            Some(Action::Protect(id)) if from.is_none_or(|(from, _)| from != id) => {
                Err(Stop::Drop(Reason::IpsecPolicy))
            }
            Some(Action::OneOf(list)) if !from.is_some_and(|(from, _)| self.is_of(list, from)) => {
                Err(Stop::Drop(Reason::IpsecPolicy))
            }
            Some(Action::Template(_, template)) if !from.is_some_and(|(_, from)| template.takes(&from)) => {
                Err(Stop::Drop(Reason::IpsecPolicy))
            }
            _ => Ok(()),
        }
    }

    /// Whether an SA is one of a list.
    fn is_of(&self, list: u32, sa: SaId) -> bool {
        self.lists.get(list as usize).is_some_and(|list| list.contains(&sa))
    }

    /// Carries out what has been decided about SAs and policies since the last call.
    fn follow(&mut self) {
        while let Some(command) = self.rings.command() {
            match command {
                Command::Receive(receiver) => {
                    let owner = Owner::Mine(self.sas.len());
                    if self.owners.insert(receiver.sa.id(), owner).is_ok() {
                        self.sas.push(*receiver);
                    }
                }
                Command::Elsewhere(id, worker, _) => drop(self.owners.insert(id, Owner::Other(worker))),
                Command::Remove(id, _) => self.remove(id),
                Command::Policies(policies) => {
                    self.has_policies = policies.has(Direction::In);
                    self.policies = policies;
                }
                Command::Send(..) | Command::Current(..) => {}
            }
            self.destinations = self.owners.iter().map(|(id, _)| id.destination).collect();
            self.destinations.sort_unstable();
            self.destinations.dedup();
            self.rings.done();
        }
    }

    fn remove(&mut self, id: SaId) {
        let Some(Owner::Mine(at)) = self.owners.remove(id) else { return };
        self.sas.swap_remove(at);
        // The last one has taken its place.
        if let Some(owner) = self.sas.get(at).and_then(|moved| self.owners.find(moved.sa.id())) {
            *owner = Owner::Mine(at);
        }
    }

    /// Whether the packet is for an address that inbound SAs have.
    fn is_ours(&self, packet: &[u8]) -> bool {
        let destination = match packet.first().map(|first| first >> 4) {
            Some(4) => Ipv4::parse(packet).ok().map(|ip| Ipv4Addr::from(ip.destination()).into()),
            Some(6) => Ipv6::parse(packet).ok().map(|ip| Ipv6Addr::from(ip.destination()).into()),
            _ => None,
        };
        destination.is_some_and(|destination: IpAddr| self.destinations.binary_search(&destination).is_ok())
    }
}

/// Whether a policy requires that a packet has come out of an SA with these properties.
fn requires(policies: &Policies, packet: &[u8], of: &Template) -> bool {
    let action = key(packet).and_then(|key| find(policies, of.if_id, &key));
    matches!(action, Some(Action::Template(_, template)) if template.takes(of))
}

/// What the policies of an interface, or those of none, say about a packet that came in.
#[inline]
fn find(policies: &Policies, if_id: u32, key: &Key) -> Option<Action> {
    let policies = if if_id == 0 { Some(policies) } else { policies.of_interface(if_id) };
    policies?.find(Direction::In, key).map(|policy| policy.action)
}

/// Whether a closer look may find ESP: most packets need none.
#[inline]
fn may_be_esp(packet: &[u8]) -> bool {
    match packet.first().map(|first| first >> 4) {
        Some(4) => match packet.get(9) {
            Some(&protocol::ESP) => true,
            // Either port may be 4500; a header with options is looked at closer.
            Some(&protocol::UDP) => packet[0] != 0x45 || packet.get(20..24).is_some_and(is_nat_traversal),
            _ => false,
        },
        Some(6) => match packet.get(6) {
            Some(&protocol::UDP) => packet.get(40..44).is_some_and(is_nat_traversal),
            Some(&(protocol::TCP | protocol::ICMPV6)) | None => false,
            Some(_) => true,
        },
        _ => false,
    }
}

#[inline]
fn is_nat_traversal(ports: &[u8]) -> bool {
    ports[..2] == NAT_TRAVERSAL || ports[2..] == NAT_TRAVERSAL
}

impl App for Decryption {
    /// # Panics
    /// If an input names no port: its frames would never be processed.
    fn connect(&mut self, inputs: &[String], outputs: &[String]) {
        let unknown = "each link to the decryption has the name of its port";
        self.inputs.clear();
        for name in inputs {
            let name = name.split(':').next().unwrap_or(name);
            self.inputs.push(self.ports.iter().position(|port| port == name).expect(unknown));
        }
        self.outputs.clear();
        for port in &self.ports {
            self.outputs.push(outputs.iter().position(|name| name == port));
        }
    }

    fn push(&mut self, io: &mut Io<'_>) {
        self.follow();
        while let Some(frame) = self.rings.pop() {
            self.account.add(Entry::Received, 1);
            let port = usize::from(frame.meta().port);
            self.arrives(io, frame, port, true);
        }
        for input in 0..io.inputs() {
            let Some(&port) = self.inputs.get(input) else { continue };
            while let Some(frame) = io.receive(input) {
                self.account.add(Entry::Received, 1);
                self.arrives(io, frame, port, false);
            }
        }
        self.decrypt(io);
        self.rings.wake();
        self.linux.iter_mut().for_each(LeftToLinux::quiescent);
        self.interfaces.quiescent();
    }

    fn before_sleep(&mut self) -> bool {
        self.linux.iter_mut().for_each(LeftToLinux::before_sleep);
        self.interfaces.before_sleep();
        self.rings.before_sleep()
    }

    fn after_sleep(&mut self) {
        self.rings.after_sleep();
        self.linux.iter_mut().for_each(LeftToLinux::after_sleep);
        self.interfaces.after_sleep();
    }

    fn stop(&mut self, io: &mut Io<'_>) {
        self.rings.stop(io, &self.account);
        stop_inputs(io, &self.account);
    }
}
