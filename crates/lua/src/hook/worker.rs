//! All hooks of one thread: replaced when a new set is loaded, called in the order of the configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bm_frame::Mask;
use bm_graph::{HookBurst, HookFate, Stage, StageHook, Stages};
use bm_link::{Consumer, Producer};

use super::guard::CallState;
use super::loaded::HookState;
use super::version::{Health, OnFailure};

/// A set of hooks on its way to a thread.
pub type HookUpdate = Vec<HookState>;

/// A hook in its current version, with the last good one.
struct Slot {
    current: HookState,
    previous: Option<HookState>,
    /// What happens to its packets when none of its versions is good.
    on_failure: OnFailure,
    off: bool,
}

impl Slot {
    /// Where it must be called. Linux gets its packets as they came in.
    fn stages(&self) -> Stages {
        let of_hook = self.current.stages;
        match (self.off, self.on_failure) {
            (false, _) | (true, OnFailure::Drop) => of_hook,
            (true, OnFailure::Pass) => Stages::NONE,
            (true, OnFailure::Linux) if of_hook == Stages::NONE.with(Stage::Slow) => of_hook,
            (true, OnFailure::Linux) => of_hook.with(Stage::Ingress),
        }
    }

    /// What happens instead of a call, if none of the versions is good.
    fn instead(&self, burst: &mut HookBurst<'_>) {
        let fate = match self.on_failure {
            OnFailure::Pass => return,
            OnFailure::Drop => HookFate::DropUnseen,
            OnFailure::Linux => HookFate::Linux,
        };
        burst.mask.iter().for_each(|place| burst.room.fates[place] = fate);
        *burst.mask = Mask::NONE;
    }
}

/// The hooks that one worker or the slow path calls, in the order of the configuration.
pub struct ThreadHooks {
    slots: Vec<Slot>,
    stages: Stages,
    incoming: Consumer<HookUpdate>,
    /// What is no longer run: another thread closes it, since that takes time.
    old: Producer<HookUpdate>,
    taken: Arc<AtomicU64>,
    call_state: Arc<CallState>,
    /// From the caller's clock to the machine's, in nanoseconds.
    offset_ns: Option<u64>,
}

impl ThreadHooks {
    pub fn new(
        incoming: Consumer<HookUpdate>,
        old: Producer<HookUpdate>,
        taken: Arc<AtomicU64>,
        call_state: Arc<CallState>,
    ) -> Self {
        Self { slots: Vec::new(), stages: Stages::NONE, incoming, old, taken, call_state, offset_ns: None }
    }

    /// Switches to a new set: each hook keeps its last good version as a fallback.
    #[cold]
    fn take_over(&mut self) {
        while let Some(update) = self.incoming.pop() {
            let mut before = std::mem::take(&mut self.slots);
            let mut old = Vec::new();
            for current in update {
                let name = &current.version.spec.name;
                let same = before.iter().position(|slot| slot.current.version.spec.name == *name);
                let good = same.map(|at| before.swap_remove(at)).and_then(|slot| {
                    let (good, rest): (Vec<_>, Vec<_>) = std::iter::once(slot.current)
                        .chain(slot.previous)
                        .partition(|loaded| loaded.version.is_good());
                    let mut good = good.into_iter();
                    let first = good.next();
                    old.extend(rest.into_iter().chain(good));
                    first
                });
                let on_failure = current.version.on_failure();
                self.slots.push(Slot { current, previous: good, on_failure, off: false });
            }
            old.extend(
                before.into_iter().flat_map(|slot| std::iter::once(slot.current).chain(slot.previous)),
            );
            self.give_back(old);
            self.taken.fetch_add(1, Ordering::Release);
        }
        self.count_stages();
    }

    fn count_stages(&mut self) {
        self.stages = self.slots.iter().fold(Stages::NONE, |stages, slot| stages.or(slot.stages()));
    }

    /// States that are not run any more.
    fn give_back(&mut self, old: HookUpdate) {
        if !old.is_empty()
            && let Err(old) = self.old.push(old)
        {
            // The other thread has not taken any for long: then it is closed here.
            drop(old);
        }
    }

    /// Replaces a hook's current version by the last good one.
    #[cold]
    fn fall_back(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        match slot.previous.take() {
            Some(good) if good.version.is_good() => {
                let bad = std::mem::replace(&mut slot.current, good);
                self.give_back(vec![bad]);
            }
            bad => {
                slot.off = true;
                self.give_back(bad.into_iter().collect());
            }
        }
        self.count_stages();
    }

    /// Runs a hook over a burst. If a version fails, the burst is the last good one's; what a version that is ejected
    /// has decided remains in force.
    fn run_slot(&mut self, at: usize, stage: Stage, burst: &mut HookBurst<'_>, now_ns: u64) {
        loop {
            let slot = &mut self.slots[at];
            if !slot.stages().has(stage) {
                return;
            }
            if slot.off {
                return slot.instead(burst);
            }
            // Another worker may have disabled it.
            let health = match slot.current.version.is_good() {
                true => slot.current.run(&self.call_state, stage, burst, now_ns),
                false => Health::Failed,
            };
            if health == Health::Good {
                return;
            }
            self.fall_back(at);
            if health == Health::Ejected {
                return;
            }
        }
    }

    fn now_ns(&mut self, now_ns: u64) -> u64 {
        let offset = *self.offset_ns.get_or_insert_with(|| machine_ns().wrapping_sub(now_ns));
        now_ns.wrapping_add(offset)
    }
}

/// Nanoseconds of a clock that is the same for all threads.
fn machine_ns() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

impl StageHook for ThreadHooks {
    fn begin(&mut self) -> Stages {
        if self.incoming.readable() > 0 {
            self.take_over();
        }
        self.stages
    }

    fn run(&mut self, stage: Stage, burst: &mut HookBurst<'_>) {
        let now_ns = self.now_ns(burst.now_ns);
        for at in 0..self.slots.len() {
            if burst.mask.is_empty() {
                break;
            }
            self.run_slot(at, stage, burst, now_ns);
        }
    }
}
