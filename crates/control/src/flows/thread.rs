//! The thread, and the orders to it.

use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bm_api::{ClearedFlows, Error, FlowQuery, Flows, FlowsState};
use bm_fastpath::{FlowArea, Lease, ReportReader};
use bm_flows::Table;
use bm_graph::Waker;
use bm_sys::Mutex;

use super::counts::EndReason;
use super::learner::{Learner, STEPS};
use super::linux::{KernelConnections, KernelGrace};
use super::ruleset::Ruleset;

/// Name of the thread.
pub(crate) const NAME: &str = "bm-flows";
/// How long it may make no progress before all packets are left to Linux.
pub(crate) const SILENT_MAX: Duration = Duration::from_millis(350);
/// Between two looks at a share of the connections.
const STEP: Duration = Duration::from_millis(1000 / STEPS as u64);
/// How long it does not wake for reports after some were read, so that a flood of them wakes it some hundred times a second.
const PAUSE: Duration = Duration::from_millis(2);
/// Reads of reports between two looks at orders.
const REPORT_READS: usize = 64;
/// Maximum wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

type KernelLearner = Learner<KernelConnections, KernelGrace>;

/// An order to the thread.
enum Order {
    /// The tables that programs have now, and the rules of Linux.
    Rules(Box<Ruleset>),
    /// Routes or addresses have changed.
    Routes,
    /// Forget all flows.
    Clear(mpsc::Sender<ClearedFlows>),
    Show(FlowQuery, mpsc::Sender<Result<Flows, Error>>),
    End,
}

/// Sends orders to the thread; can be cloned.
#[derive(Clone)]
pub(crate) struct Orders {
    orders: mpsc::Sender<Order>,
    waker: Waker,
    state: Arc<Mutex<FlowsState>>,
}

impl Orders {
    /// Tells what the tables are that programs have now, and the rules of Linux.
    pub fn tell(&self, ruleset: Ruleset) {
        self.send(Order::Rules(Box::new(ruleset)));
    }

    /// Tells that routes or addresses have changed.
    pub(crate) fn routes_changed(&self) {
        self.send(Order::Routes);
    }

    /// The state of the table, a tenth of a second old at most.
    pub fn state(&self) -> FlowsState {
        self.state.lock().clone()
    }

    /// Forgets all flows.
    ///
    /// # Errors
    /// If the thread does not answer.
    pub fn clear(&self) -> Result<ClearedFlows, Error> {
        self.ask(Order::Clear)
    }

    /// The flows that a query asks for.
    ///
    /// # Errors
    /// If the query is invalid, or the thread does not answer.
    pub fn flows(&self, query: FlowQuery) -> Result<Flows, Error> {
        self.ask(|answer| Order::Show(query, answer))?
    }

    fn ask<T>(&self, order: impl FnOnce(mpsc::Sender<T>) -> Order) -> Result<T, Error> {
        let (answer, answered) = mpsc::channel();
        self.send(order(answer));
        let answer = answered.recv_timeout(PATIENCE);
        answer.map_err(|_silent| Error::new("the thread that learns flows does not answer"))
    }

    fn send(&self, order: Order) {
        // The thread ends after control; until then it takes all orders.
        let _gone = self.orders.send(order);
        self.waker.wake();
    }
}

/// The thread; ends on drop.
pub(crate) struct FlowThread {
    orders: Orders,
    thread: Option<JoinHandle<()>>,
}

impl FlowThread {
    /// Starts the thread, which learns nothing before it is told rules. It follows the connections of the calling thread's
    /// network namespace. `awake` is called when it has caught up.
    ///
    /// # Errors
    /// If there is no memory, or Linux refuses sockets.
    pub fn start(area: FlowArea, awake: impl Fn() + Send + 'static) -> Result<Self, Error> {
        let waker = Waker::new().map_err(Error::new)?;
        let (orders, ordered) = mpsc::channel();
        let FlowArea { memory, max, reports, lease } = area;
        let table = Table::new(memory, max).map_err(Error::new)?;
        let grace = KernelGrace::start().map_err(Error::new)?;
        let linux = KernelConnections::open().map_err(Error::new)?;
        let state = Arc::new(Mutex::new(FlowsState { max: max as u64, ..FlowsState::default() }));
        let orders = Orders { orders, waker: waker.clone(), state: state.clone() };
        let builder = std::thread::Builder::new().name(NAME.into());
        let thread = builder.spawn(move || match reports.reader() {
            Ok(reports) => {
                let learner = Learner::new(linux, grace, table);
                run(learner, &reports, &lease, &OrderSlot { ordered, waker, state }, &awake);
            }
            Err(error) => tracing::error!(%error, "no flows are learned: cannot read what Linux sends"),
        });
        Ok(Self { orders, thread: Some(thread.map_err(Error::new)?) })
    }

    /// What others send orders with.
    pub fn orders(&self) -> Orders {
        self.orders.clone()
    }
}

impl Drop for FlowThread {
    fn drop(&mut self) {
        self.orders.send(Order::End);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been logged.
            let _panicked = thread.join();
        }
    }
}

/// Where orders come from, and where the state is shown.
struct OrderSlot {
    ordered: mpsc::Receiver<Order>,
    waker: Waker,
    state: Arc<Mutex<FlowsState>>,
}

fn run(
    mut learner: KernelLearner,
    reports: &ReportReader,
    lease: &Lease,
    slot: &OrderSlot,
    awake: &dyn Fn(),
) {
    let _watched = bm_sys::heartbeat::watch(SILENT_MAX);
    let mut next = Instant::now();
    let mut steps = 0;
    loop {
        bm_sys::heartbeat::beat();
        if take_orders(&mut learner, slot) {
            // Nobody would end flows any more.
            learner.table.set_families([false; 2]);
            return;
        }
        // When the daemon is gone, another process may renew the lease of the tables, but nobody keeps connections alive.
        learner.table.set_until(lease.until());
        let now = Instant::now();
        read_reports(&mut learner, reports, now);
        awake();
        if now >= next {
            learner.refresh(now);
            steps += 1;
            if steps % STEPS == 0 {
                learner.read_settings(now);
            }
            next = now + STEP;
            *slot.state.lock() = learner.state();
        }
        let until = next.saturating_duration_since(Instant::now());
        // What is on its way has arrived soon.
        let until = if learner.waits() { until.min(5 * PAUSE) } else { until };
        slot.waker.wait([], PAUSE.min(until));
        slot.waker.wait([reports.as_fd()], until.saturating_sub(PAUSE));
        slot.waker.clear();
    }
}

/// Carries out what was ordered; returns whether the thread is to end.
fn take_orders(learner: &mut KernelLearner, slot: &OrderSlot) -> bool {
    while let Ok(order) = slot.ordered.try_recv() {
        let now = Instant::now();
        match order {
            Order::Rules(ruleset) => learner.accept(*ruleset, now),
            Order::Routes => learner.routes_changed(now),
            Order::Clear(answer) => {
                let flows = learner.table.len() as u64;
                learner.void(EndReason::Cleared, now);
                let _gone = answer.send(ClearedFlows { flows });
            }
            Order::Show(query, answer) => {
                let _gone = answer.send(learner.flows(&query, now));
            }
            Order::End => return true,
        }
        *slot.state.lock() = learner.state();
        bm_sys::heartbeat::beat();
    }
    false
}

/// Learns from what has come.
fn read_reports(learner: &mut KernelLearner, reports: &ReportReader, now: Instant) {
    for _ in 0..REPORT_READS {
        let list = reports.take().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read what Linux sends");
            Vec::new()
        });
        if list.is_empty() {
            // Reports of packets that had met other rules have been read by now, and were ignored.
            learner.settle(now);
            return;
        }
        learner.learn(&list, now);
        bm_sys::heartbeat::beat();
    }
}
