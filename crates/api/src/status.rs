//! `status`, `reload` and `stop`: the daemon itself.

use crate::{Firewall, Lookup};
use serde::{Deserialize, Serialize};

/// How the daemon is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Version of brickmoon.
    pub version: String,
    /// Process number.
    pub pid: u32,
    /// How long it has run, in seconds.
    pub uptime_s: u64,
    /// Whether tables are compiled and ports forward.
    pub ready: bool,
    /// Path in use: `user`, `kernel`, `mixed`, where ports have different ones, or `lua`, of a program in Lua.
    pub path: String,
    /// Why it is that path, where the configuration leaves the choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_reason: Option<String>,
    /// What watches over the kernel path's tables when the daemon has ended, and has Linux forward after the first
    /// change: `process 1234`. None where nothing outlives the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tables_watched_by: Option<String>,
    /// The configuration file in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Workers that run.
    pub workers: u32,
    /// Ports that forward.
    pub ports: u32,
    /// Switches at work.
    pub switches: u32,
    /// Ports of switches.
    pub switch_ports: u32,
    /// IPv4 routes that the fast path has, all VRFs together.
    pub routes_ipv4: usize,
    /// IPv6 routes that the fast path has, all VRFs together.
    pub routes_ipv6: usize,
    /// Routes and neighbours that could not be compiled: Linux forwards their packets.
    pub routes_refused: usize,
    /// Neighbours of the kernel on interfaces of ours.
    pub neighbors: usize,
    /// Next hops in use.
    pub next_hops: usize,
    /// Next hops that there is room for: `next_hops` in `[fib]`.
    pub next_hops_room: usize,
    /// Resident memory of the process, in bytes.
    pub memory_bytes: u64,
    /// Memory of the lookup structures, in bytes.
    pub tables_bytes: u64,
    /// What the main tables are made as, IPv4 first.
    pub lookup: Vec<Lookup>,
    /// The mirror of the kernel's tables.
    pub mirror: Mirror,
    /// What only Linux may handle, and what of that the configuration bypasses.
    pub firewall: Firewall,
    /// Threads of the daemon that do not get anywhere; 0 if all is well.
    pub silent_threads: u32,
    /// Ports where `[filter]` is to drop packets and cannot, so that Linux forwards them; `notes` name them.
    pub unfiltered_ports: u32,
    /// Ports whose interface is not brickmoon's, where nftables filters by the rules of `[filter]`; `notes` name them.
    pub nftables_ports: u32,
    /// What the operator should know, a sentence each: unsupported rules, missing huge pages.
    pub notes: Vec<String>,
}

/// How the mirror of the kernel's tables is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mirror {
    /// Whether it has all that the kernel told, and workers have it too: nothing lost whose dump is still to come, no
    /// batch of changes that could not be carried out.
    pub synced: bool,
    /// Messages of the kernel taken in.
    pub messages: u64,
    /// Changes that they made.
    pub changes: u64,
    /// Times that the kernel lost messages for want of room.
    pub overruns: u64,
    /// Full dumps after the first.
    pub resyncs: u64,
    /// Differences that the periodic comparison found and mended.
    pub mended: u64,
    /// Messages that were not well formed; the tables are compared after one.
    pub malformed: u64,
    /// Times that settings in `/proc/sys/net` could not be read: the values before hold.
    pub unread: u64,
    /// How long the first dump and its compilation took, in milliseconds.
    pub first_sync_ms: u64,
    /// How long the latest batch of changes took to compile, in microseconds.
    pub last_batch_us: u64,
    /// How many changes were in it.
    pub last_batch_changes: u64,
}

/// What a reload did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reloaded {
    /// Settings that changed and hold from now on, such as `slow_path.queue`.
    pub changed: Vec<String>,
    /// Settings whose change restarted workers.
    pub restarted: Vec<String>,
    /// Settings whose change needs a restart of the daemon: not done.
    pub needs_restart: Vec<String>,
}

/// The daemon is about to end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopping {
    /// Its process number, for those who wait for its end.
    pub pid: u32,
    /// The kernel path stays at work.
    #[serde(default)]
    pub kept: bool,
}
