//! SAs and policies that come and go while workers run.
//!
//! ```text
//! Controls ── Command ─► ring ─► an app: before its next packet          Controls ◄─ ring ── Wanted: a policy has no SA
//! ```
//!
//! The owner of a new SA gets it first, and [`settle`] waits until it has it; then the other workers get it. So no
//! worker hands a packet to one that does not know the SA yet.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bm_filter::Key;
use bm_ipsec::{Block, Esp, Inbound, Mode, Outbound, Policies, Sa, SaId, Template};
use bm_link::{Consumer, Producer, channel};

use super::sleeper::Sleeper;
use super::{Ends, PolicySas, SaStatus};

/// Commands that can wait for an app: more than are sent before one waits for it.
const COMMANDS: usize = 256;
/// Packets that can ask for an SA, or come from another address, before the daemon reads them.
const REPORTS: usize = 16;
/// How often the daemon looks at once whether workers are done, before it sleeps between looks.
const SHORT_NAPS: u32 = 20;
/// How often a worker says where packets of an SA come from.
const MOVED_EVERY_NS: u64 = 1_000_000_000;

/// What an app is to do before its next packet.
pub(super) enum Command {
    /// This worker has a new inbound SA.
    Receive(Box<Receiver>),
    /// This worker has a new outbound SA.
    Send(Box<Sender>, Option<Ends>),
    /// Another worker has a new SA; for an outbound tunnel with its ends.
    Elsewhere(SaId, usize, Option<Ends>),
    Remove(SaId, Option<Ends>),
    /// Use these in place of all others.
    Policies(Arc<Policies>),
    /// Use these SAs for the template with this number.
    Current(u32, Box<PolicySas>),
}

/// An inbound SA of a worker.
pub(super) struct Receiver {
    pub sa: Inbound,
    /// What templates ask for.
    pub properties: Template,
    pub status: Arc<SaStatus>,
    /// With UDP encapsulation, where its packets come from.
    pub peer: Option<Peer>,
}

/// The end of an inbound SA in UDP. A NAT may change its address and port.
pub(super) struct Peer {
    address: IpAddr,
    port: u16,
    told_ns: Option<u64>,
}

impl Receiver {
    pub fn new(of: &Sa, sa: Inbound, status: Arc<SaStatus>) -> Self {
        // Without a replay window, anybody can have sent a packet again.
        let udp = of.udp.filter(|_| of.replay_window > 0);
        let peer = udp.map(|udp| Peer { address: of.source, port: udp.source, told_ns: None });
        Self { sa, properties: Template::of(of), status, peer }
    }

    /// The sender of a packet, if it is not the one that the SA has.
    #[inline]
    pub fn moved(&self, packet: &[u8], esp: &Esp) -> Option<(IpAddr, u16)> {
        let peer = self.peer.as_ref()?;
        // Any port is right for an SA with port 0.
        let (address, port) = esp.sender(packet)?;
        (address != peer.address || ![0, port].contains(&peer.port)).then_some((address, port))
    }

    /// What to say about the sender of a packet whose ICV was correct; nothing if that was said a short time ago.
    #[cold]
    pub fn report(&mut self, source: IpAddr, port: u16, now_ns: u64) -> Option<Moved> {
        let peer = self.peer.as_mut()?;
        if peer.told_ns.is_some_and(|told| now_ns.saturating_sub(told) < MOVED_EVERY_NS) {
            return None;
        }
        peer.told_ns = Some(now_ns);
        Some(Moved { id: self.sa.id(), source, port })
    }
}

/// An outbound SA of a worker.
pub(super) struct Sender {
    pub sa: Outbound,
    pub more: Consumer<Block>,
    pub status: Arc<SaStatus>,
    /// The far end of a tunnel, to which all ESP packets go; in transport mode they go to several hosts.
    pub peer: Option<IpAddr>,
    /// As configured; the MTU of the route may be smaller.
    pub path_mtu: u16,
    /// As routers on the way have told.
    pub learned_mtu: u16,
    /// What the SA uses.
    pub current_mtu: u16,
    /// Where the tables are in which it was looked up; 0 for none.
    pub looked_up_in: usize,
}

impl Sender {
    pub fn new(of: &Sa, sa: Outbound, more: Consumer<Block>, status: Arc<SaStatus>) -> Self {
        let peer = (of.mode == Mode::Tunnel).then_some(of.destination);
        Self {
            sa,
            more,
            status,
            peer,
            path_mtu: of.path_mtu,
            learned_mtu: u16::MAX,
            current_mtu: 0,
            looked_up_in: 0,
        }
    }
}

/// A packet that needs an SA for a template.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub template: u32,
    pub packet: Key,
    /// The worker that it is for, which has an SA for its packets meanwhile; `None` for all.
    pub worker: Option<u32>,
}

/// Packets of an inbound SA that come from another address or UDP port than it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    pub id: SaId,
    pub source: IpAddr,
    pub port: u16,
}

/// What an app says to the daemon.
#[derive(Clone, Copy, Debug)]
pub(super) enum Report {
    Wanted(Wanted),
    Moved(Moved),
}

/// An app's end.
pub(super) struct Commands {
    ring: Consumer<Command>,
    done: Arc<AtomicU64>,
    reports: Producer<Report>,
}

/// The daemon's end.
pub(super) struct Control {
    ring: Producer<Command>,
    done: Arc<AtomicU64>,
    sent: u64,
    reports: Consumer<Report>,
    sleeper: Sleeper,
}

/// Both ends, for an app of this worker.
pub(super) fn commands(sleeper: Sleeper) -> (Control, Commands) {
    let (producer, ring) = channel(COMMANDS);
    let (reports, read) = channel(REPORTS);
    let done = Arc::new(AtomicU64::new(0));
    let control = Control { ring: producer, done: done.clone(), sent: 0, reports: read, sleeper };
    (control, Commands { ring, done, reports })
}

impl Commands {
    /// The next command; afterwards `done` must be called.
    #[inline]
    pub fn pop(&mut self) -> Option<Command> {
        self.ring.pop()
    }

    pub fn done(&self) {
        self.done.fetch_add(1, Ordering::Release);
    }

    /// Whether a command waits.
    pub fn is_waiting(&mut self) -> bool {
        self.ring.readable() > 0
    }

    /// Says something; if the ring is full, the daemon has enough to do with what was said before.
    pub fn report(&mut self, report: Report) {
        let _full = self.reports.push(report);
    }
}

impl Control {
    /// Sends a command. An app that does not take it hangs or is gone; the one that replaces it starts with all SAs.
    fn send(&mut self, command: Command) {
        if self.ring.push(command).is_ok() {
            self.sent += 1;
            self.sleeper.wake();
        }
    }

    fn has_settled(&self) -> bool {
        self.ring.is_closed() || self.done.load(Ordering::Acquire) >= self.sent
    }
}

/// The apps of all workers, for the daemon, which adds and removes SAs.
pub struct Controls {
    /// By direction, then worker.
    pub(super) inbound: Vec<Control>,
    pub(super) outbound: Vec<Control>,
}

/// An SA that workers get while they run.
pub enum NewSa {
    In(Inbound),
    /// With the numbers after its first ones.
    Out(Outbound, Consumer<Block>),
}

impl Controls {
    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.inbound.len()
    }

    /// Gives an SA to a worker, then lets the others know who has it. `false` if a worker has not taken it within
    /// `longest`: it hangs, or has not started yet.
    pub fn add(
        &mut self,
        sa: &Sa,
        new: NewSa,
        worker: usize,
        status: Arc<SaStatus>,
        longest: Duration,
    ) -> bool {
        let id = sa.id();
        let ends = (sa.mode == Mode::Tunnel).then(|| Ends::of(sa));
        let (apps, command, ends) = match new {
            NewSa::In(inbound) => {
                let receiver = Receiver::new(sa, inbound, status).into();
                (&mut self.inbound, Command::Receive(receiver), None)
            }
            NewSa::Out(out, more) => {
                let sender = Sender::new(sa, out, more, status).into();
                (&mut self.outbound, Command::Send(sender, ends), ends)
            }
        };
        if let Some(owner) = apps.get_mut(worker) {
            owner.send(command);
        }
        let owned = settle(apps, longest);
        let others = apps.iter_mut().enumerate().filter(|(index, _)| *index != worker);
        others.for_each(|(_, app)| app.send(Command::Elsewhere(id, worker, ends)));
        settle(apps, longest) && owned
    }

    /// Removes an SA from all workers: when this returns true, none of them has its keys.
    pub fn remove(&mut self, sa: &Sa, longest: Duration) -> bool {
        let (apps, ends) = match sa.direction {
            bm_ipsec::Direction::In => (&mut self.inbound, None),
            bm_ipsec::Direction::Out => (&mut self.outbound, (sa.mode == Mode::Tunnel).then(|| Ends::of(sa))),
        };
        apps.iter_mut().for_each(|app| app.send(Command::Remove(sa.id(), ends)));
        settle(apps, longest)
    }

    /// Replaces all policies, after the SAs of a template that is new in these.
    pub fn set_policies(
        &mut self,
        policies: &Arc<Policies>,
        current: Option<(u32, PolicySas)>,
        longest: Duration,
    ) -> bool {
        let Self { inbound, outbound } = self;
        if let Some((template, sas)) = current {
            outbound.iter_mut().for_each(|app| app.send(Command::Current(template, sas.clone().into())));
        }
        inbound
            .iter_mut()
            .chain(&mut *outbound)
            .for_each(|app| app.send(Command::Policies(policies.clone())));
        // Both, also if one hangs.
        settle(inbound, longest) & settle(outbound, longest)
    }

    /// Replaces the SAs of a template.
    pub fn set_current(&mut self, template: u32, sas: &PolicySas, longest: Duration) -> bool {
        self.outbound.iter_mut().for_each(|app| app.send(Command::Current(template, sas.clone().into())));
        settle(&self.outbound, longest)
    }

    /// Packets that need an SA.
    pub fn wanted(&mut self) -> Vec<Wanted> {
        let wanted = reports(&mut self.outbound).map(|report| match report {
            Report::Wanted(wanted) => Some(wanted),
            Report::Moved(_) => None,
        });
        wanted.flatten().collect()
    }

    /// Inbound SAs whose packets come from elsewhere.
    pub fn moved(&mut self) -> Vec<Moved> {
        let moved = reports(&mut self.inbound).map(|report| match report {
            Report::Moved(moved) => Some(moved),
            Report::Wanted(_) => None,
        });
        moved.flatten().collect()
    }
}

/// What apps have said since the last call, at most as much as their rings hold.
fn reports(apps: &mut [Control]) -> impl Iterator<Item = Report> {
    apps.iter_mut().flat_map(|app| std::iter::from_fn(|| app.reports.pop()).take(REPORTS))
}

/// Waits until all apps have carried out what they were sent.
fn settle(apps: &[Control], longest: Duration) -> bool {
    let (start, mut naps) = (Instant::now(), 0);
    while !apps.iter().all(Control::has_settled) {
        if start.elapsed() >= longest {
            return false;
        }
        // A worker that is awake needs some microseconds.
        if naps < SHORT_NAPS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(50));
        }
        naps += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IpsecWorker;
    use bm_graph::Waker;
    use bm_ipsec::{Direction, Numbers, Secret, Suite};

    /// Waits for the next command of an app.
    fn next(commands: &mut Commands) -> Command {
        loop {
            match commands.pop() {
                Some(command) => return command,
                None => std::thread::yield_now(),
            }
        }
    }

    fn sa() -> Sa {
        let id = SaId { spi: 0x1001, destination: [192, 0, 2, 2].into() };
        let mut sa = Sa::new(Direction::Out, id, [192, 0, 2, 1].into(), Suite::Aes128Gcm);
        sa.encryption_key = Secret::new(&[7; 20]);
        sa
    }

    fn new(sa: &Sa) -> NewSa {
        let (_, more) = channel(2);
        NewSa::Out(Outbound::new(sa, Numbers::new(false).reserve(9).unwrap(), 0, 0).unwrap(), more)
    }

    #[test]
    fn the_owner_has_an_sa_before_other_workers_know_it() {
        let wakers = [Waker::new().unwrap(), Waker::new().unwrap()];
        let (mut workers, mut controls) = IpsecWorker::all(&wakers, 4);
        let [mut other, mut owner] = [0, 1].map(|at: usize| workers[at].rings[1].commands.take().unwrap());
        let adding = std::thread::spawn(move || {
            let sa = sa();
            controls.add(&sa, new(&sa), 1, Arc::default(), Duration::from_secs(60))
        });
        assert!(matches!(next(&mut owner), Command::Send(sender, Some(_)) if sender.sa.id() == sa().id()));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!other.is_waiting());
        owner.done();
        assert!(matches!(next(&mut other), Command::Elsewhere(id, 1, Some(_)) if id == sa().id()));
        other.done();
        assert!(adding.join().unwrap() && !owner.is_waiting());
    }

    #[test]
    fn a_worker_that_hangs_is_waited_for_in_vain_and_one_that_is_gone_is_not() {
        let (mut workers, mut controls) = IpsecWorker::all(&[Waker::new().unwrap()], 4);
        let short = Duration::from_millis(5);
        assert!(!controls.remove(&sa(), short));
        workers.clear();
        assert!(controls.remove(&sa(), short));
    }

    #[test]
    fn packets_ask_for_an_sa_as_long_as_there_is_room() {
        let (mut workers, mut controls) = IpsecWorker::all(&[Waker::new().unwrap()], 4);
        let mut commands = workers[0].rings[1].commands.take().unwrap();
        let wanted = |template| Report::Wanted(Wanted { template, packet: Key::default(), worker: None });
        (0..100).for_each(|template| commands.report(wanted(template)));
        let asked: Vec<u32> = controls.wanted().iter().map(|wanted| wanted.template).collect();
        assert_eq!(asked, Vec::from_iter(0..REPORTS as u32));
        assert!(controls.wanted().is_empty());
    }
}
