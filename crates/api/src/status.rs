//! `status`, `reload` and `stop`: the daemon itself.

use crate::{Firewall, FlowsState, Lookup};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// State of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Status {
    /// Version of brickmoon.
    pub version: String,
    /// Process ID.
    pub pid: u32,
    /// Time since the start, in seconds.
    pub uptime_s: u64,
    /// Whether the tables are complete and ports forward.
    pub ready: bool,
    /// Path in use: `user`, `kernel`, `mixed` if ports have different paths, or `lua` for a Lua program.
    pub path: String,
    /// Why this path was chosen; absent if the configuration sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_reason: Option<String>,
    /// The process that watches the kernel path's tables after the daemon has ended, and makes Linux forward after the
    /// first change: `process 1234`. Absent if nothing outlives the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tables_watched_by: Option<String>,
    /// The configuration file in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// URL of the web page; absent if it is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub web: Option<String>,
    /// Number of workers.
    pub workers: u32,
    /// Number of ports.
    pub ports: u32,
    /// Number of switches.
    pub switches: u32,
    /// Number of ports of all switches.
    pub switch_ports: u32,
    /// IPv4 routes in the fast path, in all VRFs.
    pub routes_ipv4: usize,
    /// IPv6 routes in the fast path, in all VRFs.
    pub routes_ipv6: usize,
    /// Routes and neighbors that brickmoon cannot handle: Linux forwards their packets.
    pub routes_refused: usize,
    /// The kernel's neighbors on brickmoon's interfaces.
    pub neighbors: usize,
    /// Next hops in use.
    pub next_hops: usize,
    /// Maximum number of next hops: `next_hops` in `[fib]`.
    pub next_hops_max: usize,
    /// Resident memory of the process, in bytes.
    pub memory_bytes: u64,
    /// Memory of the lookup structures, in bytes.
    pub tables_bytes: u64,
    /// Lookup structures of the main tables, IPv4 first.
    pub lookup: Vec<Lookup>,
    /// State of the mirror of the kernel's tables.
    pub mirror: Mirror,
    /// Packets that only Linux may handle, and those that bypass it.
    pub firewall: Firewall,
    /// Flows of connections that Linux has accepted.
    pub flows: FlowsState,
    /// Number of threads of the daemon that make no progress; 0 if all is well.
    pub silent_threads: u32,
    /// Number of ports where Linux forwards packets without `[filter]`; `notes` name them.
    pub unfiltered_ports: u32,
    /// Number of ports without their interface where nftables applies the rules of `[filter]`; `notes` name them.
    pub nftables_ports: u32,
    /// Number of outbound SAs of IPsec without a sequence number left, which send nothing; `notes` name them.
    pub exhausted_sas: u32,
    /// Lua hooks, by name, and whether a version of each runs; `notes` say what happens to the packets of one that does
    /// not.
    pub hooks: BTreeMap<String, bool>,
    /// Remarks for the operator, such as unsupported rules or missing huge pages.
    pub notes: Vec<String>,
}

/// State of the mirror of the kernel's tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Mirror {
    /// Whether the tables of the workers reflect all messages of the kernel: no lost messages still to be made up for by
    /// a dump, and no changes that could not be applied.
    pub synced: bool,
    /// Netlink messages received.
    pub messages: u64,
    /// Changes in these messages.
    pub changes: u64,
    /// How often the kernel dropped messages because the socket buffer was full.
    pub overruns: u64,
    /// Full dumps after the first one.
    pub resyncs: u64,
    /// Differences that the periodic comparison found and corrected.
    pub repaired: u64,
    /// Malformed messages; the tables are compared with the kernel after each.
    pub malformed: u64,
    /// How often settings in `/proc/sys/net` could not be read; the previous values stay in use.
    pub unread: u64,
    /// Duration of the first dump and its compilation, in milliseconds.
    pub first_sync_ms: u64,
    /// Duration of compiling the latest batch of changes, in microseconds.
    pub last_batch_us: u64,
    /// Number of changes in the latest batch.
    pub last_batch_changes: u64,
}

/// Result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Reloaded {
    /// Changed settings that are now in effect, such as `slow_path.queue`.
    pub changed: Vec<String>,
    /// Changed settings that are now in effect after a restart of the workers.
    pub restarted: Vec<String>,
    /// Changed settings that need a restart of the daemon and are not in effect.
    pub needs_restart: Vec<String>,
}

/// Reply to the stop request: the daemon ends now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stopping {
    /// Process ID of the daemon, for waiting for its end.
    pub pid: u32,
    /// Whether the kernel path keeps forwarding.
    #[serde(default)]
    pub kept: bool,
}
