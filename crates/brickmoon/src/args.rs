//! The command line: every command, its options, and help that teaches.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bm_eval::addresses::Sizes;
use clap::{Args, Parser, Subcommand, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  brickmoon up --port eth0 --port eth1     forward between eth0 and eth1 with the routes that Linux has
  brickmoon show drops                     what was dropped, why, and where
  brickmoon show routes 192.0.2.1          what the fast path does with packets to this address
  brickmoon verify                         compare every table with the kernel's

Linux stays in charge: `ip`, FRR, BIRD and strongSwan work as before. Whatever brickmoon does not
understand goes to Linux, and if it ends, for whatever reason, Linux goes on forwarding.
Exit status: 0 done, 1 failed, 2 bad usage or configuration.";

/// A software router for Linux that you can program.
#[derive(Debug, Parser)]
#[command(version, about, after_help = EXAMPLES, propagate_version = true, disable_help_subcommand = true)]
pub struct Cli {
    /// Say more: once for what is done, twice for why, three times for everything.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Forward between ports, in the foreground; says when it is ready.
    Up(Up),
    /// End the daemon: Linux forwards from then on.
    Stop(Stop),
    /// Have the daemon read its configuration again.
    Reload(Query),
    /// Check a configuration file; prints nothing if it is right, and a warning for an interface that is not there.
    Check {
        /// The file.
        #[arg(default_value = bm_control::config::FILE)]
        file: PathBuf,
    },
    /// Compare the daemon's tables with the kernel's, and print each difference.
    Verify(Query),
    /// How the daemon is: routes, memory, the mirror.
    Status(Query),
    /// Show what the daemon has and does.
    Show(Show),
    /// Run a program in Lua, in the Snabb manner: apps, links, engine.
    Run(Run),
    /// Run a program written for Snabb, or a module's test.
    Snabb(Snabb),
    /// Measure: rivals alternate in one run; min, median, max.
    Bench(Bench),
    /// See it work: namespaces, a full table, Linux and brickmoon side by side (`make demo`).
    Demo(Demo),
    /// Watch over the kernel path's tables when the daemon has ended; started by `up`, not by hand.
    #[command(hide = true)]
    WatchTables {
        /// How long they hold, in milliseconds; 0 for ever.
        #[arg(long)]
        grace_ms: u64,
        /// Give up privileges that this process does not need, as the daemon has.
        #[arg(long)]
        confined: bool,
    },
}

/// Where the daemon answers.
#[derive(Clone, Debug, Args)]
pub struct Socket {
    /// The daemon's socket.
    #[arg(long, value_name = "PATH", default_value = bm_api::request::SOCKET)]
    pub socket: PathBuf,
    /// Give up when there is no answer within so many seconds [default: 30; 300 for verify, reload and stop].
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: Option<u64>,
}

/// `brickmoon stop`.
#[derive(Clone, Debug, Args)]
pub struct Stop {
    #[command(flatten)]
    pub socket: Socket,
    /// Leave the kernel path at work: it forwards by its last tables until a daemon takes over or its grace
    /// (`kernel_grace_s`, a minute by default) is over. `brickmoon stop` again takes it off.
    #[arg(long)]
    pub keep: bool,
}

/// A question to the daemon.
#[derive(Clone, Debug, Args)]
pub struct Query {
    #[command(flatten)]
    pub socket: Socket,
    /// Print the reply as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `brickmoon up`.
#[derive(Clone, Debug, Args)]
pub struct Up {
    /// Configuration file [default: /etc/brickmoon/brickmoon.toml, unless --port is given]. Options on the command line
    /// override its settings.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A port: the name of an interface that is there, xdp:IF, tap:NAME, pcap:IN[,OUT] or dpdk:DEVICE. May be given many times.
    #[arg(long = "port", value_name = "DEVICE")]
    pub ports: Vec<String>,
    /// Which path packets take: kernel, user or auto; PORT=kernel for those of one port. May be given many times.
    #[arg(long = "path", value_name = "[PORT=]PATH")]
    pub paths: Vec<PathOf>,
    /// Workers: one a core; by default as many as the ports have queues, at most the cores.
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// What workers do when nothing comes [default: sleep].
    #[arg(long, value_enum, value_name = "HOW")]
    pub poll: Option<Poll>,
    /// Where to answer [default: /run/brickmoon/api.sock].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Serve metrics for Prometheus at http://ADDR/metrics.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
}

/// What every Lua program may need.
#[derive(Debug, Args)]
pub struct Lua {
    /// Where modules are looked for before those in brickmoon; the root of a Snabb checkout stands for all its
    /// Lua trees. May be given many times.
    #[arg(long = "path", value_name = "DIR")]
    pub trees: Vec<PathBuf>,
    /// Unix socket on which `brickmoon show` is answered; by default run-PID.sock beside the daemon's.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Longest packet. Up to 1536 (or 3584) AF_XDP ports receive without a copy where the driver can.
    #[arg(long, value_name = "BYTES", default_value_t = 10_240, value_parser = clap::value_parser!(u16).range(64..=10_240))]
    pub packet_bytes: u16,
    /// Run the program's network on N workers, each on a core and with its own queue of every port, unless the program
    /// names a number itself.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub workers: u16,
    /// Processor time that an app may take to be made or changed before it is broken off; 0 for any.
    #[arg(long, value_name = "S", default_value_t = 10)]
    pub setup_seconds: u64,
}

/// `brickmoon run`.
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    pub lua: Lua,
    /// The program.
    #[arg(value_name = "PROGRAM.lua")]
    pub program: PathBuf,
    /// Its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<String>,
}

/// `brickmoon snabb`.
#[derive(Debug, Args)]
pub struct Snabb {
    #[command(flatten)]
    pub lua: Lua,
    /// Run the selftest of this module, such as apps.basic.basic_apps. Exit status 43 says that it was skipped.
    #[arg(short = 't', long = "test", value_name = "MODULE")]
    pub test: Option<String>,
    /// The program, program.NAME.NAME of the trees, and its arguments.
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, allow_hyphen_values = true)]
    pub program: Vec<String>,
}

/// The path of packets, of one port or of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathOf {
    /// The port, as it was named; none for all that nothing else is said of.
    pub port: Option<String>,
    /// The path.
    pub path: Path,
}

impl std::str::FromStr for PathOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, path) = match text.rsplit_once('=') {
            Some((port, path)) => (Some(port.into()), path),
            None => (None, text),
        };
        let path = Path::from_str(path, false);
        let path =
            path.map_err(|_| "it is one of kernel, user, auto, or PORT= and one of them".to_string())?;
        Ok(Self { port, path })
    }
}

/// What workers do when nothing comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Poll {
    /// Ask on and on: the least latency, a whole core each.
    Busy,
    /// Sleep until something comes.
    Sleep,
}

/// Which path packets take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Path {
    /// In the kernel, by XDP alone.
    Kernel,
    /// In user space, by AF_XDP.
    User,
    /// In the kernel, unless something in use needs workers; `brickmoon status` says what.
    Auto,
}

/// `brickmoon show`.
#[derive(Debug, Args)]
pub struct Show {
    /// What to show.
    #[command(subcommand)]
    pub what: What,
}

/// What to show.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Where frames enter and leave.
    Ports(Query),
    /// What the fast path does with each prefix.
    Routes(Routes),
    /// The kernel's neighbors on our ports.
    Neighbors(Query),
    /// What is done once a route is found.
    Nexthops(Query),
    /// The apps and their accounts.
    Apps(Query),
    /// The links between apps.
    Links(Query),
    /// The workers.
    Workers(Query),
    /// What was dropped, why, and where.
    Drops(Query),
    /// The switches and their ports.
    Switch(Query),
    /// The stations that switches know, and where they are.
    Macs(Query),
    /// Lua on the router's stages: what it cost, counted, dropped, and its last error.
    Hooks(Query),
    /// What filter rules have matched.
    Filters(Query),
}

/// `brickmoon show routes`.
#[derive(Debug, Args)]
pub struct Routes {
    /// An address: the route that packets to it take. A prefix: it and those within it.
    #[arg(value_name = "ADDRESS|PREFIX")]
    pub of: Option<String>,
    /// Routes of this VRF.
    #[arg(long, value_name = "NAME")]
    pub vrf: Option<String>,
    /// Only IPv4 (4) or IPv6 (6).
    #[arg(long, value_parser = clap::value_parser!(u8).range(4..=6))]
    pub family: Option<u8>,
    /// Go on behind this prefix.
    #[arg(long, value_name = "PREFIX")]
    pub after: Option<String>,
    /// At most so many.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub limit: usize,
    #[command(flatten)]
    pub query: Query,
}

/// `brickmoon bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// What to measure.
    #[arg(value_enum)]
    pub what: BenchWhat,
    /// Not for lua and loss: routing table, an MRT dump or PREFIX/LENGTH [NEXT_HOP] lines, plain or compressed.
    /// May be given many times; without it a table from the seeded generator.
    #[arg(long, value_name = "FILE")]
    pub rib: Vec<PathBuf>,
    /// Bound on the whole, in seconds; 0 leaves the bench its own time.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seconds: u64,
    /// Only cases whose name contains this, such as ipv4-full.
    #[arg(long, value_name = "CASE")]
    pub case: Option<String>,
    /// forward, ports: bytes of frames with their check sequence, 64 to 1518, or imix (7 of 64, 4 of 594, 1 of 1518);
    /// one or several with commas between, or all [default: 64].
    #[arg(long, value_name = "BYTES|imix|all", value_delimiter = ',', value_parser = sizes)]
    pub sizes: Vec<Vec<Sizes>>,
    /// lookup: only this structure, also in its scalar form. A wrong name lists the right ones.
    #[arg(long, value_name = "all|NAME")]
    pub structure: Option<String>,
    /// batch: only this strategy, masks or rebatch.
    #[arg(long, value_name = "NAME")]
    pub strategy: Option<String>,
    /// lookup: beside ours the structures of DPDK, if it is installed (apt-get install libdpdk-dev).
    #[arg(long)]
    pub peers: bool,
    /// lua: run for so long (90s, 20m, 2h), and say minute by minute whether it stays as fast as it was; best with one
    /// --case, which then has the whole time.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub soak: Option<Duration>,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// Draw the figures.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchWhat {
    /// Longest-prefix match: every structure, its lookups, updates, build and memory, one core, full tables.
    Lookup,
    /// The whole router in memory, one core, full tables.
    Forward,
    /// The same by how many frames are received and sent at a time, with masks and with new batches.
    Batch,
    /// The whole router in memory on one core, two, and so on to all, and cut into a pipeline over two.
    Workers,
    /// DPDK ports on virtual devices, with and without the router, beside DPDK's own testpmd; in a build with DPDK.
    Ports,
    /// Networks of Lua apps beside the same apps in Rust.
    Lua,
    /// The kernel path beside Linux, bpf_fib_lookup and a fixed next hop, and the switch beside Linux's bridge
    /// (--case switch), between namespaces of its own; needs root and two cores.
    Kernel,
    /// What Linux, the user path and the kernel path lose of bursts, of steady rates and of more than they can carry,
    /// with a busy process on each core, between namespaces of its own; needs root and two cores.
    Loss,
}

/// `brickmoon demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Routing table, as for bench.
    #[arg(long, value_name = "FILE")]
    pub rib: Vec<PathBuf>,
    /// IPv4 routes from the generator; IPv6 gets a fifth of that.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub routes: usize,
    /// How long each measurement takes, in seconds.
    #[arg(long, value_name = "S", default_value_t = 4.0)]
    pub seconds: f64,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// One size of frames, or all.
fn sizes(text: &str) -> Result<Vec<Sizes>, String> {
    if text == "all" { Ok(Sizes::ALL.to_vec()) } else { Ok(vec![text.parse()?]) }
}

/// A time with its unit: `90s`, `20m`, `2h`.
fn duration(text: &str) -> Result<Duration, String> {
    let units = [('s', 1), ('m', 60), ('h', 3600)];
    let of_unit = |(letter, seconds): (char, u64)| {
        let number: u64 = text.strip_suffix(letter)?.parse().ok()?;
        number.checked_mul(seconds).filter(|&seconds| (1..=1_000_000).contains(&seconds))
    };
    let seconds = units.into_iter().find_map(of_unit);
    seconds.map(Duration::from_secs).ok_or_else(|| "give a number and a unit, such as 90s, 20m or 2h".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_times_and_sizes() {
        let seconds = |text| duration(text).map(|time| time.as_secs());
        assert_eq!((sizes("imix"), sizes("all").map(|all| all.len())), (Ok(vec![Sizes::Imix]), Ok(7)));
        assert!(sizes("65536").is_err());
        assert_eq!(["1s", "20m", "2h"].map(|text| seconds(text).unwrap()), [1, 1200, 7200]);
        assert!(
            ["", "20", "m", "0s", "-1s", "1.5h", "5x", "99999999999999999999h", "300h"]
                .iter()
                .all(|text| seconds(text).is_err())
        );
    }
}
