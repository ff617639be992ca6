//! A router that encrypts everything it forwards, as a gateway with a tunnel: with the SA on its own worker, or on another
//! one that gets the packets through the rings between workers.
//!
//! ```text
//! own       port -> router -> encryption -> port
//! handed    port -> router -> encryption ~ring~> encryption of the other worker -> its port
//! ```
//!
//! Both workers run on the calling thread in turns, so what it costs to move a packet from one core's cache to another's
//! is not in it. Or both receive, each on a thread of its own, and have one SA or two.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bm_fib::published::Published;
use bm_forward::tables::{PublishedTables, Vrf};
use bm_forward::{
    CurrentPolicies, Encryption, IpsecPlan, IpsecWorker, PolicySas, Router, RouterPort, SaNumbers, SaPlan,
    SaStatus, SlowPath, SlowPort,
};
use bm_frame::{Burst, Frame, Freelist};
use bm_graph::Waker;
use bm_ipsec::{Action, Direction, Numbers, Policies, Policy, Sa, Selector};
use bm_link::{Producer, channel};
use bm_port::Port;
use bm_sys::Mutex;
use bm_testbed::tables::Table;
use bm_testbed::testbed;
use bm_wire::ipv4::Ipv4Header;
use bm_wire::protocol;

use super::super::packet::port_mac;
use super::super::running::RunningEngine;
use super::{Bed, FRAMES, Making, PORTS, SLOW_QUEUE, next_hop_mac, two_ports};
use crate::alternate::thread_time;
use crate::bench::BenchError;

/// Bytes of the link header.
const LINK: usize = 14;
/// Ethernet and IPv4.
const HEADERS: usize = LINK + 20;
/// Frames that fit between two workers.
const RING: usize = FRAMES.next_power_of_two();
/// Breaths between two readings of the clock.
const BREATHS: usize = 8;
/// Packets of every size leave whole.
const MTU: u16 = 1600;

/// One or two workers.
pub struct Gateway {
    workers: Vec<RunningEngine>,
    esp: Arc<Mutex<TunnelQueue>>,
    /// Held, so that the SAs keep their numbers.
    _more: Vec<Producer<bm_ipsec::Block>>,
}

/// Frames that have been sent, and will be received as new ones.
#[derive(Default)]
struct TunnelQueue {
    frames: VecDeque<Frame>,
    /// How many of them were not ESP.
    clear: u64,
}

/// A device that receives packets for the tunnel in the frames that all of these devices have sent.
struct Device {
    /// The headers of a packet, and the bytes of its frame, in turn.
    arrivals: Vec<([u8; HEADERS], usize)>,
    next: usize,
    waiting: Arc<Mutex<TunnelQueue>>,
}

impl Gateway {
    /// With packets of these lengths in turn, which the first worker receives, and the SA on the worker with the number
    /// `owner`.
    ///
    /// # Errors
    /// A part of the router cannot be made.
    pub fn new(sa: &Sa, lengths: &[usize], owner: usize) -> Result<Self, BenchError> {
        Self::with(&[(sa.clone(), owner)], lengths, 1, owner + 1)
    }

    /// Two workers that both receive, with an SA for each, or one of the first worker.
    ///
    /// # Errors
    /// A part of the router cannot be made.
    pub fn of_two(sas: &[Sa], lengths: &[usize]) -> Result<Self, BenchError> {
        let sas: Vec<_> = sas.iter().cloned().zip(0..).collect();
        Self::with(&sas, lengths, 2, 2)
    }

    /// With the owner of each SA, and how many of the workers receive.
    fn with(
        sas: &[(Sa, usize)],
        lengths: &[usize],
        receivers: usize,
        workers: usize,
    ) -> Result<Self, BenchError> {
        let pool = Bed::frame_pool_of(2)?;
        let bed = Bed::with_hops(Table::default(), pool, |number| (0, next_hop_mac(number)))?;
        let wakers = (0..workers)
            .map(|_| Waker::new())
            .collect::<Result<Vec<_>, _>>()
            .map_err(BenchError::build("wakers"))?;
        let (mut plan, more) = plan(sas)?;
        let registry = Making::registry(wakers.len())?;
        let esp: Arc<Mutex<TunnelQueue>> = Arc::default();
        let mut workers = Vec::new();
        for (number, mut parts) in IpsecWorker::all(&wakers, RING).0.into_iter().enumerate() {
            let mut making = Making::of_worker(&bed.frame_pool, &registry, number);
            let mut arrivals = Vec::new();
            if number < receivers {
                arrivals = lengths.iter().map(|&length| (headers(length), LINK + length)).collect();
                let frames = std::iter::from_fn(|| making.frames.allocate()).take(FRAMES / 2);
                esp.lock().frames.extend(frames);
            }
            making.device(Box::new(Device { arrivals, next: 0, waiting: esp.clone() }))?;
            let slow = bed.gateway(&mut making, &mut plan, &mut parts)?;
            workers.push(making.running(Some(slow))?);
        }
        Ok(Self { workers, esp, _more: more })
    }

    /// One breath of each worker; returns how many packets were encrypted and sent.
    pub fn breathe(&mut self) -> u64 {
        let before = self.sent();
        self.workers.iter_mut().for_each(|worker| _ = worker.engine.breathe());
        self.sent() - before
    }

    fn sent(&self) -> u64 {
        self.workers.iter().map(RunningEngine::sent).sum()
    }

    /// Runs each worker on a core of its own for a time, if there are as many; returns how many packets were encrypted and
    /// sent, and the CPU time of one worker, so that other work on the machine does not count.
    pub fn run(&mut self, time: Duration, cores: &[usize]) -> (u64, Duration) {
        let before = self.sent();
        let count = self.workers.len() as u32;
        let spent: Duration = thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, worker) in self.workers.iter_mut().enumerate() {
                threads.push(scope.spawn(move || run_worker(worker, time, cores.get(number))));
            }
            threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).sum()
        });
        (self.sent() - before, spent / count)
    }

    /// Whether every packet has left as ESP.
    ///
    /// # Errors
    /// What became of the others.
    pub fn check(&mut self, case: &str) -> Result<(), BenchError> {
        (0..4).for_each(|_| _ = self.breathe());
        self.find_loss().map_err(|counters| BenchError::Lost { case: case.into(), counters })
    }

    fn find_loss(&self) -> Result<(), String> {
        for (name, account) in self.workers.iter().flat_map(|worker| &worker.accounts) {
            if account.dropped_in_all() > 0 {
                return Err(format!("{name} has dropped {}", account.dropped_in_all()));
            }
        }
        let clear = self.esp.lock().clear;
        if clear > 0 {
            return Err(format!("{clear} packets were sent in clear"));
        }
        if self.sent() == 0 { Err("nothing was sent".into()) } else { Ok(()) }
    }
}

/// Runs a worker on a core for a time; returns its CPU time.
fn run_worker(worker: &mut RunningEngine, time: Duration, core: Option<&usize>) -> Duration {
    core.into_iter().for_each(|core| _ = testbed::cores::pin(0, *core));
    let (wall, start) = (Instant::now(), thread_time());
    while wall.elapsed() < time {
        (0..BREATHS).for_each(|_| _ = worker.engine.breathe());
    }
    thread_time() - start
}

impl Bed {
    /// Adds a router with encryption behind it, both linked with the first port.
    fn gateway(
        &self,
        making: &mut Making,
        plan: &mut IpsecPlan,
        parts: &mut IpsecWorker,
    ) -> Result<SlowPath, BenchError> {
        let vrf = Vrf { ipv4: self.ipv4.fib.clone(), ipv6: self.ipv6.fib.clone() };
        let tables = two_ports::tables_with_mtu(vrf, &self.next_hops, MTU);
        let published = Arc::new(Published::new(tables, &self.readers));
        let mut slow = self.slow_path(making, &published)?;
        let mut ports = Vec::new();
        for name in PORTS {
            let account = making.account(&format!("slow/{name}"))?;
            slow.add_port(SlowPort { account, host: None, worker: 0 });
            ports.push(RouterPort { name: name.into(), account: making.watched(&format!("router/{name}"))? });
        }
        let names = PORTS.map(String::from).to_vec();
        let (punt_queue, back) = slow.add_worker(SLOW_QUEUE, names.clone(), making.account("return")?, None);
        let router = Router::new(ports, published.clone(), self.readers.register(), punt_queue);
        let punt_queue = slow.add_punt_queue(SLOW_QUEUE, &CurrentPolicies::default());
        let account = making.watched("encryption")?;
        let tables = PublishedTables { published, readers: self.readers.clone() };
        let encryption = Encryption::new(plan, parts, names, &tables, punt_queue, account, 0)
            .map_err(|problem| BenchError::build("the SA")(problem.to_string()))?;
        making.app("router", Box::new(router))?;
        making.app("slow", Box::new(back))?;
        making.app("encryption", Box::new(encryption))?;
        let port = PORTS[0];
        making.link(&format!("{port}.output -> router.{port}"))?;
        making.link(&format!("router.{port} -> encryption.router:{port}"))?;
        making.link(&format!("slow.{port} -> encryption.slow:{port}"))?;
        making.link(&format!("encryption.{port} -> {port}.encryption"))?;
        Ok(slow)
    }
}

/// Everything is protected by these SAs, each with its owner.
fn plan(sas: &[(Sa, usize)]) -> Result<(IpsecPlan, Vec<Producer<bm_ipsec::Block>>), BenchError> {
    let (mut plans, mut producers) = (Vec::new(), Vec::new());
    for (sa, worker) in sas {
        let block = Numbers::new(sa.esn).reserve_all().map_err(BenchError::build("numbers"))?;
        let (producer, more) = channel(2);
        let numbers = Some(SaNumbers { block, more, iv_mask: 0 });
        let status = Arc::new(SaStatus::new(0));
        plans.push(SaPlan { sa: sa.clone(), worker: *worker, status, numbers });
        producers.push(producer);
    }
    let own: Vec<_> = plans.iter().map(|plan| (plan.sa.id(), plan.status.clone())).collect();
    let lists = vec![PolicySas { fallback: own.first().cloned(), own, asks: false }];
    let action = if let [(one, _)] = sas { Action::Protect(one.id()) } else { Action::OneOf(0) };
    let policy = Policy {
        at: 0,
        direction: Direction::Out,
        priority: 100,
        if_id: 0,
        selector: Selector::default(),
        action,
    };
    let policies = Policies::new(vec![policy]).map_err(BenchError::build("policies"))?.into();
    Ok((IpsecPlan { policies, lists, current: Vec::new(), sas: plans, of_kernel: false }, producers))
}

/// Headers of a packet of `length` bytes to the other end of the tunnel, as it arrives at the first port.
fn headers(length: usize) -> [u8; HEADERS] {
    let mut headers = [0; HEADERS];
    headers[..6].copy_from_slice(&port_mac(0));
    headers[6..12].copy_from_slice(&next_hop_mac(1));
    headers[12..LINK].copy_from_slice(&[8, 0]);
    let fields = Ipv4Header {
        total_len: length as u16,
        ttl: 64,
        protocol: protocol::UDP,
        source: 0x0a01_0001,
        destination: 0x0a02_0001,
        ..Ipv4Header::default()
    };
    fields.emit(&mut headers[LINK..]).expect("there is room for a header");
    headers
}

impl Port for Device {
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        if self.arrivals.is_empty() {
            return;
        }
        let mut waiting = self.waiting.lock();
        while !burst.is_full() {
            let Some(mut frame) = waiting.frames.pop_front() else { break };
            let (headers, length) = &self.arrivals[self.next];
            self.next = (self.next + 1) % self.arrivals.len();
            // Behind the headers is whatever was in the slot. Slots have room for more.
            let placed = frame.copy_from(headers).and_then(|()| frame.set_len(*length));
            debug_assert!(placed.is_ok());
            if let Err(frame) = burst.push(frame) {
                frames.free(frame);
            }
        }
    }

    fn transmit(&mut self, burst: &mut Burst, _: &mut Freelist) -> usize {
        let mut waiting = self.waiting.lock();
        for frame in burst.drain() {
            waiting.clear += u64::from(frame.data().get(LINK + 9) != Some(&protocol::ESP));
            waiting.frames.push_back(frame);
        }
        0
    }

    fn close(&mut self, frames: &mut Freelist) {
        self.waiting.lock().frames.drain(..).for_each(|frame| frames.free(frame));
    }
}
