//! `show workers`, `show apps`, `show links` and `show drops`: the data path at work.

use crate::Account;
use serde::{Deserialize, Serialize};

/// All workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workers {
    /// The workers, by number.
    pub workers: Vec<Worker>,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Worker {
    /// Its number, from 0.
    pub worker: u32,
    /// The core that it is pinned to; absent if the system chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core: Option<u32>,
    /// Whether its thread runs.
    pub alive: bool,
    /// Its real-time priority (SCHED_FIFO); 0 for none.
    pub priority: u8,
    /// Queues that it has, such as `eth0/3`.
    pub queues: Vec<String>,
    /// Rounds through its apps.
    pub breaths: u64,
    /// Rounds in which frames moved.
    pub moves: u64,
    /// Times that it slept.
    pub sleeps: u64,
    /// How often it was started again after a panic or a hang.
    pub restarts: u64,
    /// Frames of its pool.
    pub frames: u32,
    /// Those of them that are free.
    pub frames_free: u32,
    /// What LuaJIT did for its hooks and apps; absent without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lua: Option<Lua>,
}

/// What LuaJIT did on a worker since the start, all states together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lua {
    /// Traces compiled.
    pub traces: u64,
    /// Recordings given up.
    pub aborts: u64,
    /// Times that all traces of a state were thrown away.
    pub flushes: u64,
    /// Bytes of machine code of the traces that there are.
    pub code_bytes: u64,
    /// Bytes that garbage collectors look after.
    pub heap_bytes: u64,
}

impl std::ops::AddAssign for Lua {
    fn add_assign(&mut self, other: Self) {
        self.traces += other.traces;
        self.aborts += other.aborts;
        self.flushes += other.flushes;
        self.code_bytes += other.code_bytes;
        self.heap_bytes += other.heap_bytes;
    }
}

/// All apps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Apps {
    /// The apps, by worker and name.
    pub apps: Vec<App>,
}

/// An app.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct App {
    /// Its name.
    pub name: String,
    /// The worker that runs it; absent for the slow path, which has its own thread, and where several workers of a
    /// program are summed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// What became of its frames.
    pub account: Account,
}

/// All links between apps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Links {
    /// The links, by worker and name.
    pub links: Vec<Link>,
}

/// A link between two apps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Link {
    /// As `app.output -> app.input`.
    pub name: String,
    /// The worker that it is on.
    pub worker: u32,
    /// Frames put in.
    pub put: u64,
    /// Bytes put in.
    pub put_bytes: u64,
    /// Frames taken out.
    pub taken: u64,
    /// Bytes taken out.
    pub taken_bytes: u64,
    /// Frames that found it full.
    pub dropped: u64,
    /// Frames waiting in it.
    pub waiting: u64,
}

/// All drops, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drops {
    /// Reasons with frames, most frames first.
    pub drops: Vec<Drop>,
    /// Frames dropped in all.
    pub total: u64,
}

/// Frames dropped for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drop {
    /// Name, such as `ttl_exceeded`.
    pub reason: String,
    /// What it means.
    pub meaning: String,
    /// Frames dropped.
    pub frames: u64,
    /// Where, most frames first.
    pub at: Vec<DropAt>,
}

/// Frames dropped for one reason at one app.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropAt {
    /// Name of the app.
    pub app: String,
    /// Frames dropped there.
    pub frames: u64,
}
