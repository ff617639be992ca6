//! The daemon's configuration: one TOML file, every key with a default.
//!
//! ```text
//! brickmoon.toml ─► read (spans, so each complaint has its line) ─► Config ─► diff ─► what changes live
//! ```
//!
//! `up`, `check` and `reload` use this module; the command line shares [`Device`]. All complaints about a
//! file are reported at once. Absent on purpose: routes, addresses and anything else that Linux knows.
//! `docs/brickmoon.toml` shows every key with its default, and a test holds it to that.

pub mod app;
mod device;
mod diff;
mod error;
mod filter;
mod firewall;
mod hook;
mod read;

pub use device::{Device, DeviceError};
pub use diff::{Changed, Effect};
pub use error::{ConfigError, Problem, What};
pub use filter::{Fail, Filter, SourceRule};
pub use firewall::{Firewall, Heed};
pub use hook::{Hook, HookStage};

use bm_fib::structure::{self, Structure};
use bm_filter::Rule;
use bm_graph::{Idle, RealTime, Schedule};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the configuration is unless the command line says otherwise.
pub const FILE: &str = "/etc/brickmoon/brickmoon.toml";

/// Everything that the file may say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// `[daemon]`.
    pub daemon: Daemon,
    /// Each `[[port]]`, in the order of the file.
    pub ports: Vec<Port>,
    /// `[fib]`.
    pub fib: Fib,
    /// `[slow_path]`.
    pub slow_path: SlowPath,
    /// `[neighbors]`.
    pub neighbors: Neighbors,
    /// `[mirror]`.
    pub mirror: Mirror,
    /// Each `[[switch]]`, in the order of the file.
    pub switches: Vec<bm_switch::Settings>,
    /// `[filter]`.
    pub filter: Filter,
    /// `[firewall]`.
    pub firewall: Firewall,
    /// Each `[[claim]]`: packets that workers get though their port takes the kernel path. What becomes of others,
    /// an action, means nothing here.
    pub claims: Vec<Rule>,
    /// `[lua]`.
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
    /// Unix socket on which commands are answered.
    pub socket: PathBuf,
    /// Whose members may ask at the socket and change nothing, by name or number; `None` for nobody.
    pub read_group: Option<String>,
    /// Whether the daemon gives up what it does not need once it has started.
    pub sandbox: bool,
    /// Where metrics are served by HTTP; `None` for nowhere.
    pub metrics: Option<SocketAddr>,
    /// How many workers; `None` for as many as the ports' queues keep busy, at most one a core.
    pub workers: Option<u32>,
    /// Cores that workers are pinned to, in order; empty for the system's choice.
    pub cores: Vec<u32>,
    /// Whether queues beyond the number of workers go from busy workers to idle ones.
    pub rebalance: bool,
    /// Which path packets take.
    pub path: PathChoice,
    /// How long the kernel path forwards by tables that no daemon keeps; zero is for ever.
    pub kernel_grace: Duration,
    /// Whether workers sleep when nothing comes.
    pub idle: IdleChoice,
    /// How long a worker asks on before it sleeps, in microseconds; `None` for 50, or 0 with real-time priority.
    pub poll_us: Option<u32>,
    /// Real-time priority of workers: 0 for none, `None` for the lowest where the system allows it.
    pub priority: Option<u32>,
    /// Frames that can wait in each queue of an AF_XDP port; `None` for what [`Daemon::ring`] says.
    pub ring: Option<u32>,
    /// Frames of each worker.
    pub slots: u32,
    /// Bytes of a frame's slot, of which 512 are headroom.
    pub slot_size: u32,
    /// Whether frames lie on huge pages.
    pub huge_pages: Switch,
}

/// How long a normal worker asks on before it sleeps.
const POLL_US: u32 = 50;
/// Real-time priority of workers: the lowest is above all normal threads, and below whatever an administrator has set.
const PRIORITY: u32 = 1;
/// Frames that can wait in the queues of all AF_XDP ports together, and in each at the least and at the most.
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
            workers: None,
            cores: Vec::new(),
            rebalance: false,
            path: PathChoice::Auto,
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
    /// How workers run, but for their cores.
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

    /// Frames that can wait in each queue of an AF_XDP port, where there are so many such queues.
    pub fn ring(&self, queues: usize) -> u32 {
        let share = (RINGS / queues.max(1)).max(1);
        // The greatest power of two within it.
        let ring = 1 << share.ilog2();
        self.ring.unwrap_or((ring as u32).clamp(RING_MIN, RING_MAX))
    }
}

/// `[[port]]`: a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The device.
    pub device: Device,
    /// How many of its queues are taken, from the first; `None` for all.
    pub queues: Option<u32>,
    /// The workers of its queues, from the first; those that are not named are dealt out in turn.
    pub queue_workers: Vec<u32>,
    /// Whether the device writes into our frames without a copy.
    pub zero_copy: Switch,
    /// Whether checksums that Linux left to the device are completed here.
    pub checksum_completion: Switch,
    /// How sources are checked here; `None` as `[filter]` says.
    pub reverse_path: Option<SourceRule>,
    /// Which path its packets take; `Auto` as `[daemon]` says.
    pub path: PathChoice,
}

impl Port {
    /// A port with the defaults, as `--port DEVICE` makes one.
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
        }
    }
}

/// `[fib]`: what the lookup tables are, and their room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fib {
    /// What IPv4 tables are made as.
    pub ipv4: Structure<u32>,
    /// What IPv6 tables are made as.
    pub ipv6: Structure<u128>,
    /// How many next hops there can be, groups counted.
    pub next_hops: u32,
    /// How many buckets all groups share; a power of two.
    pub group_buckets: u32,
    /// Seed of the flow hash; `None` for one drawn at start.
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

/// `[slow_path]`: what the slow path may hold and say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowPath {
    /// Frames that may wait between each worker and the slow path.
    pub ring: u32,
    /// Packets that may wait for one next hop's Ethernet address.
    pub queue_per_next_hop: u32,
    /// Packets that may wait for Ethernet addresses in all.
    pub queue: u32,
    /// How long they wait at most.
    pub wait: Duration,
    /// ICMP errors a second in all; `None` for what the kernel's settings say.
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

/// `[neighbors]`: how Ethernet addresses are asked for and kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbors {
    /// How often neighbours in use are confirmed again.
    pub refresh: Duration,
    /// New neighbours a second that the kernel is asked for at most.
    pub resolve_per_second: u32,
    /// Requests that may wait to be asked.
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
    /// How often it is compared with the kernel; zero for never.
    pub compare: Duration,
    /// Room for messages of the kernel that wait to be read, in bytes.
    pub receive_buffer: u32,
}

impl Default for Mirror {
    fn default() -> Self {
        Self { compare: Duration::from_secs(600), receive_buffer: 64 << 20 }
    }
}

/// `[lua]`: what hooks and apps share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lua {
    /// Folders in which modules are looked for before those in brickmoon; a relative name begins at the configuration
    /// file's folder.
    pub path: Vec<PathBuf>,
    /// Line of the file where they stand; 0 if it names none.
    pub line: usize,
}

/// On, off, or whatever works best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    /// On where it works.
    #[default]
    Auto,
    /// On; where it does not work, that is an error.
    On,
    /// Off.
    Off,
}

/// Which path packets take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathChoice {
    /// The best that the machine has.
    #[default]
    Auto,
    /// In user space.
    User,
    /// In the kernel, by XDP.
    Kernel,
}

/// What a worker does when nothing comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdleChoice {
    /// Sleeps until something comes.
    #[default]
    Sleep,
    /// Asks on and on.
    Busy,
}

impl Config {
    /// How sources are checked on a port.
    pub fn source_rule(&self, port: &Port) -> SourceRule {
        port.reverse_path.unwrap_or(self.filter.reverse_path)
    }

    /// Whether sources of some port may come by any feasible way.
    pub fn asks_for_feasible(&self) -> bool {
        self.ports.iter().any(|port| self.source_rule(port) == SourceRule::Feasible)
    }

    /// Whether filters drop anything that Linux would forward.
    pub fn filters_drop(&self) -> bool {
        let checks = |port: &Port| !matches!(self.source_rule(port), SourceRule::Kernel | SourceRule::Off);
        self.filter.drops() || self.ports.iter().any(checks)
    }

    /// Names of ports in rules that no port has.
    pub fn unknown_ports_of_rules(&self) -> Vec<&str> {
        let names = || self.ports.iter().filter_map(|port| port.device.interface());
        let rules = self.filter.rules.iter().chain(&self.claims);
        let asked = rules.filter_map(|rule| rule.port.as_deref());
        asked.filter(|asked| names().all(|name| name != *asked)).collect()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        match std::fs::read_to_string(file) {
            Ok(text) => Self::parse(file, &text),
            Err(error) => Err(ConfigError::unreadable(file, &error)),
        }
    }

    /// Reads a text; `file` is only for what is said of it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut config =
            read::config(text).map_err(|problems| ConfigError { file: file.into(), problems })?;
        let folder = file.parent().unwrap_or(Path::new(""));
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
