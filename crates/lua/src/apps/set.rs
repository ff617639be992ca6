//! The apps of a daemon: started for all its workers, changed while they run, supervised.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel as replies};
use std::time::{Duration, Instant};

use bm_frame::FramePool;
use bm_link::{Producer, channel};
use bm_sys::Mutex;

use super::loaded::AppsState;
use super::part::{Ends, Failure, Order, Part, Reply};
use super::spec::{AppsSpec, WorkerSpec};
use super::versions::Versions;
use crate::hook::guard::{self, CallState, OnHang, Watch};
use crate::natives::{Natives, NoNatives};
use crate::report::{Report, ReportSlots};
use crate::ring::Rings;
use crate::state::{LuaError, WorkerContext};
use crate::world::World;

/// Configurations that may be on their way to a worker.
const ORDERS: usize = 4;
/// How long a worker may take to carry out an order.
const TAKEN_WITHIN: Duration = Duration::from_secs(2);
/// How often it is supervised meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Free packets that a worker's apps keep for themselves.
const KEEP: usize = 1024;

/// The environment of a set of apps.
pub struct AppWorld {
    /// Where packets come from.
    pub frame_pool: Arc<FramePool>,
    /// Creates apps in Rust.
    pub natives: Arc<dyn Natives>,
}

/// The daemon's end of a part.
struct Worker {
    part: Option<Part>,
    /// The core that its apps are placed on; `None` if it has ports.
    core: Option<usize>,
    orders: Producer<Order>,
    replies: Receiver<Reply>,
    call_state: Arc<CallState>,
    watch: Watch,
    failure: Failure,
}

#[derive(Default)]
struct Inner {
    versions: Versions,
    /// Workers with ports, then one for each core on which apps are placed.
    workers: Vec<Worker>,
}

/// Events for the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppNews {
    /// A worker's apps do nothing any more.
    Failed {
        /// Which worker's.
        worker: usize,
        /// The reason, with a traceback if there is one.
        why: String,
        /// Whether the next start goes back to an earlier version.
        goes_back: bool,
    },
    /// They hang in a place that cannot be left: only the end of the process helps.
    Stuck {
        /// For how long.
        lasts: Duration,
    },
}

/// The apps of a daemon.
pub struct AppSet {
    world: World,
    inner: Mutex<Inner>,
}

/// The apps that are placed on a core.
pub struct CoreApps {
    /// The number of their worker.
    pub worker: usize,
    pub core: usize,
    /// The apps, as one app of the worker.
    pub apps: Part,
}

impl AppSet {
    /// No apps yet.
    ///
    /// # Errors
    /// If the system refuses a signal handler.
    pub fn new(world: AppWorld) -> Result<Self, LuaError> {
        guard::install().map_err(LuaError::new)?;
        let AppWorld { frame_pool, natives } = world;
        let world = World {
            frame_pool,
            natives,
            trees: Vec::new(),
            report_slots: ReportSlots::default(),
            keep: KEEP,
        };
        Ok(Self { world, inner: Mutex::default() })
    }

    /// Starts the apps for `workers` workers, which get them by [`part`](Self::part). Workers from before are
    /// forgotten.
    ///
    /// # Errors
    /// What is wrong with an app; then none is started.
    pub fn start(&self, spec: &AppsSpec, workers: usize) -> Result<(), LuaError> {
        let mut inner = self.inner.lock();
        inner.workers.clear();
        let version = inner.versions.choose(spec.with_texts());
        let (specs, rings) = (version.by_core(workers)?, Rings::default());
        if version.apps.is_empty() {
            inner.versions.begin(version);
            return Ok(());
        }
        let with_ports = specs.iter().take(1).cycle().take(workers);
        let mut all = Vec::new();
        for (worker, WorkerSpec { core, apps }) in with_ports.chain(specs.iter().skip(1)).enumerate() {
            let context = WorkerContext {
                worker,
                apart: core.is_some(),
                rings: rings.clone(),
                ..WorkerContext::default()
            };
            all.push(self.worker(apps, &context, *core, if core.is_some() { 1 } else { workers })?);
        }
        inner.workers = all;
        inner.versions.begin(version);
        Ok(())
    }

    fn worker(
        &self,
        spec: &AppsSpec,
        context: &WorkerContext,
        core: Option<usize>,
        workers: usize,
    ) -> Result<Worker, LuaError> {
        let (orders, taken) = channel(ORDERS);
        let (answer, replies) = replies();
        let (call_state, failure) = (Arc::<CallState>::default(), Failure::default());
        let ends = Ends {
            orders: taken,
            replies: answer,
            call_state: call_state.clone(),
            failure: failure.clone(),
            workers,
        };
        let world = World { trees: spec.trees.clone(), ..self.world.clone() };
        let part = Part::new(AppsState::new(&world, context)?, spec, ends)?;
        Ok(Worker { part: Some(part), core, orders, replies, call_state, watch: Watch::default(), failure })
    }

    /// The apps of worker `index`; `None` if there is no such worker, or it has them already.
    pub fn part(&self, index: usize) -> Option<Part> {
        self.inner.lock().workers.get_mut(index)?.part.take()
    }

    /// The apps that are placed on cores; empty once they were taken.
    pub fn on_cores(&self) -> Vec<CoreApps> {
        let mut inner = self.inner.lock();
        let workers = inner.workers.iter_mut().enumerate();
        workers
            .filter_map(|(worker, state)| {
                Some(CoreApps { worker, core: state.core?, apps: state.part.take()? })
            })
            .collect()
    }

    /// Makes every worker use `spec`; links with ports and router must not change.
    ///
    /// # Errors
    /// What is wrong with an app; then all workers keep their previous configuration.
    pub fn reload(&self, spec: &AppsSpec) -> Result<(), LuaError> {
        let mut inner = self.inner.lock();
        let with_ports = inner.workers.iter().filter(|worker| worker.core.is_none()).count();
        let spec = spec.with_texts();
        let new = spec.by_core(with_ports)?;
        let mut workers = inner.workers.iter_mut().enumerate();
        let refusal = workers.find_map(|(at, worker)| Some((at, worker.apply_configuration(&new)?)));
        let Some((at, why)) = refusal else {
            inner.versions.begin(spec);
            return Ok(());
        };
        // Workers that have taken it return to the previous one; one that cannot has failed, and is restarted. A
        // worker that refused it has not changed, and the others do not know it.
        inner.workers[..at].iter_mut().for_each(|worker| drop(worker.carry_out(Order::Revert)));
        Err(LuaError::new(why))
    }

    /// Whether an app hangs that could not be interrupted yet: its thread cannot be stopped now.
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.inner.lock().workers.iter().any(|worker| worker.watch.is_overdue(now))
    }

    /// Supervises all workers: interrupts what hangs, if it may, and reports what has failed.
    pub fn supervise(&self, now: Instant, on_hang: OnHang) -> Vec<AppNews> {
        let mut inner = self.inner.lock();
        let mut news = Vec::new();
        for (number, worker) in inner.workers.iter_mut().enumerate() {
            if let Some(lasts) = worker.watch.look(&worker.call_state, now, on_hang) {
                news.push(AppNews::Stuck { lasts });
            }
            if let Some(why) = worker.failure.lock().take() {
                news.push(AppNews::Failed { worker: number, why: why.to_string(), goes_back: false });
            }
        }
        if news.iter().any(|news| matches!(news, AppNews::Failed { .. })) {
            let earlier = inner.versions.fail();
            for news in &mut news {
                if let AppNews::Failed { goes_back, .. } = news {
                    *goes_back = earlier;
                }
            }
        }
        news
    }

    /// The reports on the apps of each worker; see [`ReportSlots::ask`].
    pub fn reports(&self, patience: Duration) -> Vec<Report> {
        self.world.report_slots.ask(patience)
    }

    /// Whether there is any app.
    pub fn is_empty(&self) -> bool {
        self.inner.lock().versions.current().apps.is_empty()
    }
}

impl Worker {
    /// Makes it carry out a configuration's part for its core. Returns why not, if it does not.
    fn apply_configuration(&mut self, specs: &[WorkerSpec]) -> Option<String> {
        match specs.iter().find(|spec| spec.core == self.core) {
            Some(spec) => self.carry_out(Order::Become(spec.apps.clone())),
            None => Some("apps are now on other cores, which needs new workers: restart brickmoon".into()),
        }
    }

    /// Makes it carry out an order; returns its error.
    fn carry_out(&mut self, order: Order) -> Option<String> {
        // An answer that came too late was to another question.
        while self.replies.try_recv().is_ok() {}
        if self.orders.push(order).is_err() {
            return Some(
                "a worker has not applied the previous configurations yet: reload again later".into(),
            );
        }
        let (begin, mut watch) = (Instant::now(), Watch::new(guard::RELOADING));
        let mut stuck = false;
        // A worker that is busy with it returns, or is interrupted.
        while begin.elapsed() < TAKEN_WITHIN || (self.call_state.is_running() && !stuck) {
            match self.replies.recv_timeout(LOOK_EVERY) {
                Ok(refused) => return refused,
                // Nobody else can supervise the worker as long as the set is locked.
                Err(_) => stuck = watch.look(&self.call_state, Instant::now(), OnHang::Interrupt).is_some(),
            }
        }
        Some("a worker did not apply the new configuration in time".into())
    }
}

/// What is wrong with the apps of `spec`, by name: files and modules are run, and arguments checked against the
/// schemas of their classes; no app is started.
///
/// # Errors
/// Other errors.
pub fn check(spec: &AppsSpec) -> Result<Vec<(String, String)>, LuaError> {
    if spec.apps.is_empty() {
        return Ok(Vec::new());
    }
    let frame_pool = FramePool::new(64, 2048).map_err(LuaError::new)?;
    let natives = Arc::new(NoNatives);
    let world = World {
        frame_pool,
        natives,
        trees: spec.trees.clone(),
        report_slots: ReportSlots::default(),
        keep: 0,
    };
    let mut loaded = AppsState::new(&world, &WorkerContext::default())?;
    guard::loading(|call_state| loaded.check(call_state, spec)).map_err(LuaError::new)
}
