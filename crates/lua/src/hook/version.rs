//! A version of a hook: what all workers that run it share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};

use bm_graph::Stage;
use bm_sys::Mutex;

use super::meter::Budget;
use crate::modules::Tree;

/// A hook as the configuration names it.
#[derive(Clone, Debug, PartialEq)]
pub struct HookSpec {
    /// Its name in counters and `show hooks`.
    pub name: String,
    /// The Lua file.
    pub file: PathBuf,
    /// The stage, if the file returns one function; `None` if it returns a table of them by stage.
    pub stage: Option<Stage>,
    /// The table that the file gets as `...`.
    pub arguments: serde_json::Value,
    /// What it may take.
    pub budget: Budget,
    /// What happens to its packets when none of its versions runs; `None` for [`OnFailure::Drop`] if it declares a
    /// drop reason, which says that it filters, and [`OnFailure::Pass`] if not.
    pub on_failure: Option<OnFailure>,
    /// Folders with modules, searched before the binary.
    pub trees: Vec<Tree>,
}

/// What happens to the packets of a hook none of whose versions runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// They continue as if there were no such hook.
    Pass,
    /// They are dropped.
    Drop,
    /// Linux gets them as they came in.
    Linux,
}

impl OnFailure {
    /// The word for it in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Drop => "drop",
            Self::Linux => "linux",
        }
    }
}

/// How a version is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Health {
    /// It runs, or would if it were called.
    Good,
    /// An error in it was not caught.
    Failed,
    /// It took more than its budget for too long.
    Ejected,
    /// It did not return, and was interrupted.
    Hung,
}

impl Health {
    const ALL: [Self; 4] = [Self::Good, Self::Failed, Self::Ejected, Self::Hung];

    /// The word for it in `show hooks`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "active",
            Self::Failed => "failed",
            Self::Ejected => "ejected",
            Self::Hung => "hung",
        }
    }
}

/// A version of a hook.
pub struct Version {
    /// As the configuration names it.
    pub spec: HookSpec,
    /// Counts loads of the set, from 1.
    pub number: u64,
    health: AtomicU8,
    told: AtomicU8,
    error: Mutex<Option<String>>,
    declared: Mutex<Declared>,
}

/// The declarations of its file.
#[derive(Clone, Default)]
struct Declared {
    reasons: Vec<(String, String)>,
    stages: Vec<Stage>,
}

impl Version {
    pub fn new(spec: HookSpec, number: u64) -> Self {
        Self {
            spec,
            number,
            health: AtomicU8::new(0),
            told: AtomicU8::new(0),
            error: Mutex::default(),
            declared: Mutex::default(),
        }
    }

    /// Stores the declarations of the file: they are the same on every thread.
    pub fn declare(&self, reasons: Vec<(String, String)>, stages: Vec<Stage>) {
        *self.declared.lock() = Declared { reasons, stages };
    }

    /// Its drop reasons with their meanings.
    pub fn reasons(&self) -> Vec<(String, String)> {
        self.declared.lock().reasons.clone()
    }

    /// Stages that it has functions for.
    pub fn stages(&self) -> Vec<Stage> {
        self.declared.lock().stages.clone()
    }

    /// What happens to its packets when it does not run, and no other version either.
    pub fn on_failure(&self) -> OnFailure {
        let filters = !self.declared.lock().reasons.is_empty();
        self.spec.on_failure.unwrap_or(if filters { OnFailure::Drop } else { OnFailure::Pass })
    }

    /// How it is.
    pub fn health(&self) -> Health {
        Health::ALL[usize::from(self.health.load(Ordering::Relaxed)) & 3]
    }

    #[inline]
    pub(crate) fn is_good(&self) -> bool {
        self.health.load(Ordering::Relaxed) == Health::Good as u8
    }

    /// Disables it for all workers. Returns whether this was the first call.
    pub fn retire(&self, health: Health, why: String) -> bool {
        let good = Health::Good as u8;
        let first =
            self.health.compare_exchange(good, health as u8, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if first {
            *self.error.lock() = Some(why);
        }
        first
    }

    /// The last error, with its traceback.
    pub fn error(&self) -> Option<String> {
        self.error.lock().clone()
    }

    /// How it failed, and why, if that has not been logged yet.
    pub fn news(&self) -> Option<(Health, String)> {
        let health = self.health();
        // The thread that retires it stores the error a moment later: wait for it.
        let why = (health != Health::Good).then(|| self.error()).flatten()?;
        (self.told.swap(health as u8, Ordering::Relaxed) != health as u8).then_some((health, why))
    }
}
