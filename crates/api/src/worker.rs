//! `show workers`, `show apps`, `show links` and `show drops`: the data path.

use crate::Account;
use serde::{Deserialize, Serialize};

/// Reply to `GET /v1/workers`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Workers {
    /// The workers, by number.
    pub workers: Vec<Worker>,
}

/// A forwarding thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Worker {
    /// Number of the worker, from 0.
    pub worker: u32,
    /// Core that it is pinned to; absent if the system chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core: Option<u32>,
    /// Whether its thread runs.
    pub alive: bool,
    /// Real-time priority (SCHED_FIFO); 0 for normal priority.
    pub priority: u8,
    /// Its queues, such as `eth0/3`.
    pub queues: Vec<String>,
    /// Breaths: rounds through its apps.
    pub breaths: u64,
    /// Frames moved, counted once for each link or port.
    pub moves: u64,
    /// How often it slept.
    pub sleeps: u64,
    /// Time spent on frames, in nanoseconds; absent where it is not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_ns: Option<u64>,
    /// Its apps with the time spent in each on frames, estimated from some of its breaths; empty where it is not measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub apps: Vec<AppTime>,
    /// How often it was restarted after a panic or a hang.
    pub restarts: u64,
    /// Size of the frame memory, which all workers share, in frames.
    pub frames: u32,
    /// Free frames in it.
    pub frames_free: u32,
    /// Figures of LuaJIT for its hooks and apps; absent without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lua: Option<Lua>,
}

/// The time that a worker has spent in one of its apps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct AppTime {
    /// Name of the app.
    pub app: String,
    /// Time in nanoseconds.
    pub ns: u64,
}

/// Figures of LuaJIT on a worker since the start, summed over its Lua states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Lua {
    /// Traces compiled.
    pub traces: u64,
    /// Aborted trace recordings.
    pub aborts: u64,
    /// How often all traces of a state were flushed.
    pub flushes: u64,
    /// Size of the machine code of the current traces, in bytes.
    pub code_bytes: u64,
    /// Size of the garbage-collected heaps, in bytes.
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

/// Reply to `GET /v1/apps`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Apps {
    /// The apps, by worker and name.
    pub apps: Vec<App>,
}

/// A step of processing on a worker, with its packet account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct App {
    /// Name of the app.
    pub name: String,
    /// Number of the worker that runs it; absent for the slow path, which has its own thread, and for sums over several
    /// workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// Account of its frames.
    pub account: Account,
}

/// All links between apps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Links {
    /// The links, by worker and name.
    pub links: Vec<Link>,
}

/// A link between two apps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Link {
    /// Name, such as `eth0.output -> router.eth0`.
    pub name: String,
    /// Number of its worker.
    pub worker: u32,
    /// Frames that the sending app transmitted into the link.
    pub tx: u64,
    /// Bytes of these frames.
    pub tx_bytes: u64,
    /// Frames that the receiving app took out of the link.
    pub rx: u64,
    /// Bytes of these frames.
    pub rx_bytes: u64,
    /// Frames dropped because the link was full.
    pub dropped: u64,
    /// Frames in the link now.
    pub waiting: u64,
}

/// All drops, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Drops {
    /// Reasons, most frames first.
    pub drops: Vec<Drop>,
    /// Total number of dropped frames.
    pub total: u64,
    /// What the kernel path left to Linux, by cause, most frames first. Linux may have forwarded, answered or dropped it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_to_linux: Vec<Drop>,
    /// What Linux dropped of the packets that came in on ports, most frames first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_linux: Vec<LinuxDrop>,
    /// Why it is not known what Linux dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_linux_unknown: Option<String>,
}

/// Packets that Linux dropped for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LinuxDrop {
    /// Name, such as `firewall`.
    pub reason: String,
    /// Meaning of the reason.
    pub meaning: String,
    /// Number of dropped packets.
    pub frames: u64,
    /// Where they came in, most packets first.
    pub at: Vec<LinuxDropAt>,
}

/// Packets that Linux dropped for one of its reasons, of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LinuxDropAt {
    /// Name of the port on which they came in.
    pub port: String,
    /// The kernel's own name of the reason, such as `NETFILTER_DROP`.
    pub kernel_reason: String,
    /// Number of dropped packets.
    pub frames: u64,
}

/// The reply to `show drops --explain`: every reason that `show drops` and metrics may name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Causes {
    pub causes: Vec<Cause>,
}

/// A reason, and who gives it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Cause {
    /// What happens: `dropped`, `left to Linux` or `dropped by Linux`.
    pub outcome: String,
    /// Name, such as `no_route`.
    pub name: String,
    /// Meaning of the name.
    pub meaning: String,
}

/// Frames dropped for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Drop {
    /// Name, such as `ttl_exceeded`.
    pub reason: String,
    /// Meaning of the reason.
    pub meaning: String,
    /// Number of dropped frames.
    pub frames: u64,
    /// Where they were dropped, most frames first.
    pub at: Vec<DropAt>,
}

/// Frames dropped for one reason at one app.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DropAt {
    /// Name of the app.
    pub app: String,
    /// Number of frames dropped there.
    pub frames: u64,
}
