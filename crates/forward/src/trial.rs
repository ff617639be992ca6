//! What the router would do with one frame: the same filters, stages and slow path, with nothing behind them.
//!
//! ```text
//! frame -> filters -> stages of a worker -> slow path -> Outcome
//!             '----------'-------------------'--- tables whose next hops and counters are a copy
//! ```
//!
//! `explain` asks this, so it cannot disagree with workers. Each trial has a slow path, accounts and counters of its own,
//! which end with it: nothing is sent, counted or held, Linux is asked for no neighbor, and no next hop is marked as used.
//!
//! Never here: hooks, apps, ESP, rates of sources and of ICMP errors, since these depend on more than the packet.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bm_fib::NextHop;
use bm_fib::published::{Published, Readers};
use bm_frame::{Frame, FramePool, Freelist, Pages};
use bm_graph::Waker;
use bm_port::HostPort;
use bm_stats::{Account, Counters, Reason, Registry, Scope, StatsError};
use bm_sys::Mutex;
use bm_wire::Family;

use crate::burst::InputPort;
use crate::filter::{FilterSet, FilterVerdict, PortFilter, RuleCounts};
use crate::punt_queue::PuntQueue;
use crate::route::{self, Route};
use crate::slow::Header;
use crate::stages::input::{self, Arrival};
use crate::stages::rewrite;
use crate::stages::route_one;
use crate::stages::validate;
use crate::tables::Tables;
use crate::verdict::{Refusal, Verdict};
use crate::{Now, Resolver, SlowConfig, SlowCounter, SlowPath, SlowPort, SlowReturn, WaitLimits};

/// Frames of a trial: the packet, its fragments, ICMP errors.
const FRAMES: usize = 64;
/// Bytes of each slot, for jumbo frames.
const SLOT: usize = 16 * 1024;
/// Words of counters that an account takes, with its names.
const ACCOUNT: usize = 96;

/// What becomes of a frame in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It is sent, in fragments if there is more than one frame in [`Outcome::sent`].
    Sent,
    /// Linux gets it, unchanged.
    Linux,
    /// It waits until this neighbor is resolved, on the interface with this index in Linux.
    Held { ifindex: u32, neighbor: IpAddr },
    /// It is dropped; an ICMP error about it may be in [`Outcome::sent`].
    Dropped(Reason),
}

/// What the tables say about the way of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteInfo {
    /// The interface that it arrived on.
    pub interface: u16,
    /// The routing table.
    pub vrf: u16,
    pub destination: IpAddr,
    /// Bytes of the packet.
    pub length: usize,
    /// The next hop of the route, which may be a group.
    pub route: NextHop,
    /// That next hop, or the member of the group for this flow.
    pub next_hop: NextHop,
    /// The interface that it leaves by and the neighbor there, if it leaves.
    pub neighbor: Option<(u16, IpAddr)>,
    /// The largest packet that the route and the interface allow; 0 for an interface that is down.
    pub mtu: usize,
}

/// The result of a trial.
pub struct Outcome {
    /// What filters did, if anything.
    pub filtered: Option<FilterVerdict>,
    /// The counter of the claim that the packet matches, if filters pass it; only the kernel path looks at claims.
    pub claim: Option<u16>,
    /// The matches of filter rules.
    matches: Option<Arc<RuleCounts>>,
    /// The way of the packet; `None` if it is none of those whose route is looked up.
    pub routed: Option<RouteInfo>,
    /// Why the slow path got it, if it did.
    pub verdict: Option<Verdict>,
    pub fate: Disposition,
    /// The frames that leave, each with its port.
    pub sent: Vec<(u16, Vec<u8>)>,
}

impl Outcome {
    /// For a packet without filters, and without what is sent.
    pub fn new(routed: Option<RouteInfo>, verdict: Option<Verdict>, fate: Disposition) -> Self {
        Self { filtered: None, claim: None, matches: None, routed, verdict, fate, sent: Vec::new() }
    }

    /// Whether the packet matched the filter rules that count with this counter.
    pub fn matched(&self, counter: u16) -> bool {
        self.matches.as_ref().is_some_and(|matches| matches.count(counter) > 0)
    }
}

/// Why a trial is impossible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DryRunError {
    /// The frame is longer than this many bytes.
    TooLong(usize),
    /// What the system said when it was asked for memory or a descriptor.
    System(String),
}

impl fmt::Display for DryRunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(most) => write!(f, "the frame is longer than {most} bytes"),
            Self::System(error) => f.write_str(error),
        }
    }
}

impl std::error::Error for DryRunError {}

fn system(error: impl fmt::Display) -> DryRunError {
    DryRunError::System(error.to_string())
}

/// Memory for trials, which is never returned to the system: make one and keep it.
pub struct DryRun {
    frame_pool: Arc<FramePool>,
    accounts: Accounts,
}

/// Where trials count: nobody reads them but trials.
#[derive(Clone, Copy)]
struct Accounts {
    /// Of the port that the frame arrived on.
    packet: Account,
    /// Of all other ports and queues.
    others: Account,
    slow: Counters<SlowCounter>,
}

impl Accounts {
    fn new() -> Result<Self, StatsError> {
        let registry = Registry::anonymous(3 * ACCOUNT)?;
        Ok(Self {
            packet: Account::open(&registry, Scope::Other("packet"))?,
            others: Account::open(&registry, Scope::Other("others"))?,
            slow: Counters::open(&registry, Scope::Slow)?,
        })
    }
}

impl DryRun {
    /// Memory for one trial at a time.
    ///
    /// # Errors
    /// If there is none.
    pub fn new() -> Result<Self, DryRunError> {
        let frame_pool = FramePool::on(FRAMES, SLOT, Pages::Plain).map_err(system)?;
        Ok(Self { frame_pool, accounts: Accounts::new().map_err(system)? })
    }

    fn frame(&self, bytes: &[u8]) -> Result<Frame, DryRunError> {
        let mut frame = self.frame_pool.take().ok_or_else(|| system("no free frame"))?;
        match frame.copy_from(bytes) {
            Ok(()) => Ok(frame),
            Err(_) => {
                self.frame_pool.give(frame);
                Err(DryRunError::TooLong(self.frame_pool.memory().room()))
            }
        }
    }

    /// What the router would do now with a frame that arrives on `port`.
    ///
    /// The caller is the writer of the tables, or registered as their reader.
    ///
    /// # Errors
    /// If the frame is too long, or there is no memory.
    pub fn run(
        &mut self,
        tables: &Tables,
        port: usize,
        bytes: &[u8],
        now: Now,
    ) -> Result<Outcome, DryRunError> {
        let filters = tables.filters.as_deref().map(|set| set.isolated(tables.ports.len()));
        let filters: Option<FilterSet> = filters.transpose().map_err(system)?;
        let matches = filters.as_ref().map(|set| Arc::clone(&set.counts));
        let tables = tables.isolated(filters).map_err(system)?;
        let routed = routed(&tables, port, bytes);
        let mut frame = self.frame(bytes)?;
        let filter = PortFilter::of(&tables, port, 0, now.monotonic_ns);
        let filtered = filter.as_ref().and_then(|filter| filter.takes(bytes));
        let claim = filter.and_then(|filter| filter.claim(bytes)).filter(|_| filtered.is_none());
        let done = match filtered {
            Some(FilterVerdict::Drop(reason)) => Err(Refusal::Drop(reason)),
            Some(FilterVerdict::LinuxOnly) => Err(Refusal::Slow(Verdict::LinuxOnly)),
            None => InputPort::of(&tables, port, None, now.monotonic_ns)
                .and_then(|from| route_one(&from, &mut frame)),
        };
        let outcome = Outcome::new(routed, None, Disposition::Sent);
        let mut outcome = Outcome { filtered, claim, matches, ..outcome };
        match done {
            Ok(port) | Err(Refusal::Send(port)) => {
                outcome.sent.push((port, frame.data().to_vec()));
                self.frame_pool.give(frame);
            }
            Err(Refusal::Drop(reason)) => {
                outcome.fate = Disposition::Dropped(reason);
                self.frame_pool.give(frame);
            }
            Err(Refusal::Slow(verdict)) => {
                outcome.verdict = Some(verdict);
                let mut slow = Slow::new(tables, self, port)?;
                (outcome.fate, outcome.sent) = slow.handle(frame, port, verdict, now);
            }
        }
        Ok(outcome)
    }
}

/// What the tables say about the way of the packet in a frame.
fn routed(tables: &Tables, port: usize, bytes: &[u8]) -> Option<RouteInfo> {
    let view = tables.compiled.ports.get(port)?;
    let Arrival { interface, network, family } = input::classify(&tables.compiled, view, bytes).ok()?;
    let packet = bytes.get(usize::from(network)..)?;
    let checked = match family {
        Family::V4 => validate::ipv4(packet).map(|_| ()),
        Family::V6 => validate::ipv6(packet).map(|_| ()),
    };
    match checked {
        // These are routed all the same, by the slow path.
        Err(Refusal::Slow(Verdict::Options | Verdict::HopByHop | Verdict::SourceScope)) => {}
        other => other.ok()?,
    }
    let Header { destination, length, .. } = Header::parse(packet)?;
    let vrf = tables.compiled.ingress.get(usize::from(interface))?.vrf;
    let table = tables.vrfs.get(usize::from(vrf))?;
    let route = match destination {
        IpAddr::V4(address) => table.ipv4.lookup(address.into()),
        IpAddr::V6(address) => table.ipv6.lookup(address.into()),
    };
    let hash = || rewrite::hash(tables, packet);
    let next_hop = if tables.next_hops.entry(route).is_group() {
        tables.next_hops.resolve(route, hash()).0
    } else {
        route
    };
    let gateway = || tables.next_hops.gateway(next_hop).address.unwrap_or(destination);
    let neighbor = match route::to(tables, vrf, destination, hash) {
        Route::Forward { entry, .. } => Some((entry.interface(), gateway())),
        Route::Resolve { neighbor, .. } => Some((neighbor.interface, neighbor.address)),
        _ => None,
    };
    let egress = neighbor.and_then(|(out, _)| rewrite::egress(tables, out).ok());
    let mtu = egress.map_or(0, |egress| rewrite::mtu(egress, tables.next_hops.mtu(next_hop)).into());
    Some(RouteInfo { interface, vrf, destination, length, route, next_hop, neighbor, mtu })
}

/// Whether Linux got a frame.
#[derive(Clone, Default)]
struct Linux(Arc<AtomicBool>);

impl HostPort for Linux {
    fn deliver(&mut self, _packet: &[u8]) -> io::Result<()> {
        self.0.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// The neighbors that Linux would be asked for.
#[derive(Clone, Default)]
struct NeighborRequests(Arc<Mutex<Vec<(u32, IpAddr)>>>);

impl Resolver for NeighborRequests {
    fn resolve(&mut self, ifindex: u32, address: IpAddr) {
        self.0.lock().push((ifindex, address));
    }
}

/// A slow path for one frame.
struct Slow {
    path: SlowPath,
    punt_queue: PuntQueue,
    back: SlowReturn,
    /// Of the port that the frame arrived on.
    account: Account,
    linux: Linux,
    asked: NeighborRequests,
}

impl Slow {
    fn new(tables: Tables, trial: &DryRun, port: usize) -> Result<Self, DryRunError> {
        let Accounts { packet, others, slow } = trial.accounts;
        let ports = tables.ports.len().max(port + 1);
        let (readers, linux, asked) = (Readers::new(), Linux::default(), NeighborRequests::default());
        let mut path = SlowPath::new(SlowConfig {
            published: Arc::new(Published::new(tables, &readers)),
            reader: readers.register(),
            frames: Freelist::new(Arc::clone(&trial.frame_pool), FRAMES),
            resolver: Box::new(asked.clone()),
            waker: Waker::new().map_err(system)?,
            counters: slow,
            waits: WaitLimits::default(),
            seed: 0,
        });
        let (punt_queue, back) = path.add_worker(FRAMES, Vec::new(), others, None);
        for index in 0..ports {
            let account = if index == port { packet } else { others };
            path.add_port(SlowPort { account, host: Some(Box::new(linux.clone())), worker: 0 });
        }
        Ok(Self { path, punt_queue, back, account: packet, linux, asked })
    }

    /// What becomes of a frame that a worker passes on, and the frames that leave.
    fn handle(
        &mut self,
        mut frame: Frame,
        port: usize,
        verdict: Verdict,
        now: Now,
    ) -> (Disposition, Vec<(u16, Vec<u8>)>) {
        let meta = frame.meta_mut();
        (meta.port, meta.verdict, meta.chosen) = (port as u16, verdict as u16, 0);
        let drops = |account: &Account| Reason::ALL.iter().map(|reason| account.dropped(*reason)).collect();
        let before: Vec<u64> = drops(&self.account);
        // Both queues are empty.
        let _queued = self.punt_queue.push(frame, verdict.is_for_host());
        self.path.run(now);
        let mut sent = Vec::new();
        while let Some(frame) = self.back.pop() {
            sent.push((frame.meta().port, frame.data().to_vec()));
            self.path.free(frame);
        }
        let more = drops(&self.account).into_iter().zip(before).position(|(now, before)| now > before);
        let dropped = more.and_then(|at| Reason::ALL.get(at)).copied();
        let asked = self.asked.0.lock().first().copied();
        let fate = match (dropped, asked) {
            _ if self.linux.0.load(Ordering::Relaxed) => Disposition::Linux,
            (Some(reason), _) => Disposition::Dropped(reason),
            (None, Some((ifindex, neighbor))) => Disposition::Held { ifindex, neighbor },
            (None, None) => Disposition::Sent,
        };
        self.path.stop();
        (fate, sent)
    }
}
