//! The slow path: handles what the fast path refuses, one frame at a time, on a separate thread.
//!
//! ```text
//! workers' queues -> decide anew -> Linux                      (HostPort of the frame's port)
//!                                -> error to the source        (ICMP, ICMPv6: chosen, limited, routed)
//!                                -> cut, options written       (sent)
//!                                -> wait for the neighbor     (asked for, bounded, given up in time)
//!                                -> a named drop
//! sent: queue of the worker that owns the port -> SlowReturn -> the port's link
//! ```
//!
//! [`SlowPath::run`] is one step; [`SlowThread`](crate::SlowThread) calls it repeatedly, tests call it with their own
//! clock. It may allocate and make system calls, but it never waits: an unresolved neighbor delays only the frames
//! that need it.

mod address;
mod cut;
mod encrypted;
mod error;
mod fragment;
mod fragment6;
mod header;
mod hold;
mod hook;
mod ipv4;
mod ipv6;
mod kernel;
mod leave;
mod limit;
mod onward;
mod option;
mod returning;
mod tell;
mod thread;
mod waiter;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use bm_fib::NextHop;
use bm_fib::next_hop::Entry as Hop;
use bm_fib::published::{Published, ReaderHandle};
use bm_frame::{Frame, Freelist};
use bm_graph::{StageHook, Waker};
use bm_link::{Producer, channel};
use bm_port::HostPort;
use bm_stats::{Account, Counters, Entry, Reason};
use bm_wire::Family;

pub use kernel::{OwnPackets, Resolution, Resolver};
pub use returning::SlowReturn;
pub use thread::SlowThread;
pub use waiting::WaitLimits;

use crate::filter::PortFilter;
use crate::ipsec::CurrentPolicies;
use crate::punt_queue::{Arrivals, Doorbell, PuntQueue, punt_queue};
use crate::route::{self, Route};
use crate::stages::Facts;
use crate::stages::input::{self, Arrival};
use crate::stages::rewrite;
use crate::tables::Tables;
use crate::verdict::{Refusal, Verdict};
pub(crate) use address::SOURCE_WITHOUT_ADDRESS;
use error::Error;
pub(crate) use header::Header;
use hook::SlowHooks;
use limit::{Bucket, IcmpLimits};
use waiter::Waiter;
use waiting::WaitingFrames;

/// The time of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds by the clock of the workers ([`bm_graph::clock_ns`]).
    pub monotonic_ns: u64,
    /// Milliseconds since midnight UTC, for the Timestamp option.
    pub midnight_ms: u32,
}

/// A port as the slow path sees it. Its index is its place in [`Tables::ports`].
pub struct SlowPort {
    /// The account of the frames of this port that workers passed on, and of those created for them.
    pub account: Account,
    /// Delivers frames to Linux; without one they are refused, and counted.
    pub host: Option<Box<dyn HostPort>>,
    /// The worker that sends on the port: its place in the order of [`SlowPath::add_worker`].
    pub worker: usize,
}

/// The configuration of a slow path.
pub struct SlowConfig {
    /// The tables, as workers read them.
    pub published: Arc<Published<Tables>>,
    /// Registered with the readers of `published`.
    pub reader: ReaderHandle,
    /// Frames to build with, and where frames end.
    pub frames: Freelist,
    /// Resolves neighbors.
    pub resolver: Box<dyn Resolver>,
    /// Wakes the slow path's thread.
    pub waker: Waker,
    /// Counters of [`SlowPath::COUNTERS`].
    pub counters: Counters<SlowCounter>,
    /// Limits for frames that wait for neighbors.
    pub waits: WaitLimits,
    /// Where the identifications of our own packets begin; any number.
    pub seed: u64,
}

/// The slow path. It belongs to one thread.
pub struct SlowPath {
    published: Arc<Published<Tables>>,
    reader: ReaderHandle,
    doorbell: Arc<Doorbell>,
    arrivals: Vec<Arrivals>,
    hooks: Option<Box<SlowHooks>>,
    /// The longest sleep while no frame waits for a neighbor.
    sleep_max: Duration,
    core: Core,
}

/// All that changes during a step, in which the tables stay the same.
struct Core {
    frames: Freelist,
    /// Buffer for a packet from a host TAP: a byte more than a frame can hold, so that a truncated one is noticed.
    host_tap: Box<[u8]>,
    ports: Vec<PortState>,
    workers: Vec<Return>,
    waiting: WaitingFrames<Waiter>,
    limits: IcmpLimits,
    alerts: Bucket,
    resolver: Box<dyn Resolver>,
    counters: Counters<SlowCounter>,
    random: u64,
    looked_ns: Option<u64>,
    /// Errors may have to be encrypted, which Linux would not do: all are sent here.
    encrypts: bool,
    policies: Option<CurrentPolicies>,
    own_packets: Option<Box<dyn OwnPackets>>,
}

struct PortState {
    account: Account,
    host: Option<Box<dyn HostPort>>,
    worker: usize,
    held: usize,
    /// For Linux, until there are more or the step ends.
    for_host: Vec<Frame>,
}

/// The queue back to a worker.
struct Return {
    queue: Producer<Frame>,
    waker: Option<Waker>,
    unrung: bool,
}

bm_stats::counter_kind! {
    /// The counters of the slow path, in addition to its accounts.
    pub enum SlowCounter {
        /// ICMP errors sent.
        ErrorsSent = "errors_sent",
        /// ICMP errors not sent, since none may be (RFC 1122 section 3.2.2, RFC 4443 section 2.4) or there is no route.
        ErrorsSilent = "errors_silent",
        /// ICMP errors not sent because of the limit for all destinations.
        ErrorsLimitedAll = "errors_limited_all",
        /// ICMP errors not sent because of the limit for one destination.
        ErrorsLimitedAddress = "errors_limited_address",
        /// Neighbors that the kernel was asked to resolve.
        ResolveAsked = "resolve_asked",
        /// Neighbors that answered.
        ResolveAnswered = "resolve_answered",
        /// Neighbors that did not answer.
        ResolveFailed = "resolve_failed",
        /// Packets with a Router Alert that were not given to Linux, because of the limit for them.
        AlertsLimited = "alerts_limited",
        /// Packets left to Linux for its firewall, IPsec policies or traffic control.
        LinuxOnly = "linux_firewall",
    }
}

/// Frames of one kind handled in one step, so that no queue starves another.
const STEP: usize = 256;
/// Packets with a Router Alert that Linux gets a second, and at once.
const ALERTS_PER_SECOND: u32 = 1000;
const ALERTS_BURST: u32 = 100;

/// A slow path reports progress this often.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// What is done with a frame, once decided.
enum Decision {
    Host,
    Drop(Reason),
    Tell(Error, Reason),
    Send(NextHop, Hop),
    Cut(NextHop, Hop, usize),
    Hold(route::Neighbor),
}

impl From<Refusal> for Decision {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Drop(reason) => Self::Drop(reason),
            Refusal::Slow(_) | Refusal::Send(_) => Self::Host,
        }
    }
}

impl SlowPath {
    /// A slow path without workers and ports yet.
    pub fn new(config: SlowConfig) -> Self {
        let SlowConfig { published, reader, frames, mut resolver, waker, counters, waits, seed } = config;
        resolver.set_waker(waker.clone());
        let host_tap = vec![0; frames.memory().room() + 1].into_boxed_slice();
        let core = Core {
            frames,
            host_tap,
            ports: Vec::new(),
            workers: Vec::new(),
            waiting: WaitingFrames::new(waits),
            limits: IcmpLimits::new(),
            alerts: Bucket::full(0),
            resolver,
            counters,
            random: seed,
            looked_ns: None,
            encrypts: false,
            policies: None,
            own_packets: None,
        };
        Self {
            published,
            reader,
            doorbell: Doorbell::new(waker),
            arrivals: Vec::new(),
            hooks: None,
            sleep_max: SLEEP_MAX,
            core,
        }
    }

    /// Lets `hook` process what comes from workers, before anything is decided.
    pub fn set_hook(&mut self, hook: Box<dyn StageHook>) {
        self.hooks = Some(SlowHooks::new(hook));
    }

    /// Adds a worker: returns the part for its router, which passes frames on, and the app that returns them to it.
    ///
    /// `capacity` is that of each queue; `ports` are the names of the ports by index, which are the names of the
    /// app's links; `account` is for the returned frames; `waker` wakes the worker.
    pub fn add_worker(
        &mut self,
        capacity: usize,
        ports: Vec<String>,
        account: Account,
        waker: Option<Waker>,
    ) -> (PuntQueue, SlowReturn) {
        let (punt_queue, arrivals) = punt_queue(capacity, &self.doorbell);
        let (queue, back) = channel(capacity);
        self.arrivals.push(arrivals);
        self.core.workers.push(Return { queue, waker, unrung: false });
        (punt_queue, SlowReturn::new(ports, back, account))
    }

    /// Adds IPsec of a worker, which passes frames on besides its router.
    pub fn add_punt_queue(&mut self, capacity: usize, policies: &CurrentPolicies) -> PuntQueue {
        let (punt_queue, arrivals) = punt_queue(capacity, &self.doorbell);
        self.arrivals.push(arrivals);
        (self.core.encrypts, self.core.policies) = (true, Some(policies.clone()));
        punt_queue
    }

    /// Sends ESP packets by `own_packets` whose route leads to Linux.
    pub fn set_own_packets(&mut self, own_packets: Box<dyn OwnPackets>) {
        self.core.own_packets = Some(own_packets);
    }

    /// Adds the next port.
    pub fn add_port(&mut self, port: SlowPort) {
        let SlowPort { account, host, worker } = port;
        self.core.ports.push(PortState { account, host, worker, held: 0, for_host: Vec::new() });
    }

    /// One step: handles waiting frames, up to a limit, and those that wait for neighbors. Returns how many frames
    /// it handled; 0 means that it may sleep.
    pub fn run(&mut self, now: Now) -> usize {
        let Self { published, reader, arrivals, hooks, core, .. } = self;
        let tables = published.load(reader);
        let mut handled = 0;
        let mut hooks = hooks.as_mut().and_then(|hooks| hooks.begin());
        for arrivals in arrivals {
            for queue in [&mut arrivals.host, &mut arrivals.work] {
                if let Some(hooks) = &mut hooks {
                    handled += hooks.take(core, tables, queue, now);
                    continue;
                }
                for _ in 0..STEP {
                    let Some(frame) = queue.pop() else { break };
                    core.take(tables, frame, now);
                    handled += 1;
                }
            }
        }
        handled += core.look_after_waiting(tables, now);
        core.hand_over_rest();
        handled += core.collect_from_host_taps();
        core.wake_workers();
        reader.quiescent();
        handled
    }

    /// Frees a frame that it has sent.
    pub(crate) fn free(&mut self, frame: Frame) {
        self.core.frames.free(frame);
    }

    /// Frees everything that waits, at the end, and counts it.
    pub fn stop(&mut self) {
        for arrivals in &mut self.arrivals {
            for queue in [&mut arrivals.host, &mut arrivals.work] {
                while let Some(frame) = queue.pop() {
                    self.core.count(&frame, Entry::Received);
                    self.core.lose(frame, Reason::Stopped);
                }
            }
        }
        self.core.drop_waiting();
    }

    /// Sleeps until a worker wakes it, Linux sends through a host TAP, or waiting frames are due for a check.
    fn sleep(&mut self, now: Now) {
        self.doorbell.sleeps();
        let queues = self.arrivals.iter_mut();
        let queued: usize = queues.map(|queue| queue.host.readable() + queue.work.readable()).sum();
        if queued == 0 {
            self.reader.offline();
            // A neighbor's answer appears in the tables, which wake no thread.
            let look = Duration::from_nanos(self.core.waiting.look_every_ns(now.monotonic_ns));
            let timeout = if self.core.waiting.is_empty() { self.sleep_max } else { look };
            let host_taps = self.core.ports.iter().filter_map(|port| port.host.as_ref()?.wait_on());
            self.doorbell.waker().wait(host_taps, timeout);
            self.reader.online();
            // The thread that woke this one may have resolved a neighbor.
            self.core.looked_ns = None;
        }
        self.doorbell.wakes();
    }
}

impl Core {
    fn bump(&self, counter: SlowCounter) {
        self.counters.add(counter, 1);
    }

    fn account(&self, frame: &Frame) -> Option<&Account> {
        self.ports.get(usize::from(frame.meta().port)).map(|port| &port.account)
    }

    fn count(&self, frame: &Frame, entry: Entry) {
        if let Some(account) = self.account(frame) {
            account.add(entry, 1);
        }
    }

    /// Drops a frame with a reason.
    fn lose(&mut self, frame: Frame, reason: Reason) {
        if let Some(account) = self.account(&frame) {
            account.drop(reason, 1);
        }
        self.frames.free(frame);
    }

    fn take(&mut self, tables: &Tables, frame: Frame, now: Now) {
        self.count(&frame, Entry::Received);
        match Verdict::from_code(frame.meta().verdict) {
            Some(Verdict::Host) => self.deliver(frame),
            Some(Verdict::LinuxOnly) => self.deliver_linux_only(frame),
            Some(Verdict::Encrypted) => self.send_encrypted(tables, frame, now),
            Some(Verdict::TooBigForEsp) => self.refuse_too_big_for_esp(tables, frame, now),
            Some(Verdict::Unprotected) => self.refuse_unprotected(tables, frame, now),
            _ => self.handle(tables, frame, now),
        }
    }

    /// Decides on a frame as it came from the wire, and carries that out.
    fn handle(&mut self, tables: &Tables, mut frame: Frame, now: Now) {
        let port = usize::from(frame.meta().port);
        let Some(view) = tables.compiled.ports.get(port) else {
            return self.deliver(frame);
        };
        // It has passed the filters, and may have waited since.
        let filter = PortFilter::of(tables, port, 0, now.monotonic_ns);
        if tables.stand_aside(now.monotonic_ns)
            || filter.is_some_and(|filter| filter.is_linux_only(frame.data()))
        {
            return self.deliver_linux_only(frame);
        }
        match input::classify(&tables.compiled, view, frame.data()) {
            Ok(Arrival { interface, network, family }) => {
                let meta = frame.meta_mut();
                (meta.interface, meta.network) = (interface, network);
                let fate = match family {
                    Family::V4 => self.decide_ipv4(tables, &mut frame, now),
                    Family::V6 => self.decide_ipv6(tables, &frame, now),
                };
                self.carry_out(tables, frame, fate, now);
            }
            Err(Refusal::Slow(Verdict::LinkGroup)) if !is_for_us(tables, &frame) => {
                self.lose(frame, Reason::LinkBroadcast);
            }
            Err(Refusal::Slow(Verdict::LinuxOnly)) => self.deliver_linux_only(frame),
            Err(refusal) => self.carry_out(tables, frame, refusal.into(), now),
        }
    }

    fn carry_out(&mut self, tables: &Tables, mut frame: Frame, fate: Decision, now: Now) {
        if let Decision::Send(hop, entry) | Decision::Cut(hop, entry, _) = fate {
            self.let_waiting_go_first(tables, &frame, hop, entry, now);
        }
        match fate {
            Decision::Host => self.deliver(frame),
            Decision::Drop(reason) => self.lose(frame, reason),
            // Linux detects the same error, and may change the message or drop it.
            Decision::Tell(error, _) if tables.linux_tells(error.family()) => self.deliver_linux_only(frame),
            Decision::Tell(error, _) if self.leaves_to_linux(tables, &frame, error.family()) => {
                self.deliver(frame)
            }
            Decision::Tell(error, reason) => {
                self.tell(tables, &frame, error, now);
                self.lose(frame, reason);
            }
            Decision::Send(hop, entry) => match forward(tables, hop, entry, &mut frame) {
                Ok(port) => self.send(frame, port),
                Err(Refusal::Drop(reason)) => self.lose(frame, reason),
                // Decided a moment ago from the same tables, so nothing is left to refuse.
                Err(Refusal::Slow(_) | Refusal::Send(_)) => self.lose(frame, Reason::TooBig),
            },
            Decision::Cut(hop, entry, mtu) => {
                hold::decrement_ttl(&mut frame);
                self.cut(tables, frame, hop, entry, mtu);
            }
            Decision::Hold(neighbor) => self.hold(tables, Waiter { frame, own: false }, neighbor, now),
        }
    }

    /// The next of a splitmix64 sequence.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Makes a frame leave through the next hop that was found for it; returns the port.
fn forward(tables: &Tables, hop: NextHop, entry: Hop, frame: &mut Frame) -> Result<u16, Refusal> {
    let network = frame.meta().network;
    let packet = frame.data().get(usize::from(network)..).unwrap_or(&[]);
    match (packet.first().map_or(0, |first| first >> 4), packet.first_chunk(), packet.first_chunk()) {
        (4, Some(header), _) => {
            rewrite::rewrite_through::<u32>(tables, hop, entry, Facts::ipv4(header), network, frame)
        }
        (6, _, Some(header)) => {
            rewrite::rewrite_through::<u128>(tables, hop, entry, Facts::ipv6(header), network, frame)
        }
        _ => Err(Refusal::Drop(Reason::EthernetShort)),
    }
}

/// Whether an IP packet in a frame for a group is for this machine.
fn is_for_us(tables: &Tables, frame: &Frame) -> bool {
    let view = tables.compiled.ports.get(usize::from(frame.meta().port));
    let found = view.and_then(|view| input::interface_of(view, frame.data()));
    let Some((interface, network)) = found else { return true };
    let packet = frame.data().get(network..).unwrap_or(&[]);
    let vrf = tables.compiled.ingress.get(usize::from(interface)).map_or(0, |on| on.vrf);
    Header::parse(packet)
        .is_some_and(|header| route::to(tables, vrf, header.destination, || 0) == Route::Host)
}
