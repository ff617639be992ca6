//! What is measured: a whole router with two loopback ports, and the same ports without a router.
//!
//! ```text
//! brickmoon    left -> router -> left, right     source-sink    left -> right -> left
//!              right -> router -> left, right
//! ```
//!
//! Everything is the daemon's: tables, router, slow path (which must stay idle), port apps, links, engine. Only the
//! device of the ports is in memory.

pub(in crate::bench) mod gateway;
mod table;
mod two_ports;

use std::net::IpAddr;
use std::sync::Arc;

use bm_fib::next_hop::{Action, Gateway};
use bm_fib::published::{Published, Readers};
use bm_fib::structure::{IPV4, IPV6};
use bm_fib::{Fib, NextHop, next_hop::NextHopWriter};
use bm_forward::filter::FilterSet;
use bm_forward::tables::{ReversePath, Tables, Vrf};
use bm_forward::{Resolver, Router, RouterPort, SlowConfig, SlowPath, SlowPort, WaitLimits};
use bm_frame::{BURST, Frame, FramePool, Freelist};
use bm_graph::{Engine, Network, PortApp, StageHook, Waker};
use bm_port::Port;
use bm_stats::{Account, Counters, Registry, Scope};
use bm_testbed::addresses::Sizes;
use bm_testbed::tables::Table;

use super::headers::Headers;
use super::loop_port::{Arrivals, LoopPort, Sample};
use super::packet::{FRAME, Packet};
use super::running::RunningEngine;
use crate::bench::{BenchError, SMALLEST};

pub(super) use table::FamilyTable;
pub(super) use two_ports::Links;

/// Names of the ports.
pub(super) const PORTS: [&str; 2] = ["left", "right"];
/// Number of next hops, half of them behind each port.
pub(super) const NEXT_HOPS: u16 = 16;
/// Number of frames that circulate: no more than fit on a link if all of them leave through one port in one breath.
pub(super) const FRAMES: usize = 1000;
/// Slots: enough for two engines at once.
const SLOTS: usize = 4 * FRAMES;
/// Room for the counters of one engine, with some to spare.
const COUNTERS: usize = 2048;
/// Frames in each queue to the slow path.
const SLOW_QUEUE: usize = 1024;

/// The tables of a router with static neighbors.
pub(super) struct Bed {
    pub ipv4: FamilyTable<u32>,
    pub ipv6: FamilyTable<u128>,
    /// The IPv4 routes once more, each to a group of its next hop and another one.
    groups: Arc<dyn Fib<Address = u32>>,
    published: Arc<Published<Tables>>,
    readers: Readers,
    frame_pool: Arc<FramePool>,
    next_hops: NextHopWriter,
}

/// What a router does besides forwarding.
#[derive(Default)]
pub(super) struct Extras {
    pub links: Links,
    pub filters: Option<Arc<FilterSet>>,
    pub reverse_path: ReversePath,
    pub hook: Option<Box<dyn StageHook>>,
}

/// An address family for which a bed has a table.
pub(super) trait BenchFamily: Packet {
    /// The table that its packets are looked up in.
    fn table(bed: &Bed) -> &FamilyTable<Self>;
}

impl BenchFamily for u32 {
    fn table(bed: &Bed) -> &FamilyTable<Self> {
        &bed.ipv4
    }
}

impl BenchFamily for u128 {
    fn table(bed: &Bed) -> &FamilyTable<Self> {
        &bed.ipv6
    }
}

/// How many frames are handled together.
#[derive(Clone, Copy)]
pub(super) struct Batching {
    /// Maximum number of frames that a port receives in a breath.
    pub receive: usize,
    /// Maximum number of frames that a device is given at a time.
    pub send: usize,
}

impl Default for Batching {
    fn default() -> Self {
        Self { receive: BURST, send: BURST }
    }
}

/// The MAC of a next hop; they are counted from 1.
pub(super) fn next_hop_mac(number: u16) -> [u8; 6] {
    [2, 0, 0, 0, 1, number as u8]
}

/// The port that a next hop is behind.
pub(super) fn next_hop_port(number: u16) -> usize {
    usize::from(number - 1) % PORTS.len()
}

impl Bed {
    /// A router with these routes. Each family gets a default route if it has none, so that every address has a next
    /// hop.
    pub fn new(table: Table, frame_pool: Arc<FramePool>) -> Result<Self, BenchError> {
        Self::with_hops(table, frame_pool, |number| (next_hop_port(number), next_hop_mac(number)))
    }

    /// A router with these routes; its next hops (counted from 1) are behind the ports and have the MACs that `hop`
    /// returns.
    pub fn with_hops(
        table: Table,
        frame_pool: Arc<FramePool>,
        hop: impl Fn(u16) -> (usize, [u8; 6]),
    ) -> Result<Self, BenchError> {
        let readers = Readers::new();
        let mut next_hops = NextHopWriter::new(&readers).map_err(BenchError::build("next hops"))?;
        let mut hops = vec![NextHop::NONE];
        for number in 1..=NEXT_HOPS {
            let (port, mac) = hop(number);
            let action = Action::Forward { mac, interface: port as u16 };
            let address = IpAddr::from([10, 0, port as u8, number as u8]);
            let gateway = Gateway { address: Some(address), interface: port as u32 };
            hops.push(next_hops.add(action, gateway, 0).map_err(BenchError::build("next hops"))?);
        }
        let mut groups = vec![NextHop::NONE];
        for pair in 1..hops.len() {
            let members = [(hops[pair], 1), (hops[pair % usize::from(NEXT_HOPS) + 1], 1)];
            groups.push(next_hops.add_group(&members).map_err(BenchError::build("next hops"))?);
        }
        let groups = FamilyTable::new(IPV4[0], table.ipv4.clone(), &groups, &readers)?.fib;
        let ipv4 = FamilyTable::new(IPV4[0], table.ipv4, &hops, &readers)?;
        let ipv6 = FamilyTable::new(IPV6[0], table.ipv6, &hops, &readers)?;
        let vrf = Vrf { ipv4: ipv4.fib.clone(), ipv6: ipv6.fib.clone() };
        let tables = two_ports::tables(vrf, &next_hops, ReversePath::Off);
        let published = Arc::new(Published::new(tables, &readers));
        Ok(Self { ipv4, ipv6, groups, published, readers, frame_pool, next_hops })
    }

    /// Frame memory for all beds.
    pub fn frame_pool() -> Result<Arc<FramePool>, BenchError> {
        Self::frame_pool_of(1)
    }

    /// Frame memory for this many engines at a time, and as many again.
    pub fn frame_pool_of(workers: usize) -> Result<Arc<FramePool>, BenchError> {
        FramePool::new(SLOTS * workers, 2048).map_err(BenchError::build("frame memory"))
    }

    /// The frames of an engine come from here.
    pub fn frames(&self) -> &Arc<FramePool> {
        &self.frame_pool
    }

    /// The router, with packets to `destinations`.
    pub fn router<A: Packet>(
        &self,
        destinations: &Arc<[A]>,
        batching: Batching,
    ) -> Result<RunningEngine, BenchError> {
        self.router_of_sizes(destinations, SMALLEST, batching)
    }

    /// The router, with packets of these sizes to `destinations`.
    pub fn router_of_sizes<A: Packet>(
        &self,
        destinations: &Arc<[A]>,
        sizes: Sizes,
        batching: Batching,
    ) -> Result<RunningEngine, BenchError> {
        let mut making = Making::new(&self.frame_pool)?;
        making.ports(destinations, sizes, batching)?;
        self.routed(making, PORTS.len())
    }

    /// The router with filters, a check of sources, a hook or other interfaces.
    pub fn router_with(
        &self,
        destinations: &Arc<[u32]>,
        extras: Extras,
    ) -> Result<RunningEngine, BenchError> {
        let mut making = Making::new(&self.frame_pool)?;
        making.ports(destinations, SMALLEST, Batching::default())?;
        self.routed_with(making, extras)
    }

    /// The router with extras, and with ports that `port` creates.
    pub fn router_of_ports_with(
        &self,
        extras: Extras,
        port: impl Fn(usize, Vec<Frame>, Arc<Sample>) -> Box<dyn Port>,
    ) -> Result<RunningEngine, BenchError> {
        let mut making = Making::new(&self.frame_pool)?;
        making.ports_of(Batching::default(), port)?;
        self.routed_with(making, extras)
    }

    fn routed_with(&self, mut making: Making, extras: Extras) -> Result<RunningEngine, BenchError> {
        let ipv4 = if extras.links == Links::Multipath { &self.groups } else { &self.ipv4.fib };
        let vrf = Vrf { ipv4: ipv4.clone(), ipv6: self.ipv6.fib.clone() };
        let tables = extras.links.tables(vrf, &self.next_hops, extras.reverse_path);
        let published = Arc::new(Published::new(tables.with_filters(extras.filters), &self.readers));
        let slow = self.add_router(&mut making, &published, extras.hook)?;
        making.link_ports(PORTS.len())?;
        making.running(Some(slow))
    }

    /// Routers of `workers` workers as in the daemon: tables, frame memory and counters are shared, ports and all
    /// else are separate for each worker.
    pub fn routers<A: Packet>(
        &self,
        destinations: &Arc<[A]>,
        workers: usize,
    ) -> Result<Vec<RunningEngine>, BenchError> {
        let registry = Making::registry(workers)?;
        let mut routers = Vec::new();
        for worker in 0..workers {
            let mut making = Making::of_worker(&self.frame_pool, &registry, worker);
            making.ports(destinations, SMALLEST, Batching::default())?;
            routers.push(self.routed(making, PORTS.len())?);
        }
        Ok(routers)
    }

    /// The router with a device of the caller's as the first port; all next hops must be behind it.
    pub fn router_over(&self, device: Box<dyn Port>) -> Result<RunningEngine, BenchError> {
        let mut making = Making::new(&self.frame_pool)?;
        making.device(device)?;
        self.routed(making, 1)
    }

    /// A device of the caller's alone, which sends what it receives.
    pub fn loop_over(&self, device: Box<dyn Port>) -> Result<RunningEngine, BenchError> {
        let mut making = Making::new(&self.frame_pool)?;
        making.device(device)?;
        making.link("left.output -> left.left")?;
        making.running(None)
    }

    /// The router with ports that `port` creates from their index, their frames and a recorder of copies.
    pub fn router_of_ports(
        &self,
        batching: Batching,
        port: impl Fn(usize, Vec<Frame>, Arc<Sample>) -> Box<dyn Port>,
    ) -> Result<RunningEngine, BenchError> {
        let mut making = Making::new(&self.frame_pool)?;
        making.ports_of(batching, port)?;
        self.routed(making, PORTS.len())
    }

    /// Adds a router between the first `joined` of the ports to a network in the making.
    fn routed(&self, mut making: Making, joined: usize) -> Result<RunningEngine, BenchError> {
        let slow = self.router_app(&mut making)?;
        making.link_ports(joined)?;
        making.running(Some(slow))
    }

    /// Adds the router and the return from its slow path, without links.
    pub(super) fn router_app(&self, making: &mut Making) -> Result<SlowPath, BenchError> {
        self.add_router(making, &self.published, None)
    }

    /// Adds the router with these tables, and with a hook if there is one.
    fn add_router(
        &self,
        making: &mut Making,
        published: &Arc<Published<Tables>>,
        hook: Option<Box<dyn StageHook>>,
    ) -> Result<SlowPath, BenchError> {
        let mut slow = self.slow_path(making, published)?;
        let mut ports = Vec::new();
        for name in PORTS {
            let account = making.account(&format!("slow/{name}"))?;
            slow.add_port(SlowPort { account, host: None, worker: 0 });
            let account = making.watched(&format!("router/{name}"))?;
            ports.push(RouterPort { name: name.into(), account });
        }
        let names = PORTS.map(String::from).to_vec();
        let (punt_queue, back) = slow.add_worker(SLOW_QUEUE, names, making.account("return")?, None);
        let mut router = Router::new(ports, published.clone(), self.readers.register(), punt_queue);
        if let Some(hook) = hook {
            router = router.with_hook(hook);
        }
        making.app("router", Box::new(router))?;
        making.app("slow", Box::new(back))?;
        Ok(slow)
    }

    /// The ports alone: each sends what the other receives.
    pub fn source_sink<A: Packet>(
        &self,
        destinations: &Arc<[A]>,
        sizes: Sizes,
    ) -> Result<RunningEngine, BenchError> {
        let mut making = Making::new(&self.frame_pool)?;
        making.ports(destinations, sizes, Batching::default())?;
        making.link("left.output -> right.left")?;
        making.link("right.output -> left.right")?;
        making.running(None)
    }

    /// As many frames as circulate in the router; only their headers are read and written.
    pub fn headers<A: Packet>(&self, destinations: &[A]) -> Result<Headers<A>, BenchError> {
        Headers::new(FRAMES, Freelist::new(self.frame_pool.clone(), 2 * FRAMES), destinations)
            .ok_or_else(|| BenchError::build("frame memory")("too few slots"))
    }

    fn slow_path(
        &self,
        making: &mut Making,
        published: &Arc<Published<Tables>>,
    ) -> Result<SlowPath, BenchError> {
        let scope = format!("{}/slow", making.worker);
        let counters = Counters::open(&making.registry, Scope::Other(&scope));
        Ok(SlowPath::new(SlowConfig {
            published: published.clone(),
            reader: self.readers.register(),
            frames: Freelist::new(self.frame_pool.clone(), 0),
            resolver: Box::new(Nobody),
            waker: Waker::new().map_err(BenchError::build("slow path"))?,
            counters: counters.map_err(BenchError::build("counters"))?,
            waits: WaitLimits::default(),
            seed: 1,
        }))
    }
}

/// No neighbor ever has to be resolved: all are static.
struct Nobody;

impl Resolver for Nobody {
    fn resolve(&mut self, _ifindex: u32, _address: IpAddr) {}
}

/// An engine in the making.
pub(super) struct Making {
    registry: Arc<Registry>,
    network: Network,
    pub frames: Freelist,
    pub sample: Arc<Sample>,
    accounts: Vec<(String, Account)>,
    worker: usize,
}

impl Making {
    fn new(frame_pool: &Arc<FramePool>) -> Result<Self, BenchError> {
        Ok(Self::of_worker(frame_pool, &Self::registry(1)?, 0))
    }

    /// Counters for this many workers.
    pub fn registry(workers: usize) -> Result<Arc<Registry>, BenchError> {
        Registry::anonymous(workers * COUNTERS).map(Arc::new).map_err(BenchError::build("counters"))
    }

    /// The account of the worker with this number.
    pub fn of_worker(frame_pool: &Arc<FramePool>, registry: &Arc<Registry>, worker: usize) -> Self {
        Self {
            registry: registry.clone(),
            network: Network::new(),
            frames: Freelist::new(frame_pool.clone(), 2 * FRAMES),
            sample: Arc::default(),
            accounts: Vec::new(),
            worker,
        }
    }

    /// Where in `count` arrivals a port of this worker begins, so that no two ports send the same packet at a time.
    pub fn begin(&self, port: usize, count: usize) -> usize {
        count / PORTS.len() * port + count / 7 * self.worker
    }

    pub fn account(&self, group: &str) -> Result<Account, BenchError> {
        // The counters of each worker are in cache lines of their own.
        let group = format!("{}/{group}", self.worker);
        Account::open(&self.registry, Scope::Other(&group)).map_err(BenchError::build("counters"))
    }

    pub fn watched(&mut self, group: &str) -> Result<Account, BenchError> {
        let account = self.account(group)?;
        self.accounts.push((group.into(), account));
        Ok(account)
    }

    pub fn app(&mut self, name: &str, app: Box<dyn bm_graph::App>) -> Result<(), BenchError> {
        self.network.app(name, app).map_err(BenchError::build("network"))
    }

    pub fn link(&mut self, link: &str) -> Result<(), BenchError> {
        self.network.link(link).map_err(BenchError::build("network"))
    }

    /// Links the first `joined` of the ports to the router and its slow path.
    fn link_ports(&mut self, joined: usize) -> Result<(), BenchError> {
        for name in &PORTS[..joined] {
            self.link(&format!("{name}.output -> router.{name}"))?;
            self.link(&format!("router.{name} -> {name}.router"))?;
            self.link(&format!("slow.{name} -> {name}.slow"))?;
        }
        Ok(())
    }

    /// Both ports, each with half of the frames and a part of the destinations.
    pub fn ports<A: Packet>(
        &mut self,
        destinations: &Arc<[A]>,
        sizes: Sizes,
        batching: Batching,
    ) -> Result<(), BenchError> {
        const { assert!(FRAMES <= LoopPort::<u32>::ROOM) };
        let arrivals = Arrivals::new(destinations, &sizes.in_memory(FRAME as u16));
        let begin = [0, 1].map(|port| self.begin(port, arrivals.len()));
        self.ports_of(batching, |index, frames, sample| {
            let burst = batching.receive.min(BURST);
            Box::new(LoopPort::<A>::new(index, frames, burst, arrivals.clone(), begin[index], sample))
        })
    }

    /// Both ports, created by `port` from half of the frames each.
    fn ports_of(
        &mut self,
        batching: Batching,
        port: impl Fn(usize, Vec<Frame>, Arc<Sample>) -> Box<dyn Port>,
    ) -> Result<(), BenchError> {
        let share = FRAMES / PORTS.len();
        for (index, name) in PORTS.into_iter().enumerate() {
            let frames: Vec<_> = (0..share).map_while(|_| self.frames.allocate()).collect();
            if frames.len() < share {
                return Err(BenchError::build("frame memory")("too few slots"));
            }
            let received = self.account(&format!("port/{name}/receive"))?;
            let sent = self.watched(&format!("port/{name}/transmit"))?;
            let app = PortApp::new(port(index, frames, self.sample.clone()), received, sent);
            let app = app.with_batches(batching.receive.div_ceil(BURST), batching.send);
            self.app(name, Box::new(app))?;
        }
        Ok(())
    }

    /// A device as the first port.
    fn device(&mut self, device: Box<dyn Port>) -> Result<(), BenchError> {
        let name = PORTS[0];
        let received = self.account(&format!("port/{name}/receive"))?;
        let sent = self.watched(&format!("port/{name}/transmit"))?;
        self.app(name, Box::new(PortApp::new(device, received, sent)))
    }

    pub fn running(self, slow: Option<SlowPath>) -> Result<RunningEngine, BenchError> {
        let Self { network, frames, sample, accounts, .. } = self;
        let engine = Engine::new(network, frames).map_err(BenchError::build("network"))?;
        Ok(RunningEngine { engine, sample, accounts, _slow: slow })
    }
}
