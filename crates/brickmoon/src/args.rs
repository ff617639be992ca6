//! The command line: all commands, their options and their help texts.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use bm_daemon::Options;
use clap::{Args, Parser, Subcommand};

mod capture;
mod clear;
mod cluster;
mod explain;
mod up;

use crate::query::{Query, Socket, Watch};
use crate::show::Show;
use capture::{CAPTURE_EXAMPLES, TRACE_EXAMPLES};
pub use capture::{Capture, Direction, Trace};
pub use clear::{Clear, ClearCommand, ClearCounters};
pub use cluster::{ClusterArgs, ClusterCommand, RelayCommand, RemoveMember};
use explain::EXPLAIN_EXAMPLES;
pub use explain::Explain;
pub use up::Up;

const EXAMPLES: &str = "\
Examples:
  brickmoon up --port eth0 --port eth1     forward between eth0 and eth1 by Linux's routes
  brickmoon show ports --watch             packets, bytes and rates of every port, every second
  brickmoon show drops                     what was dropped, why, and where
  brickmoon show routes 192.0.2.1          what the fast path does with packets to this address
  brickmoon explain 192.0.2.1              what becomes of a packet to this address, step by step
  brickmoon top                            ports, workers and drops with rates, full screen
  brickmoon verify                         compare every table with the kernel's

Linux stays in charge: `ip`, FRR, BIRD and strongSwan work as before. Packets that brickmoon cannot
handle go to Linux, and if brickmoon ends, for whatever reason, Linux keeps forwarding.
Commands may be abbreviated as long as they are unambiguous: `brickmoon sh po` is `brickmoon show ports`.
Exit status: 0 success, 1 failure, 2 bad usage or configuration.";

/// A programmable software router for Linux.
#[derive(Debug, Parser)]
#[command(version, about, after_help = EXAMPLES, propagate_version = true, disable_help_subcommand = true)]
#[command(infer_subcommands = true)]
pub struct Cli {
    /// Log more: once for what is done, twice for why, three times for everything.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// All commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Forward between ports, in the foreground; prints a line when it is ready.
    Up(Up),
    /// Stop the daemon; Linux forwards from then on.
    Stop(Stop),
    /// Make the daemon read its configuration file again.
    Reload(Query),
    /// Check a configuration file: prints errors, and a warning for each interface that does not exist.
    Check {
        /// The configuration file.
        #[arg(default_value = bm_control::config::FILE)]
        file: PathBuf,
    },
    /// Check this machine for what keeps packets off the fast path, and print the command that changes it.
    Doctor(Doctor),
    /// Compare the daemon's tables with the kernel's, and print each difference.
    Verify(Query),
    /// Show the state of the daemon: routes, memory, synchronization with the kernel.
    Status(Status),
    /// Show the daemon's ports, routes, workers, drops and more.
    Show(Show),
    /// Make `show ports` and `show drops` count from zero again, or forget all flows.
    Clear(Clear),
    /// Explain what becomes of a packet: rules, route, next hop, result. Nothing is sent, counted or changed.
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(Explain),
    /// Show ports, workers, drops and more with rates, full screen.
    Top(Top),
    /// Show packets at a port, and what happened to each: a line per packet on a terminal, otherwise a capture file
    /// (pcapng).
    #[command(after_help = CAPTURE_EXAMPLES)]
    Capture(Capture),
    /// Follow packets through the router, with the time of each step.
    #[command(after_help = TRACE_EXAMPLES)]
    Trace(Trace),
    /// Show the cluster that this node belongs to.
    Cluster(ClusterArgs),
    /// Run a program with its XFRM netlink sockets connected to the daemon: `brickmoon xfrm ip xfrm state`.
    Xfrm(Xfrm),
    /// Run a Lua program made of apps and links, as in Snabb.
    Run(Run),
    /// Run a program written for Snabb, or the selftest of a module.
    Snabb(Snabb),
    /// Run a benchmark, alternating between what it compares; prints minimum, median and maximum.
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Bench(PassedOn),
    /// Run a demonstration in network namespaces: Linux and brickmoon side by side, with a full table (`make demo`).
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Demo(PassedOn),
    /// Simulate a cluster of routers packet by packet: loads, reordering, losses. The same seed gives the same run.
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Simulate(PassedOn),
    /// Plan a cluster from a list of servers and network cards: topology, links, loads, price.
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Plan(PassedOn),
    /// Print completions for a shell: bash, zsh, fish, elvish or powershell.
    Completion { shell: clap_complete::Shell },
    /// Write a man page for each command into a folder.
    Man { folder: PathBuf },
    /// Watch the kernel path's tables after the daemon has ended; started by `up`, not by hand.
    #[command(hide = true)]
    WatchTables {
        /// How long the tables stay in use, in milliseconds; 0 for no limit.
        #[arg(long)]
        grace_ms: u64,
        /// Drop the privileges that this process does not need, as the daemon did.
        #[arg(long)]
        confined: bool,
    },
}

/// `brickmoon stop`.
#[derive(Clone, Debug, Args)]
pub struct Stop {
    #[command(flatten)]
    pub socket: Socket,
    /// Leave the kernel path running: it forwards with its last tables until another daemon takes over or its grace
    /// time (`kernel_grace_s`, one minute by default) ends. A second `brickmoon stop` removes it.
    #[arg(long)]
    pub keep: bool,
}

/// `brickmoon top`.
#[derive(Debug, Args)]
pub struct Top {
    #[command(flatten)]
    pub query: Query,
    /// Seconds from one update to the next, such as 0.5.
    #[arg(long, value_name = "S", default_value = "1", value_parser = interval)]
    pub interval: Duration,
    /// View to begin with: overview, ports, workers, drops, flows, apps, hooks, switches, ipsec or cluster.
    #[arg(long, value_name = "VIEW", default_value = "overview")]
    pub view: bm_tui::View,
    /// Print one view as text, with the rates of one interval, and exit. --json does the same as JSON.
    #[arg(long)]
    pub once: bool,
}

/// Seconds with or without a fraction, from a tenth to an hour.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds from 0.1 to 3600".into())
}

/// `brickmoon xfrm`.
#[derive(Clone, Debug, Args)]
pub struct Xfrm {
    /// XFRM socket of the daemon (`xfrm_socket` in `[ipsec]`).
    #[arg(long, value_name = "PATH", default_value = "/run/brickmoon/xfrm.sock")]
    pub xfrm_socket: PathBuf,
    /// The library that connects the program [default: beside brickmoon, or /usr/lib/brickmoon/libbrickmoon-xfrm.so].
    #[arg(long, value_name = "FILE")]
    pub preload: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// `brickmoon doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Configuration file [default: /etc/brickmoon/brickmoon.toml, unless --port is given].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A port, as for `brickmoon up`. May be repeated.
    #[arg(long = "port", value_name = "DEVICE")]
    pub ports: Vec<String>,
    /// Print what was found as JSON.
    #[arg(long)]
    pub json: bool,
}

impl Doctor {
    /// The options of `brickmoon up` for the same configuration.
    pub fn options(&self) -> Options {
        Options { config: self.config.clone(), ports: self.ports.clone(), ..Options::default() }
    }
}

/// Options of all Lua programs.
#[derive(Debug, Args)]
pub struct Lua {
    /// Directory that is searched for modules before brickmoon's own; the root of a Snabb checkout stands for all
    /// its Lua trees. May be repeated.
    #[arg(long = "path", value_name = "DIR")]
    pub trees: Vec<PathBuf>,
    /// Control socket for `brickmoon show` [default: run-PID.sock beside the daemon's].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Size of the largest packet. Up to 1536 (or 3584), AF_XDP ports receive without a copy if the driver can.
    #[arg(long, value_name = "BYTES", default_value_t = 10_240, value_parser = clap::value_parser!(u16).range(64..=10_240))]
    pub packet_bytes: u16,
    /// Run the program's network on N workers, each on its own core and with its own queue of every port, unless the
    /// program sets a number itself.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub workers: u16,
    /// Processor time, in seconds, after which creating or changing an app is aborted; 0 for no limit.
    #[arg(long, value_name = "S", default_value_t = 10)]
    pub setup_seconds: u64,
}

/// `brickmoon run`.
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    pub lua: Lua,
    /// The Lua file.
    #[arg(value_name = "PROGRAM.lua")]
    pub program: PathBuf,
    /// Arguments of the program.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<String>,
}

/// `brickmoon snabb`.
#[derive(Debug, Args)]
pub struct Snabb {
    #[command(flatten)]
    pub lua: Lua,
    /// Run the selftest of this module, such as apps.basic.basic_apps. Exit status 43 means that it was skipped.
    #[arg(short = 't', long = "test", value_name = "MODULE")]
    pub test: Option<String>,
    /// Name of the program (NAME for the module program.NAME.NAME) and its arguments.
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, allow_hyphen_values = true)]
    pub program: Vec<String>,
}

/// `brickmoon status`.
#[derive(Clone, Debug, Args)]
pub struct Status {
    #[command(flatten)]
    pub query: Query,
    #[command(flatten)]
    pub watch: Watch,
}

/// Options of `brickmoon bench`, `demo`, `simulate` and `plan`, `--help` included: `brickmoon-bench` reads them.
#[derive(Debug, Args)]
pub struct PassedOn {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::{Drops, Ports, ShowCommand};

    fn parse(line: &str) -> Result<Command, clap::Error> {
        let words = std::iter::once("brickmoon").chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.command)
    }

    #[test]
    fn unambiguous_abbreviations_are_accepted() {
        let shown = |line: &str| match parse(line) {
            Ok(Command::Show(Show { what, .. })) => what,
            other => panic!("{line}: {other:?}"),
        };
        assert!(matches!(shown("sh po"), ShowCommand::Ports(_)));
        assert!(matches!(shown("sho interfaces r0"), ShowCommand::Ports(Ports { port: Some(_), .. })));
        assert!(matches!(shown("show pol"), ShowCommand::Policies));
        assert!(matches!(shown("show d --explain"), ShowCommand::Drops(Drops { explain: true, .. })));
        assert!(matches!(parse("ver"), Ok(Command::Verify(_))));
        for ambiguous in ["s", "st", "show s", "d", "show f"] {
            assert!(parse(ambiguous).is_err(), "{ambiguous}");
        }
    }

    #[test]
    fn a_mistyped_command_is_corrected() {
        for (wrong, right) in [("shwo ports", "show"), ("show prots", "ports"), ("statsu", "status")] {
            let text = parse(wrong).unwrap_err().to_string();
            assert!(text.contains(&format!("'{right}'")), "{wrong}: {text}");
        }
    }

    #[test]
    fn options_of_show_may_be_before_and_behind_what_is_shown() {
        for line in
            ["show --json --timeout 7 sas", "show sas --json --timeout 7", "show --json sas --timeout 7"]
        {
            let Ok(Command::Show(Show { query, .. })) = parse(line) else { panic!("{line}") };
            assert!(query.json, "{line}");
            assert_eq!(query.socket.timeout, Some(7), "{line}");
            assert_eq!(query.socket.socket, PathBuf::from(bm_api::request::SOCKET), "{line}");
        }
    }

    #[test]
    fn watch_has_a_default() {
        let seconds = |line: &str| match parse(line).unwrap() {
            Command::Show(Show { watch, .. }) => watch.watch,
            Command::Status(Status { watch, .. }) => watch.watch,
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(seconds("show ports"), None);
        assert_eq!(seconds("show ports r0 --watch"), Some(1));
        assert_eq!(seconds("show --watch 3 drops"), Some(3));
        assert_eq!(seconds("status --watch=5 --json"), Some(5));
        assert!(parse("status --watch 0").is_err());
    }
}
