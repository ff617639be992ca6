//! The hooks of a daemon: loaded for all its threads, replaced while they run, supervised.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bm_frame::FramePool;
use bm_graph::{Stage, StageHook};
use bm_link::{Consumer, Producer, channel};
use bm_stats::{Block, Registry, Scope};
use bm_sys::Mutex;

use super::guard::{self, CallState, OnHang, Watch};
use super::loaded::{HookContext, HookState};
use super::meter::Budget;
use super::published::Publications;
use super::version::{Health, HookSpec, OnFailure, Version};
use super::worker::{HookUpdate, ThreadHooks};
use crate::state::LuaError;

/// How long a reload waits for all threads to use the new versions.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);
/// Sets that may be on their way to a thread.
const UPDATES_MAX: usize = 16;

/// The environment of a set of hooks.
pub struct HookWorld {
    /// Where hooks allocate packets.
    pub frame_pool: Arc<FramePool>,
    /// Where counters are.
    pub registry: Arc<Registry>,
}

/// The daemon's end of a thread with hooks.
struct Thread {
    /// Its number; `None` for the slow path's.
    worker: Option<usize>,
    /// Until the thread has them.
    hooks: Option<ThreadHooks>,
    incoming: Producer<HookUpdate>,
    old: Consumer<HookUpdate>,
    sent: u64,
    taken: Arc<AtomicU64>,
    call_state: Arc<CallState>,
    watch: Watch,
}

impl Thread {
    /// Whether it runs and has not loaded yet what was sent to it.
    fn has_update(&self) -> bool {
        let runs = self.hooks.is_none() && !self.incoming.is_closed();
        runs && self.taken.load(Ordering::Acquire) < self.sent
    }
}

#[derive(Default)]
struct Inner {
    specs: Vec<HookSpec>,
    threads: Vec<Thread>,
    ports: Vec<String>,
    /// Versions by hook, the newest last; as many as may still run.
    versions: Vec<Arc<Version>>,
    loads: u64,
}

/// The hooks of a daemon.
pub struct HookSet {
    world: HookWorld,
    published: Arc<Publications>,
    inner: Mutex<Inner>,
}

/// Events for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookNews {
    /// A version was retired.
    Retired {
        /// The hook.
        name: String,
        file: PathBuf,
        version: u64,
        /// What happened.
        health: Health,
        /// Details, with a traceback if there is one.
        why: String,
        /// The version that runs instead, or what happens to the hook's packets.
        instead: Result<u64, OnFailure>,
    },
    /// A hook hangs in a place that cannot be left: only the end of the process helps.
    Stuck {
        /// For how long.
        lasts: Duration,
    },
}

/// A version as `show hooks` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookReport {
    /// The hook.
    pub name: String,
    pub file: PathBuf,
    /// Stages that it has functions for.
    pub stages: Vec<Stage>,
    /// The newest version.
    pub version: u64,
    /// How that is.
    pub health: Health,
    /// The version that runs; `None` if none does.
    pub running: Option<u64>,
    /// What it may take.
    pub budget: Budget,
    /// What happens to its packets if none does.
    pub on_failure: OnFailure,
    /// Its last error.
    pub error: Option<String>,
    /// Drop reasons with their meanings.
    pub reasons: Vec<(String, String)>,
}

impl Inner {
    /// The version of a hook that runs.
    fn running(&self, name: &str) -> Option<u64> {
        let mut versions = self.versions.iter().rev().filter(|version| version.spec.name == name);
        versions.find(|version| version.is_good()).map(|version| version.number)
    }

    /// What happens to the packets of `version`'s hook while none runs: the newest version says it.
    fn on_failure(&self, version: &Version) -> OnFailure {
        let mut newer = self.versions.iter().rev().filter(|newer| newer.spec.name == version.spec.name);
        newer.next().map_or_else(|| version.on_failure(), |newest| newest.on_failure())
    }
}

impl HookSet {
    /// No hooks yet.
    ///
    /// # Errors
    /// If the system refuses a signal handler.
    pub fn new(world: HookWorld) -> Result<Self, LuaError> {
        guard::install().map_err(LuaError::new)?;
        Ok(Self { world, published: Arc::default(), inner: Mutex::default() })
    }

    /// Loads hooks for `workers` workers and the slow path, which get them by [`worker`](Self::worker) and
    /// [`slow`](Self::slow). Threads from before are forgotten.
    ///
    /// # Errors
    /// What is wrong with a file; then nothing has changed.
    pub fn start(&self, specs: &[HookSpec], workers: usize, ports: Vec<String>) -> Result<(), LuaError> {
        let mut inner = self.inner.lock();
        let owners: Vec<_> = (0..workers).map(Some).chain([None]).collect();
        let (versions, updates) = self.load(inner.loads + 1, specs, &owners, &ports)?;
        inner.loads += 1;
        (inner.ports, inner.specs, inner.versions) = (ports, specs.to_vec(), versions);
        inner.threads =
            owners.into_iter().zip(updates).map(|(context, update)| Thread::new(context, update)).collect();
        Ok(())
    }

    /// The hooks of worker `index`; `None` if there is no such worker, or it has them already.
    pub fn worker(&self, index: usize) -> Option<Box<dyn StageHook>> {
        self.thread(Some(index))
    }

    /// The hooks of the slow path.
    pub fn slow(&self) -> Option<Box<dyn StageHook>> {
        self.thread(None)
    }

    fn thread(&self, context: Option<usize>) -> Option<Box<dyn StageHook>> {
        let mut inner = self.inner.lock();
        let thread = inner.threads.iter_mut().find(|thread| thread.worker == context)?;
        thread.hooks.take().map(|hooks| Box::new(hooks) as Box<dyn StageHook>)
    }

    /// Loads all files again and makes every thread use them; each hook's last good version is kept as a fallback.
    ///
    /// # Errors
    /// What is wrong with a file; then all threads keep their versions.
    pub fn reload(&self, specs: &[HookSpec]) -> Result<(), LuaError> {
        let mut inner = self.inner.lock();
        let owners: Vec<_> = inner.threads.iter().map(|thread| thread.worker).collect();
        let (mut versions, updates) = self.load(inner.loads + 1, specs, &owners, &inner.ports)?;
        inner.loads += 1;
        for (thread, update) in inner.threads.iter_mut().zip(updates) {
            thread.sent += 1;
            if thread.incoming.push(update).is_err() {
                return Err(LuaError::new(
                    "a worker has not loaded the previous versions yet: reload again later",
                ));
            }
        }
        let begin = Instant::now();
        while inner.threads.iter().any(Thread::has_update) && begin.elapsed() < TAKEN_WITHIN {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Of each hook the last good version is kept, since it may be needed again.
        let last_good = specs.iter().filter_map(|spec| {
            let mut good = inner.versions.iter().filter(|old| old.is_good() && old.spec.name == spec.name);
            good.next_back().cloned()
        });
        let mut kept: Vec<Arc<Version>> = last_good.collect();
        kept.append(&mut versions);
        (inner.versions, inner.specs) = (kept, specs.to_vec());
        Ok(())
    }

    /// Loads all files as [`reload`](Self::reload) does, without using them.
    ///
    /// # Errors
    /// What is wrong with a file.
    pub fn try_load(&self, specs: &[HookSpec]) -> Result<(), LuaError> {
        let inner = self.inner.lock();
        let owners: Vec<_> = inner.threads.iter().map(|thread| thread.worker).collect();
        self.load(inner.loads + 1, specs, &owners, &inner.ports).map(drop)
    }

    /// Loads hooks for each of `owners`.
    fn load(
        &self,
        number: u64,
        specs: &[HookSpec],
        owners: &[Option<usize>],
        ports: &[String],
    ) -> Result<(Vec<Arc<Version>>, Vec<HookUpdate>), LuaError> {
        let versions: Vec<_> =
            specs.iter().map(|spec| Arc::new(Version::new(spec.clone(), number))).collect();
        let workers = owners.iter().flatten().count();
        let mut updates = Vec::new();
        for &worker in owners {
            let mut update = HookUpdate::new();
            for version in &versions {
                let scope = Scope::Hook { hook: &version.spec.name, worker };
                let context = HookContext {
                    worker,
                    workers,
                    ports,
                    frame_pool: &self.world.frame_pool,
                    published: &self.published,
                    counters: &|names| self.block(scope, names),
                };
                update.push(HookState::new(version, &context)?);
            }
            updates.push(update);
        }
        Ok((versions, updates))
    }

    /// Counters with these names; existing ones are used again, so a version with the same counters continues them.
    fn block(&self, scope: Scope<'_>, names: &[String]) -> Result<Block, LuaError> {
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        self.world.registry.block(&scope.to_string(), &names).map_err(LuaError::new)
    }

    /// Supervises everything: closes old versions, interrupts what hangs, if it may. Returns the news.
    pub fn supervise(&self, on_hang: OnHang) -> Vec<HookNews> {
        let mut inner = self.inner.lock();
        let mut news = Vec::new();
        let now = Instant::now();
        for thread in &mut inner.threads {
            while let Some(old) = thread.old.pop() {
                drop(old);
            }
            let lasts = thread.watch.look(&thread.call_state, now, on_hang);
            if let Some(lasts) = lasts {
                news.push(HookNews::Stuck { lasts });
            }
        }
        for version in &inner.versions {
            if let Some((health, why)) = version.news() {
                let (name, file) = (version.spec.name.clone(), version.spec.file.clone());
                let instead = inner.running(&name).ok_or_else(|| inner.on_failure(version));
                news.push(HookNews::Retired { name, file, version: version.number, health, why, instead });
            }
        }
        news
    }

    /// Whether a hook hangs that could not be interrupted yet: its thread cannot be stopped now.
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.inner.lock().threads.iter().any(|thread| thread.watch.is_overdue(now))
    }

    /// How every hook is, in the order of the configuration.
    pub fn report(&self) -> Vec<HookReport> {
        let inner = self.inner.lock();
        let reports = inner.specs.iter().filter_map(|spec| {
            let versions = inner.versions.iter().filter(|version| version.spec.name == spec.name);
            let versions: Vec<_> = versions.collect();
            let newest = versions.last()?;
            Some(HookReport {
                name: spec.name.clone(),
                file: spec.file.clone(),
                stages: newest.stages(),
                version: newest.number,
                health: newest.health(),
                running: inner.running(&spec.name),
                budget: spec.budget,
                on_failure: newest.on_failure(),
                error: versions.iter().rev().find_map(|version| version.error()),
                reasons: newest.reasons(),
            })
        });
        reports.collect()
    }

    /// Whether there is any hook.
    pub fn is_empty(&self) -> bool {
        self.inner.lock().specs.is_empty()
    }
}

impl Thread {
    fn new(worker: Option<usize>, update: HookUpdate) -> Self {
        let (mut incoming, to_thread) = channel(UPDATES_MAX);
        let (from_thread, old) = channel(UPDATES_MAX);
        let (taken, call_state) = (Arc::<AtomicU64>::default(), Arc::<CallState>::default());
        let hooks = ThreadHooks::new(to_thread, from_thread, taken.clone(), call_state.clone());
        // The ring is empty, so there is room.
        let _pushed = incoming.push(update);
        let watch = Watch::default();
        Self { worker, hooks: Some(hooks), incoming, old, sent: 1, taken, call_state, watch }
    }
}

/// Compiles a file without running it.
///
/// # Errors
/// That it cannot be read, or its syntax error, with the line.
pub fn check(file: &Path) -> Result<(), LuaError> {
    let text = std::fs::read(file).map_err(|error| LuaError::new(format!("{}: {error}", file.display())))?;
    let lua = mlua::Lua::new();
    let chunk = lua.load(text).set_name(format!("@{}", file.display()));
    match chunk.into_function() {
        Ok(_) => Ok(()),
        Err(mlua::Error::SyntaxError { message, .. }) => Err(LuaError::new(message)),
        Err(error) => Err(error.into()),
    }
}
