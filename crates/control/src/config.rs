//! The daemon's configuration: one TOML file, every key has a default.
//!
//! ```text
//! brickmoon.toml ─► read (spans, so each error has its line) ─► Config ─► diff ─► what can change at run time
//! ```
//!
//! `up`, `check` and `reload` use this module; the command line shares [`Device`]. All errors of a file are reported at
//! once. Absent on purpose: routes, addresses and anything else that Linux knows. `docs/brickmoon.toml` shows every key
//! with its default, which a test checks.

pub mod app;
mod closest;
mod device;
mod diff;
mod error;
mod export;
mod filter;
mod firewall;
mod hook;
mod ipsec;
mod read;

pub use device::{Device, DeviceError};
pub use diff::{Changed, Effect};
pub use error::{ConfigError, Problem, ProblemKind};
pub use export::{Collector, Export, ExportFormat};
pub use filter::{Fail, Filter, SourceRule};
pub use firewall::{Firewall, FirewallMode};
pub use hook::{Hook, HookFailure, HookStage};
pub use ipsec::{Ipsec, IpsecInterface, LeftToLinux};

use bm_fastpath::AttachChoice;
use bm_fib::structure::{self, Structure};
use bm_filter::Rule;
use bm_graph::{Idle, RealTime, Schedule};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Default path of the configuration file.
pub const FILE: &str = "/etc/brickmoon/brickmoon.toml";

/// The contents of a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub daemon: Daemon,
    /// Each `[[port]]`, in the order of the file.
    pub ports: Vec<Port>,
    pub fib: Fib,
    pub slow_path: SlowPath,
    pub neighbors: Neighbors,
    pub mirror: Mirror,
    /// Each `[[switch]]`, in the order of the file.
    pub switches: Vec<bm_switch::Settings>,
    /// `[cluster]`; `None` for a router of its own.
    pub cluster: Option<bm_cluster::Settings>,
    pub filter: Filter,
    pub firewall: Firewall,
    pub ipsec: Ipsec,
    /// Each `[[claim]]`: packets that workers get although their port uses the kernel path. The action of the rule is
    /// not used.
    pub claims: Vec<Rule>,
    pub export: Export,
    pub lua: Lua,
    /// Each `[[hook]]`, in the order they run.
    pub hooks: Vec<Hook>,
    /// Each `[[app]]`, in the order of the file.
    pub apps: Vec<app::App>,
    /// Each `[[link]]`, in the order of the file.
    pub links: Vec<app::Link>,
}

/// `[daemon]`: the process and its workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// Path of the control socket.
    pub socket: PathBuf,
    /// Group with read access to the socket, by name or number; `None` for none.
    pub read_group: Option<String>,
    /// Whether the daemon drops privileges that it does not need after the start.
    pub sandbox: bool,
    /// Address that serves metrics over HTTP; `None` for none.
    pub metrics: Option<SocketAddr>,
    /// Address that serves the web page; `None` for none.
    pub web: Option<SocketAddr>,
    /// File with the token that the web page asks for; `None` for none.
    pub web_token: Option<PathBuf>,
    /// Number of workers; `None` for as many as each port has queues, at most one per core.
    pub workers: Option<u32>,
    /// Cores of the workers, in order; empty to let the system choose.
    pub cores: Vec<u32>,
    /// Whether additional queues move from busy workers to idle ones.
    pub rebalance: bool,
    /// Which path packets take.
    pub path: PathChoice,
    /// How the kernel path is attached to interfaces.
    pub attach: AttachChoice,
    /// How long the kernel path forwards with its last tables without a daemon; zero for no limit.
    pub kernel_grace: Duration,
    /// What workers do when no packets arrive.
    pub idle: IdleChoice,
    /// How long a worker polls before it sleeps, in microseconds; `None` for 50, or 0 with real-time priority.
    pub poll_us: Option<u32>,
    /// Real-time priority of workers: 0 for none, `None` for the lowest one if the system allows it.
    pub priority: Option<u32>,
    /// Ring size of AF_XDP ports, in frames; `None` for the default ([`Daemon::ring`]).
    pub ring: Option<u32>,
    /// Number of frames per worker.
    pub slots: u32,
    /// Size of a frame's slot in bytes, of which 512 are headroom.
    pub slot_size: u32,
    /// Whether frame memory uses huge pages.
    pub huge_pages: Switch,
}

/// How long a worker with normal priority polls before it sleeps, in microseconds.
const POLL_US: u32 = 50;
/// Default real-time priority: the lowest one, above all normal threads and below everything set by an administrator.
const PRIORITY: u32 = 1;
/// Total ring size of all AF_XDP queues, and the minimum and maximum for each queue, in frames.
const RINGS: usize = 65_536;
const RING_MIN: u32 = 2048;
const RING_MAX: u32 = 16_384;

impl Default for Daemon {
    fn default() -> Self {
        Self {
            socket: bm_api::request::SOCKET.into(),
            read_group: None,
            sandbox: true,
            metrics: None,
            web: None,
            web_token: None,
            workers: None,
            cores: Vec::new(),
            rebalance: false,
            path: PathChoice::Auto,
            attach: AttachChoice::Auto,
            kernel_grace: Duration::from_secs(60),
            idle: IdleChoice::Sleep,
            poll_us: None,
            priority: None,
            ring: None,
            slots: 16_384,
            slot_size: 2048,
            huge_pages: Switch::Auto,
        }
    }
}

impl Daemon {
    /// Scheduling of workers, without their cores.
    pub fn schedule(&self) -> Schedule {
        let after = |unless: u32| Duration::from_micros(self.poll_us.unwrap_or(unless).into());
        let idle = match self.idle {
            IdleChoice::Busy => Idle::Busy,
            IdleChoice::Sleep => Idle::Sleep { after: after(POLL_US) },
        };
        let priority = self.priority.unwrap_or(PRIORITY).min(99) as u8;
        let real_time = (priority > 0).then(|| RealTime { priority, after: after(0) });
        Schedule { core: None, idle, real_time }
    }

    /// Ring size of each AF_XDP queue in frames, for this number of queues.
    pub fn ring(&self, queues: usize) -> u32 {
        let share = (RINGS / queues.max(1)).max(1);
        // Rounded down to a power of two.
        let ring = 1 << share.ilog2();
        self.ring.unwrap_or((ring as u32).clamp(RING_MIN, RING_MAX))
    }
}

/// `[[port]]`: a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub device: Device,
    /// Number of queues to use, from the first; `None` for all.
    pub queues: Option<u32>,
    /// The workers of its queues, from the first; the others are distributed in turn.
    pub queue_workers: Vec<u32>,
    /// Whether AF_XDP uses zero-copy mode.
    pub zero_copy: Switch,
    /// Whether to complete checksums that Linux has left to the device.
    pub checksum_completion: Switch,
    /// Source check of this port; `None` for that of `[filter]`.
    pub reverse_path: Option<SourceRule>,
    /// Path of its packets; `Auto` for that of `[daemon]`.
    pub path: PathChoice,
    /// How the kernel path is attached to its interface; `None` for that of `[daemon]`.
    pub attach: Option<AttachChoice>,
}

impl Port {
    /// A port with default settings, as for `--port DEVICE`.
    pub fn new(device: Device) -> Self {
        let auto = Switch::Auto;
        Self {
            device,
            queues: None,
            queue_workers: Vec::new(),
            zero_copy: auto,
            checksum_completion: auto,
            reverse_path: None,
            path: PathChoice::Auto,
            attach: None,
        }
    }
}

/// `[fib]`: structures and capacity of the lookup tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fib {
    /// Lookup structure for IPv4.
    pub ipv4: Structure<u32>,
    /// Lookup structure for IPv6.
    pub ipv6: Structure<u128>,
    /// Maximum number of next hops, including groups.
    pub next_hops: u32,
    /// Number of buckets of all groups together; a power of two.
    pub group_buckets: u32,
    /// Seed of the flow hash; `None` for a random one.
    pub hash_seed: Option<u32>,
}

impl Default for Fib {
    fn default() -> Self {
        Self {
            ipv4: structure::IPV4[0],
            ipv6: structure::IPV6[0],
            next_hops: 65_536,
            group_buckets: 1 << 22,
            hash_seed: None,
        }
    }
}

/// `[slow_path]`: limits of the slow path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowPath {
    /// Size of the ring between each worker and the slow path, in frames.
    pub ring: u32,
    /// Maximum number of packets that wait for the MAC of one next hop.
    pub queue_per_next_hop: u32,
    /// Maximum number of packets that wait for MACs in total.
    pub queue: u32,
    /// How long a packet may wait.
    pub wait: Duration,
    /// Total limit of ICMP errors per second; `None` for the settings of the kernel.
    pub icmp_per_second: Option<u32>,
}

impl Default for SlowPath {
    fn default() -> Self {
        Self {
            ring: 4096,
            queue_per_next_hop: 101,
            queue: 4096,
            wait: Duration::from_millis(3000),
            icmp_per_second: None,
        }
    }
}

/// `[neighbors]`: how neighbors are resolved and kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbors {
    /// How often neighbors in use are confirmed.
    pub refresh: Duration,
    /// Maximum number of requests for unknown neighbors per second.
    pub resolve_per_second: u32,
    /// Capacity of the queue of requests.
    pub resolve_queue: u32,
}

impl Default for Neighbors {
    fn default() -> Self {
        Self { refresh: Duration::from_secs(5), resolve_per_second: 1000, resolve_queue: 1024 }
    }
}

/// `[mirror]`: our copy of the kernel's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Interval between comparisons with the kernel; zero for none.
    pub compare: Duration,
    /// Receive buffer of the netlink socket, in bytes.
    pub receive_buffer: u32,
}

impl Default for Mirror {
    fn default() -> Self {
        Self { compare: Duration::from_secs(600), receive_buffer: 64 << 20 }
    }
}

/// `[lua]`: settings of hooks and apps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lua {
    /// Directories that are searched for modules before brickmoon's own; a relative path starts at the directory of the
    /// configuration file.
    pub path: Vec<PathBuf>,
    /// Line of `path`; 0 if it is not set.
    pub line: usize,
    /// What to do about a hook or app that does not return while packets wait.
    pub hung_calls: HungCalls,
}

/// What to do about a Lua function that does not return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HungCalls {
    /// Interrupt it; its worker continues without it.
    #[default]
    Interrupt,
    /// Leave packets to Linux and end the daemon, which systemd starts again.
    Restart,
}

/// On, off, or automatic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    /// On if it works.
    #[default]
    Auto,
    /// On; an error if it does not work.
    On,
    Off,
}

/// The path that packets take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathChoice {
    /// Chosen automatically.
    #[default]
    Auto,
    /// In user space, by workers.
    User,
    /// In the kernel, by XDP programs.
    Kernel,
}

/// What workers do when no packets arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdleChoice {
    /// Sleep until a packet arrives.
    #[default]
    Sleep,
    /// Poll without pause.
    Busy,
}

impl Config {
    /// Source check of a port.
    pub fn source_rule(&self, port: &Port) -> SourceRule {
        port.reverse_path.unwrap_or(self.filter.reverse_path)
    }

    /// The interfaces of fabric links.
    pub fn fabric_devices(&self) -> Vec<String> {
        let links = self.cluster.iter().flat_map(|cluster| &cluster.links);
        links.map(|link| link.device.clone()).collect()
    }

    /// How the kernel path is attached to the interface of a port.
    pub fn attach_of(&self, port: &Port) -> AttachChoice {
        port.attach.unwrap_or(self.daemon.attach)
    }

    /// One received frame in so many is sampled; 0 for none, since nobody would be told.
    pub fn sample_one_in(&self) -> u32 {
        if self.export.collectors.is_empty() { 0 } else { self.export.one_in }
    }

    /// Whether any port checks sources by feasible paths.
    pub fn asks_for_feasible(&self) -> bool {
        self.ports.iter().any(|port| self.source_rule(port) == SourceRule::Feasible)
    }

    /// Whether filters drop anything that Linux would forward.
    pub fn filters_drop(&self) -> bool {
        let checks = |port: &Port| !matches!(self.source_rule(port), SourceRule::Kernel | SourceRule::Off);
        self.filter.drops() || self.ports.iter().any(checks)
    }

    /// Names of unknown ports in rules.
    pub fn unknown_ports_of_rules(&self) -> Vec<&str> {
        let of_ipsec = || self.ipsec.interfaces.iter().map(|own| own.device.as_str());
        let names = || self.ports.iter().filter_map(|port| port.device.interface()).chain(of_ipsec());
        let rules = self.filter.rules.iter().chain(&self.claims);
        let asked = rules.filter_map(|rule| rule.port.as_deref());
        asked.filter(|asked| names().all(|name| name != *asked)).collect()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// All errors of the file.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        match std::fs::read_to_string(file) {
            Ok(text) => {
                let mut config = Self::parse(file, &text)?;
                let is_public = std::fs::metadata(file).is_ok_and(|about| about.mode() & 0o044 != 0);
                config.ipsec.public_file = (is_public && config.ipsec.has_keys_here).then(|| file.into());
                Ok(config)
            }
            Err(error) => Err(ConfigError::unreadable(file, &error)),
        }
    }

    /// Parses a text; `file` is for error messages and relative paths.
    ///
    /// # Errors
    /// All errors of the text.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let folder = file.parent().unwrap_or(Path::new(""));
        let mut config =
            read::config(text, folder).map_err(|problems| ConfigError { file: file.into(), problems })?;
        config.hooks.iter_mut().for_each(|hook| hook.file = folder.join(&hook.file));
        config.lua.path.iter_mut().for_each(|tree| *tree = folder.join(&tree));
        for app in &mut config.apps {
            if let app::Module::File(file) = &mut app.module {
                *file = folder.join(&file);
            }
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests;
