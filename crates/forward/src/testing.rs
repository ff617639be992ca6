//! A complete router in memory, for tests: a few lines of text define its tables, wires carry bytes in and out, and
//! nothing happens until the test says so.
//!
//! ```text
//! interface left 0 02:00:00:00:00:01 192.0.2.1/24 2001:db8:1::1/64
//! interface right 1 02:00:00:00:00:02 mtu 1400 198.51.100.1/24
//! neighbor 198.51.100.7 right 02:00:00:00:01:07
//! route 0.0.0.0/0 via 198.51.100.7 right
//! route 203.0.113.0/24 blackhole
//! ```
//!
//! When a [`Lab`] goes out of scope it asserts that every account adds up and that no frame is lost.

mod ipsec;
mod parse;
mod world;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use bm_fib::published::{Published, Readers};
use bm_frame::{FramePool, Freelist};
use bm_graph::{Engine, Network, PortApp, StageHook, Waker};
use bm_port::{HostPort, MemoryPort, Wire};
use bm_stats::{Account, CounterKind, Counters, Entry, Reason, Registry, Scope};
use bm_sys::Mutex;

use crate::tables::{PublishedTables, Settings, Tables};
use crate::{
    CurrentPolicies, Now, Resolution, Resolver, Router, RouterPort, SlowConfig, SlowCounter, SlowPath,
    SlowPort, WaitLimits,
};
use world::World;

/// Frames in the lab's memory, and the bytes of each slot.
const FRAMES: usize = 4096;
const SLOT: usize = 2048;
/// Places in the queues between the router and its slow path.
const QUEUE: usize = 512;

/// A list that two sides share.
type Shared<T> = Arc<Mutex<Vec<T>>>;

/// Frame memory is never returned to the system, so labs pass theirs on to later ones.
static FRAME_POOLS: Mutex<Vec<Arc<FramePool>>> = Mutex::new(Vec::new());

fn frame_pool() -> Arc<FramePool> {
    let unused = FRAME_POOLS.lock().pop();
    unused.unwrap_or_else(|| FramePool::new(FRAMES, SLOT).expect("memory for frames"))
}

fn take_all<T>(list: &Shared<T>) -> Vec<T> {
    std::mem::take(&mut *list.lock())
}

fn add<T>(list: &Shared<T>, item: T) {
    list.lock().push(item);
}

/// What Linux got from a port, and what it sends through its host TAP.
#[derive(Clone, Default)]
struct Linux {
    delivered: Shared<Vec<u8>>,
    outgoing: Shared<Vec<u8>>,
    refuses: Arc<std::sync::atomic::AtomicBool>,
}

impl HostPort for Linux {
    fn deliver(&mut self, packet: &[u8]) -> io::Result<()> {
        if self.refuses.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        add(&self.delivered, packet.to_vec());
        Ok(())
    }

    fn collect<'a>(&mut self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        let mut outgoing = self.outgoing.lock();
        if outgoing.is_empty() {
            return Ok(None);
        }
        let packet = outgoing.remove(0);
        // Like a device: what does not fit into the buffer is lost silently.
        let length = packet.len().min(buffer.len());
        buffer[..length].copy_from_slice(&packet[..length]);
        Ok(Some(&buffer[..length]))
    }
}

#[derive(Clone, Default)]
struct Asked {
    asked: Shared<(u32, IpAddr)>,
    resolutions: Shared<(u32, IpAddr, Resolution)>,
}

impl Resolver for Asked {
    fn resolve(&mut self, ifindex: u32, address: IpAddr) {
        add(&self.asked, (ifindex, address));
    }

    fn next_resolution(&mut self) -> Option<(u32, IpAddr, Resolution)> {
        self.resolutions.lock().pop()
    }
}

/// All accounts and counters of a lab.
struct AllCounters {
    registry: Registry,
    accounts: Vec<(String, Account)>,
    slow: Counters<SlowCounter>,
}

impl AllCounters {
    fn new(ports: usize) -> Self {
        let registry = Registry::anonymous((4 * ports + 4) * 96).expect("memory for counters");
        let slow = Counters::open(&registry, Scope::Slow).expect("room for counters");
        Self { registry, accounts: Vec::new(), slow }
    }

    fn open(&mut self, name: &str) -> Account {
        let account = Account::open(&self.registry, Scope::Other(name)).expect("room for counters");
        self.accounts.push((name.into(), account));
        account
    }
}

/// Links every port with the router, both ways, and with the queue back from the slow path.
fn join(network: &mut Network, ports: &[String]) {
    for name in ports {
        for link in [
            format!("{name}.output -> router.{name}"),
            format!("router.{name} -> {name}.input"),
            format!("slow.{name} -> {name}.slow"),
        ] {
            network.link(&link).expect("the link is well-formed");
        }
    }
}

/// A router in memory, with its wires.
pub struct Lab {
    world: World,
    published: Arc<Published<Tables>>,
    engine: Option<Engine>,
    slow: Option<SlowPath>,
    wires: Vec<Wire>,
    linux: Vec<Linux>,
    asked: Asked,
    books: AllCounters,
    frame_pool: Arc<FramePool>,
    now: Now,
}

impl Lab {
    /// A router as `text` describes it.
    ///
    /// # Panics
    /// If the text cannot be read: this is for tests.
    pub fn new(text: &str) -> Self {
        Self::with(text, Settings::default(), WaitLimits::default())
    }

    /// The same, with settings of the test's own.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn with(text: &str, settings: Settings, waits: WaitLimits) -> Self {
        Self::build(frame_pool(), text, settings, waits, |_| [None, None])
    }

    /// The same with slots of `slot_size` bytes, which the process keeps.
    ///
    /// # Panics
    /// As for [`new`](Self::new), or if there is no memory.
    pub fn with_slots(text: &str, slot_size: usize) -> Self {
        let frame_pool = FramePool::new(FRAMES, slot_size).expect("memory for frames");
        Self::build(frame_pool, text, Settings::default(), WaitLimits::default(), |_| [None, None])
    }

    /// The same with ports that leave frames described by their mbufs, as those of DPDK.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn with_mbufs(text: &str) -> Self {
        let settings = (Settings::default(), WaitLimits::default());
        Self::build_over(frame_pool(), text, settings, MemoryPort::with_mbufs, |_| [None, None], None, true)
    }

    fn build(
        frame_pool: Arc<FramePool>,
        text: &str,
        settings: Settings,
        waits: WaitLimits,
        hooks: impl FnOnce(&Arc<FramePool>) -> [Option<Box<dyn StageHook>>; 2],
    ) -> Self {
        Self::build_over(frame_pool, text, (settings, waits), MemoryPort::new, hooks, None, true)
    }

    /// Without the fast path: all packets go through the stages one by one.
    #[cfg(test)]
    pub(crate) fn with_stages_only(text: &str) -> Self {
        let settings = (Settings::default(), WaitLimits::default());
        Self::build_over(frame_pool(), text, settings, MemoryPort::new, |_| [None, None], None, false)
    }

    /// The same with SAs and policies, all of them of the first worker.
    #[cfg(test)]
    pub(crate) fn with_ipsec(text: &str, plan: crate::IpsecPlan) -> Self {
        let settings = (Settings::default(), WaitLimits::default());
        Self::build_over(frame_pool(), text, settings, MemoryPort::new, |_| [None, None], Some(plan), true)
    }

    fn build_over(
        frame_pool: Arc<FramePool>,
        text: &str,
        (settings, waits): (Settings, WaitLimits),
        port: fn(Wire) -> MemoryPort,
        hooks: impl FnOnce(&Arc<FramePool>) -> [Option<Box<dyn StageHook>>; 2],
        ipsec: Option<crate::IpsecPlan>,
        has_fast_path: bool,
    ) -> Self {
        let readers = Readers::new();
        let mut world = World::new(settings, &readers);
        parse::lines(text, &mut world);
        let published = Arc::new(Published::new(world.tables(), &readers));
        let name = |port: usize| {
            let is_ipsec = world.interfaces.iter().any(|on| usize::from(on.port) == port && on.if_id != 0);
            if is_ipsec { crate::IPSEC_PORT.into() } else { format!("p{port}") }
        };
        let names: Vec<String> = (0..world.ports()).map(name).collect();
        let mut books = AllCounters::new(names.len());
        let asked = Asked::default();
        let mut slow = SlowPath::new(SlowConfig {
            published: published.clone(),
            reader: readers.register(),
            frames: Freelist::new(frame_pool.clone(), 128),
            resolver: Box::new(asked.clone()),
            waker: Waker::new().expect("an eventfd"),
            counters: books.slow,
            waits,
            seed: 1,
        });
        let (punt_queue, back) = slow.add_worker(QUEUE, names.clone(), books.open("return"), None);
        let mut network = Network::new();
        let (mut wires, mut linux, mut router_ports) = (Vec::new(), Vec::new(), Vec::new());
        for name in &names {
            let (wire, host) = (Wire::new(), Linux::default());
            let account = books.open(&format!("slow/{name}"));
            slow.add_port(SlowPort { account, host: Some(Box::new(host.clone())), worker: 0 });
            router_ports
                .push(RouterPort { name: name.clone(), account: books.open(&format!("fast/{name}")) });
            wires.push(wire.clone());
            linux.push(host);
            if name == crate::IPSEC_PORT {
                // It has no device.
                continue;
            }
            let port = Box::new(port(wire));
            let (received, sent) = (books.open(&format!("{name}/in")), books.open(&format!("{name}/out")));
            let app = Box::new(PortApp::new(port, received, sent));
            network.app(name, app).expect("names differ");
        }
        let mut router = Router::new(router_ports, published.clone(), readers.register(), punt_queue);
        let [fast_hook, slow_hook] = hooks(&frame_pool);
        if let Some(hook) = fast_hook {
            router = router.with_hook(hook);
        }
        if !has_fast_path {
            router = router.with_stages_only();
        }
        slow_hook.into_iter().for_each(|hook| slow.set_hook(hook));
        network.app("router", Box::new(router)).expect("names differ");
        network.app("slow", Box::new(back)).expect("names differ");
        match ipsec {
            None => join(&mut network, &names),
            Some(plan) => {
                let current = CurrentPolicies::default();
                current.set(plan.policies.clone());
                let punt_queue = slow.add_punt_queue(QUEUE, &current);
                let tables = PublishedTables { published: published.clone(), readers: readers.clone() };
                ipsec::join(&mut network, &names, plan, &tables, punt_queue, &mut books);
            }
        }
        let engine =
            Engine::new(network, Freelist::new(frame_pool.clone(), 128)).expect("the network is whole");
        let now = Now { monotonic_ns: 1_000_000_000, midnight_ms: 0x0102_0304 };
        let (engine, slow) = (Some(engine), Some(slow));
        Self { world, published, engine, slow, wires, linux, asked, books, frame_pool, now }
    }

    /// The same with hooks: one for the worker, one for the slow path, created with access to the lab's frames.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn with_hooks(
        text: &str,
        hooks: impl FnOnce(&Arc<FramePool>) -> [Option<Box<dyn StageHook>>; 2],
    ) -> Self {
        Self::build(frame_pool(), text, Settings::default(), WaitLimits::default(), hooks)
    }

    /// Puts a frame on the wire of `port`.
    pub fn send(&self, port: usize, frame: &[u8]) {
        self.wires[port].send(frame);
    }

    /// Makes Linux send a frame through the host TAP of `port`.
    pub fn send_from_linux(&self, port: usize, frame: &[u8]) {
        add(&self.linux[port].outgoing, frame.to_vec());
    }

    /// Makes Linux refuse, or accept again, what it is given from `port`.
    pub fn linux_refuses(&self, port: usize, refuses: bool) {
        self.linux[port].refuses.store(refuses, std::sync::atomic::Ordering::Relaxed);
    }

    /// Runs until nothing moves. No time passes.
    pub fn run(&mut self) {
        let Some(engine) = self.engine.as_mut() else { return };
        while engine.breathe() > 0 || self.slow.as_mut().is_some_and(|slow| slow.run(self.now) > 0) {}
    }

    /// Takes the slow path out, to be run elsewhere.
    ///
    /// # Panics
    /// If it is out already.
    pub fn take_slow_path(&mut self) -> SlowPath {
        self.slow.take().expect("the slow path is here")
    }

    /// Puts the slow path back, so that the lab checks its frames.
    pub fn put_slow_path_back(&mut self, slow: SlowPath) {
        self.slow = Some(slow);
    }

    /// Advances the clock by `ms` milliseconds and runs.
    pub fn pass(&mut self, ms: u64) {
        self.now.monotonic_ns += ms * 1_000_000;
        self.now.midnight_ms += ms as u32;
        self.run();
    }

    /// The frames that left through `port`, in order.
    pub fn take(&self, port: usize) -> Vec<Vec<u8>> {
        self.wires[port].take()
    }

    /// The frames of `port` that Linux got, in order.
    pub fn take_host(&self, port: usize) -> Vec<Vec<u8>> {
        take_all(&self.linux[port].delivered)
    }

    /// The neighbors that the kernel was asked to resolve, by the interface's name.
    pub fn asked(&self) -> Vec<(String, IpAddr)> {
        let name = |(ifindex, address)| (self.world.name_of(ifindex), address);
        take_all(&self.asked.asked).into_iter().map(name).collect()
    }

    /// Sends one frame to `port` and runs: returns what left, by port, and what Linux got.
    pub fn exchange(&mut self, port: usize, frame: &[u8]) -> Answer {
        self.send(port, frame);
        self.run();
        self.answer()
    }

    /// All that left and all that Linux got since the last call.
    pub fn answer(&self) -> Answer {
        let ports = 0..self.wires.len();
        let sent = ports.clone().flat_map(|port| self.take(port).into_iter().map(move |frame| (port, frame)));
        let host = ports.flat_map(|port| self.take_host(port).into_iter().map(move |frame| (port, frame)));
        Answer { sent: sent.collect(), host: host.collect() }
    }

    /// Reads further lines, and publishes the changes. `no` before a route or neighbor removes it.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn change(&mut self, text: &str) {
        parse::lines(text, &mut self.world);
        self.published.publish(self.world.tables());
    }

    /// Has workers filter by `set` from now on, until the next change.
    pub fn filter(&mut self, set: Arc<crate::filter::FilterSet>) {
        self.published.publish(self.world.tables().with_filters(Some(set)));
    }

    /// Makes workers use `tables` from now on, until the next change.
    pub fn publish(&mut self, tables: Tables) {
        self.published.publish(tables);
    }

    /// New tables for the current state.
    pub fn tables(&self) -> Tables {
        self.world.tables()
    }

    /// Reports that the kernel has given up on a neighbor.
    ///
    /// # Panics
    /// If the interface is not known.
    pub fn fail(&self, interface: &str, address: &str) {
        self.report(interface, address, Resolution::Failed);
    }

    /// Reports that the kernel has a neighbor that it does not announce.
    ///
    /// # Panics
    /// If the interface is not known.
    pub fn leave_to_linux(&self, interface: &str, address: &str) {
        self.report(interface, address, Resolution::LeftToLinux);
    }

    fn report(&self, interface: &str, address: &str, resolution: Resolution) {
        let address = address.parse().expect("an address");
        add(&self.asked.resolutions, (self.world.ifindex_of(interface), address, resolution));
    }

    /// Frames dropped for `reason`, everywhere.
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.books.accounts.iter().map(|(_, account)| account.dropped(reason)).sum()
    }

    /// All reasons that frames were dropped for, with how many.
    pub fn drops(&self) -> Vec<(Reason, u64)> {
        let counted = Reason::ALL.iter().map(|&reason| (reason, self.dropped(reason)));
        counted.filter(|(_, count)| *count > 0).collect()
    }

    /// Every entry and every drop of every account, by its name.
    pub fn accounts(&self) -> Vec<(String, Vec<u64>)> {
        let all = self.books.accounts.iter().map(|(name, account)| {
            let entries = Entry::ALL.iter().map(|&entry| account.get(entry));
            let drops = Reason::ALL.iter().map(|&reason| account.dropped(reason));
            (name.clone(), entries.chain(drops).collect())
        });
        all.collect()
    }

    /// Frames that the fast path has passed on.
    pub fn passed_to_slow_path(&self) -> u64 {
        let fast = self.books.accounts.iter().filter(|(name, _)| name.starts_with("fast/"));
        fast.map(|(_, account)| account.get(Entry::Passed)).sum()
    }

    /// Frames that wait for a neighbor.
    pub fn held(&self) -> u64 {
        self.books.accounts.iter().map(|(_, account)| account.get(Entry::Held)).sum()
    }

    /// A counter of the slow path, by its name.
    ///
    /// # Panics
    /// If there is none of that name.
    pub fn counter(&self, name: &str) -> u64 {
        let index = SlowCounter::NAMES.iter().position(|other| *other == name);
        self.books.slow.get(SlowCounter::ALL[index.expect("a counter of the slow path")])
    }

    /// Whether workers used the next hops through `address` since the last call.
    pub fn used(&mut self, address: &str) -> bool {
        self.world.take_used(address.parse().expect("an address"))
    }

    /// Asserts that all accounts are closed now, with nothing on the way.
    ///
    /// # Panics
    /// If one is not.
    pub fn check(&self) {
        for (name, account) in &self.books.accounts {
            assert_eq!(account.balance(), 0, "the account of {name} is open");
        }
    }
}

impl Drop for Lab {
    /// Stops everything and asserts that no frame is lost.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.run();
        self.check();
        if let Some(slow) = self.slow.as_mut() {
            slow.stop();
        }
        if let Some(engine) = self.engine.as_mut() {
            engine.stop();
        }
        (self.engine, self.slow) = (None, None);
        self.check();
        assert_eq!(self.held(), 0, "held after the end");
        assert_eq!(self.frame_pool.available(), FRAMES, "frames are lost");
        if self.frame_pool.memory().slot_size() == SLOT {
            FRAME_POOLS.lock().push(self.frame_pool.clone());
        }
    }
}

/// The result for a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Frames that left, each with its port.
    pub sent: Vec<(usize, Vec<u8>)>,
    /// Frames that Linux got, each with the port it came in on.
    pub host: Vec<(usize, Vec<u8>)>,
}

impl Answer {
    /// Whether nothing came of it.
    pub fn is_silence(&self) -> bool {
        self.sent.is_empty() && self.host.is_empty()
    }

    /// The one frame that left, if Linux got none.
    pub fn only(&self) -> Option<(usize, &[u8])> {
        match (&self.sent[..], self.host.is_empty()) {
            ([(port, frame)], true) => Some((*port, frame)),
            _ => None,
        }
    }
}
