//! The command line: the benches, the demo, the simulator and the planner, with their options.
//!
//! It reads the same words as `brickmoon`, which starts this program with its own command line.

use std::path::PathBuf;
use std::time::Duration;

use bm_testbed::addresses::Sizes;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// What `brickmoon bench`, `demo`, `simulate` and `plan` run.
#[derive(Debug, Parser)]
#[command(name = "brickmoon", bin_name = "brickmoon", version, about)]
#[command(propagate_version = true, disable_help_subcommand = true)]
pub struct Cli {
    /// Log more: once for what is done, twice for why, three times for everything.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a benchmark, alternating between what it compares; prints minimum, median and maximum.
    Bench(Bench),
    /// Run a demonstration in network namespaces: Linux and brickmoon side by side, with a full table (`make demo`).
    Demo(Demo),
    /// Show what four nodes of a cluster do.
    Cluster(ClusterArgs),
    /// Simulate a cluster of routers packet by packet: loads, reordering, losses. The same seed gives the same run.
    #[command(after_help = SIMULATE_EXAMPLES)]
    Simulate(Simulate),
    /// Plan a cluster from a list of servers and network cards: topology, links, loads, price.
    #[command(after_help = PLAN_EXAMPLES)]
    Plan(Plan),
}

const SIMULATE_EXAMPLES: &str = "\
Examples:
  brickmoon simulate                                   16 nodes, uniform traffic
  brickmoon simulate --nodes 64 --matrix all --quota R/N --quota 2R/N
                                                       compare both quotas with every matrix
  brickmoon simulate --fly 2,3 --matrix permutation    eight ports in a 2-ary 3-fly
  brickmoon simulate --seeds 100                       100 short runs of random clusters with faults
  brickmoon simulate --seeds 1 --seed 17               run number 17 of those once more";

const PLAN_EXAMPLES: &str = "\
Examples:
  brickmoon plan cluster.toml
  brickmoon plan cluster.toml --ports 2048 --svg cluster.svg

crates/simulate/examples/routebricks.toml shows the format.";

/// `brickmoon simulate`.
#[derive(Debug, Args)]
pub struct Simulate {
    /// Number of nodes in a full mesh.
    #[arg(long, value_name = "N", default_value_t = 16, conflicts_with = "fly")]
    pub nodes: u16,
    /// A k-ary n-fly instead of a mesh: k^n nodes with ports.
    #[arg(long, value_name = "K,N", value_parser = fly)]
    pub fly: Option<(u32, u32)>,
    /// R, what each node receives by its external ports, in Mbit/s.
    #[arg(long, value_name = "MBPS", default_value_t = 1000)]
    pub rate: u64,
    /// Rate of a link between nodes, in percent of R/N (mesh) or of R (n-fly).
    #[arg(long, value_name = "PERCENT", default_value_t = 400)]
    pub link: u64,
    /// Offered load, in percent of R.
    #[arg(long, value_name = "PERCENT", default_value_t = 95)]
    pub load: u64,
    /// uniform, hot, permutation, adversarial or all. May be repeated [default: uniform].
    #[arg(long, value_name = "MATRIX")]
    pub matrix: Vec<String>,
    /// R/N, 2R/N, classic or direct-only. May be repeated [default: 2R/N].
    #[arg(long, value_name = "QUOTA")]
    pub quota: Vec<bm_vlb::Mode>,
    /// Gap between flowlets in microseconds; 0 chooses for each packet [default: from measured delays].
    #[arg(long, value_name = "US")]
    pub delta: Option<u64>,
    /// Bytes that a path may carry at once beyond its share: more keeps flows together, less keeps loads even.
    #[arg(long, value_name = "BYTES", default_value_t = 6_000, value_parser = clap::value_parser!(u64).range(1_600..=100_000_000))]
    pub burst: u64,
    /// Simulated time in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 100)]
    pub time: u64,
    /// Simulate failing nodes and links, lost messages and an unreachable store.
    #[arg(long)]
    pub faults: bool,
    /// Seed of the run.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Simulate this many random small clusters instead, starting with --seed, and stop at the first failure.
    #[arg(long, value_name = "N", conflicts_with_all = ["nodes", "fly", "rate", "link", "load", "matrix", "quota", "delta", "burst", "time", "faults"])]
    pub seeds: Option<u64>,
    /// Print one JSON object per line.
    #[arg(long)]
    pub json: bool,
}

/// `brickmoon plan`.
#[derive(Debug, Args)]
pub struct Plan {
    /// Requirements, and the servers, network cards and switches that are available.
    #[arg(value_name = "FILE.toml")]
    pub file: PathBuf,
    /// Number of external ports, instead of the one in the file.
    #[arg(long, value_name = "N")]
    pub ports: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Write a chart of the prices to this file.
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
}

/// Parses `K,N`.
fn fly(text: &str) -> Result<(u32, u32), String> {
    let numbers =
        text.split_once(',').and_then(|(k, n)| Some((k.trim().parse().ok()?, n.trim().parse().ok()?)));
    numbers.ok_or_else(|| "expected K,N, such as 2,3 for a 2-ary 3-fly".into())
}

/// `brickmoon bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// What to measure.
    #[arg(value_enum)]
    pub what: BenchCommand,
    /// All but lua, ipsec, cluster and loss: routing table as an MRT dump or as lines of PREFIX/LENGTH [NEXT_HOP], plain or
    /// compressed. May be repeated. Without it a table is generated.
    #[arg(long, value_name = "FILE")]
    pub rib: Vec<PathBuf>,
    /// Time limit of the whole run, in seconds; 0 for the benchmark's own.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seconds: u64,
    /// Run only cases whose name contains this, such as ipv4-full.
    #[arg(long, value_name = "CASE")]
    pub case: Option<String>,
    /// forward, ports: frame sizes in bytes with the FCS, 64 to 1518, or imix (7 of 64, 4 of 594, 1 of 1518),
    /// separated by commas, or all [default: 64].
    #[arg(long, value_name = "BYTES|imix|all", value_delimiter = ',', value_parser = sizes)]
    pub sizes: Vec<Vec<Sizes>>,
    /// lookup: measure only this structure, also in its scalar version. An unknown name lists the valid ones.
    #[arg(long, value_name = "all|NAME")]
    pub structure: Option<String>,
    /// lookup: also measure DPDK's structures, if DPDK is installed (apt-get install libdpdk-dev).
    #[arg(long)]
    pub peers: bool,
    /// lua: run for this long (90s, 20m, 2h) and report each minute whether the speed holds; best with one --case,
    /// which then gets the whole time.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub soak: Option<Duration>,
    /// cluster: also run `brickmoon cluster demo`, and show what its nodes count; needs root.
    #[arg(long)]
    pub demo: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    pub json: bool,
    /// Write a chart of the results to this file.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchCommand {
    /// Longest-prefix match: lookups, updates, build time and memory of every structure, on one core with full tables.
    Lookup,
    /// The whole router in memory, on one core with full tables.
    Forward,
    /// The whole router in memory, with different batch sizes.
    Batch,
    /// The whole router in memory on one core, on two and so on up to all, and as a pipeline over two cores.
    Workers,
    /// DPDK ports on virtual devices, with and without the router, compared with DPDK's testpmd; needs a build with DPDK.
    Ports,
    /// Networks of Lua apps, compared with the same apps in Rust.
    Lua,
    /// The kernel path, compared with Linux, bpf_fib_lookup and a fixed next hop, and the switch, compared with Linux's
    /// bridge (--case switch), in network namespaces; --case flows measures connections through a firewall with NAT; needs
    /// root and two cores.
    Kernel,
    /// ESP: encryption and decryption with each suite, compared with the ciphers alone, on one core.
    Ipsec,
    /// A simulated cluster of 64 and of 1,024 nodes, compared with RouteBricks' figures: loads, order, delays. A minute or
    /// two on one core; the same figures on any machine.
    Cluster,
    /// Packet loss of Linux, the user path and the kernel path with bursts, steady rates and overload while a process
    /// keeps each core busy, in network namespaces; needs root and two cores.
    Loss,
}

/// `brickmoon demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Routing table file, as for bench. May be repeated.
    #[arg(long, value_name = "FILE")]
    pub rib: Vec<PathBuf>,
    /// Number of generated IPv4 routes; IPv6 gets a fifth of that.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub routes: usize,
    /// Duration of each measurement, in seconds.
    #[arg(long, value_name = "S", default_value_t = 4.0)]
    pub seconds: f64,
    /// Print one JSON object per line.
    #[arg(long)]
    pub json: bool,
}

/// `brickmoon cluster`, as far as this program runs it.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// What to do.
    #[command(subcommand)]
    pub what: ClusterCommand,
}

/// What to do with a cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Run four nodes in network namespaces, or eight in an n-fly: loads under several traffic matrices, then losses while a
    /// daemon is killed, a link is cut, a node is switched off and a neighbor moves.
    Demo(ClusterDemo),
}

/// `brickmoon cluster demo`.
#[derive(Debug, Args)]
pub struct ClusterDemo {
    /// How the nodes are connected.
    #[arg(long, value_enum, default_value_t)]
    pub topology: DemoTopology,
    /// R: packets/s that each external port receives [default: 10000; 2000 in the n-fly].
    #[arg(long, value_name = "PPS", value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    pub rate: Option<u32>,
    /// How long each matrix is offered, in seconds.
    #[arg(long, value_name = "S", default_value_t = 4.0)]
    pub seconds: f64,
    /// Print one JSON object per line.
    #[arg(long)]
    pub json: bool,
}

/// How the nodes of the demo are connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DemoTopology {
    /// Four nodes, each with a link to each other one.
    #[default]
    Mesh,
    /// Eight nodes in a 2-ary 3-fly, with twelve relays between them.
    Fly,
}

/// Parses one frame size, or `all`.
fn sizes(text: &str) -> Result<Vec<Sizes>, String> {
    if text == "all" { Ok(Sizes::ALL.to_vec()) } else { Ok(vec![text.parse()?]) }
}

/// Parses a duration with its unit: `90s`, `20m`, `2h`.
fn duration(text: &str) -> Result<Duration, String> {
    let units = [('s', 1), ('m', 60), ('h', 3600)];
    let seconds = units.into_iter().find_map(|(letter, seconds): (char, u64)| {
        let number: u64 = text.strip_suffix(letter)?.parse().ok()?;
        number.checked_mul(seconds).filter(|&seconds| (1..=1_000_000).contains(&seconds))
    });
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| "expected a number and a unit, such as 90s, 20m or 2h".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_k_and_n_of_an_n_fly() {
        assert_eq!(fly("2,3"), Ok((2, 3)));
        assert!(["", "2", "2,", "a,b", "2,3,4"].iter().all(|text| fly(text).is_err()));
    }

    #[test]
    fn parses_times_and_sizes() {
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
