//! `[daemon]`: the process, its workers and their memory.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bm_fastpath::AttachChoice;
use bm_graph::{Idle, RealTime, Schedule};

use super::forms::{
    Choice, File, Listen, distinct_numbers, number, power, seconds, word_or_file, word_or_name,
    word_or_number, word_or_power,
};

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

pub(super) const SWITCH: [(&str, Switch); 3] =
    [("auto", Switch::Auto), ("on", Switch::On), ("off", Switch::Off)];
pub(super) const PATHS: [(&str, PathChoice); 3] =
    [("auto", PathChoice::Auto), ("user", PathChoice::User), ("kernel", PathChoice::Kernel)];
pub(super) const ATTACH: [(&str, AttachChoice); 3] =
    [("auto", AttachChoice::Auto), ("xdp", AttachChoice::Xdp), ("tc", AttachChoice::Tc)];
const IDLE: [(&str, IdleChoice); 2] = [("sleep", IdleChoice::Sleep), ("busy", IdleChoice::Busy)];
pub(super) const ON_OFF: [(&str, bool); 2] = [("on", true), ("off", false)];
pub(super) const OFF_ON: [(&str, bool); 2] = [("off", false), ("on", true)];

settings! {
    /// The process and its workers.
    #[table("[daemon]")]
    pub struct Daemon {
        /// Unix socket on which the daemon answers commands.
        #[setting(socket = "/run/brickmoon/api.sock", File, Daemon)]
        pub socket: PathBuf,
        /// Members of this group, by name or number, may use `brickmoon status` and `brickmoon show`, but not change
        /// anything; "off" leaves the socket to root.
        #[setting(read_group = "off", word_or_name("adm"), Daemon)]
        pub read_group: Option<String>,
        /// Whether the daemon gives up privileges that it does not need after its start: capabilities and system calls
        /// (SECURITY.md lists them). "off" is for C libraries that Lua hooks and apps load and that need more.
        #[setting(sandbox = "on", Choice(&ON_OFF), Daemon)]
        pub sandbox: bool,
        /// Address and port for metrics by HTTP (Prometheus), such as "127.0.0.1:9473"; "off" for none.
        #[setting(metrics = "off", Listen, Daemon)]
        pub metrics: Option<SocketAddr>,
        /// Address and port of the web page, such as "127.0.0.1:9480"; "off" for none. An address that is not a loopback
        /// address needs `web_token`. docs/web.md has the details.
        #[setting(web = "off", Listen, Daemon)]
        pub web: Option<SocketAddr>,
        /// File with the token that the web page asks for, which only its owner may read; "off" for none. A relative path
        /// is looked for beside this file.
        #[setting(web_token = "off", word_or_file("web-token"), Daemon)]
        pub web_token: Option<PathBuf>,
        /// Number of workers, each a thread with its own queues; "auto" is one for each queue, at most one for each core.
        #[setting(workers = "auto", word_or_number(1..=1024), Workers)]
        pub workers: Option<u32>,
        /// Cores that workers are pinned to, in order; an empty list leaves the choice to the system.
        #[setting(cores = [], distinct_numbers(0..=4095), Workers)]
        pub cores: Vec<u32>,
        /// If a `[[port]]` has more `queues` than there are workers: whether the additional queues move from busy workers
        /// to idle ones while packets flow ("on"), or stay with the workers that they were assigned to ("off").
        #[setting(rebalance = "off", Choice(&OFF_ON), Live)]
        pub rebalance: bool,
        /// Path of packets: "user" (workers, by AF_XDP), "kernel" (XDP alone), or "auto": in the kernel, unless a feature
        /// in use needs workers. Hooks and apps without claims, `workers`, `cores` and `idle = "busy"` need them for all
        /// ports; a TAP, a capture file, DPDK, an interface that XDP cannot send through, or one in a VRF needs them for
        /// that port alone.
        #[setting(path = "auto", Choice(&PATHS), Workers)]
        pub path: PathChoice,
        /// What the kernel path is attached to: "xdp", which is fastest with small packets; "tc", which keeps large
        /// packets of veths, TAPs and virtual machines as they are (Linux 6.6 or newer); or "auto": what suits the device.
        #[setting(attach = "auto", Choice(&ATTACH), Workers)]
        pub attach: AttachChoice,
        /// How long the kernel path keeps forwarding with its last tables after a crash or `brickmoon stop --keep`, in
        /// seconds; then Linux forwards. 0 means forever.
        #[setting(kernel_grace_s = 60, seconds(0..=86_400), Daemon)]
        pub kernel_grace: Duration,
        /// What idle workers do: "sleep", or "busy" for the lowest latency at the cost of a whole core each.
        #[setting(idle = "sleep", Choice(&IDLE), Workers)]
        pub idle: IdleChoice,
        /// How long a worker keeps polling before it sleeps, in microseconds; "auto" is 0 for workers with real-time
        /// priority and 50 for others.
        #[setting(poll_us = "auto", word_or_number(0..=1_000_000), Workers)]
        pub poll_us: Option<u32>,
        /// Real-time priority of workers (SCHED_FIFO), so that other programs do not delay them; 0 for none. "auto" is 1
        /// if the system allows it (CAP_SYS_NICE). docs/workers.md describes the limits.
        #[setting(priority = "auto", word_or_number(0..=98), Workers)]
        pub priority: Option<u32>,
        /// Packets that can wait in each queue of an AF_XDP port until its worker comes for them; more than that are lost.
        /// At R packets a second a ring of N is full after N / R seconds: 16384 after 109 ms at 150,000. Each entry takes
        /// a slot of memory. "auto" is 16384; with more than four queues in all, 65536 divided among them, but at least
        /// 2048 each.
        #[setting(ring = "auto", word_or_power(64..=65_536), Workers)]
        pub ring: Option<u32>,
        /// Number of frames of each worker.
        #[setting(slots = 16_384, number(1024..=4 << 20), Daemon)]
        pub slots: u32,
        /// Bytes of memory for each frame, including 512 bytes of headroom: 2048, or 4096 for frames above 1536 bytes;
        /// without AF_XDP ports also 8192 or 16384.
        #[setting(slot_size = 2048, power(2048..=16_384), Daemon)]
        pub slot_size: u32,
        /// Huge pages for frames: "on" refuses to start without them, "auto" uses them if there are any, "off" never does.
        #[setting(huge_pages = "auto", Choice(&SWITCH), Daemon)]
        pub huge_pages: Switch,
    }
}

/// How long a worker with normal priority polls before it sleeps, in microseconds.
const POLL_US: u32 = 50;
/// Default real-time priority: the lowest one, above all normal threads and below everything set by an administrator.
const PRIORITY: u32 = 1;
/// Total ring size of all AF_XDP queues, and the minimum and maximum for each queue, in frames.
const RINGS: usize = 65_536;
const RING_MIN: u32 = 2048;
const RING_MAX: u32 = 16_384;

impl Daemon {
    /// Scheduling of workers, without their cores.
    pub fn schedule(&self) -> Schedule {
        let idle = match self.idle {
            IdleChoice::Busy => Idle::Busy,
            IdleChoice::Sleep => Idle::Sleep { after: self.polls_for(POLL_US) },
        };
        let priority = self.priority.unwrap_or(PRIORITY).min(99) as u8;
        let real_time = (priority > 0).then(|| RealTime { priority, after: self.polls_for(0) });
        Schedule { core: None, idle, real_time }
    }

    /// How long a worker polls before it sleeps.
    fn polls_for(&self, default_us: u32) -> Duration {
        Duration::from_micros(self.poll_us.unwrap_or(default_us).into())
    }

    /// Ring size of each AF_XDP queue in frames, for this number of queues.
    pub fn ring(&self, queues: usize) -> u32 {
        let share = (RINGS / queues.max(1)).max(1);
        // Rounded down to a power of two.
        let ring = 1 << share.ilog2();
        self.ring.unwrap_or((ring as u32).clamp(RING_MIN, RING_MAX))
    }
}
