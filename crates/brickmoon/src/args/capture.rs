//! Arguments of `brickmoon capture` and `trace`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::query::Socket;

pub(super) const CAPTURE_EXAMPLES: &str = "\
Examples:
  brickmoon capture eth0                                a line for each packet
  brickmoon capture any udp port 53 -c 10               ten DNS packets, at any port
  brickmoon capture eth0 'host 192.0.2.1' -w file.pcapng
  brickmoon capture eth0 -w - | wireshark -k -i -";

pub(super) const TRACE_EXAMPLES: &str = "\
Examples:
  brickmoon trace host 192.0.2.1 -n 3                   three packets, step by step
  brickmoon trace icmp --json";

/// Which packets of a port are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Direction {
    /// Those that it receives.
    In,
    /// Those that it sends.
    Out,
    /// Both.
    Inout,
}

/// `brickmoon capture`.
#[derive(Clone, Debug, Args)]
pub struct Capture {
    /// Where: the name of a port, or `any` for all of them.
    #[arg(value_name = "POINT")]
    pub point: Option<String>,
    /// Which packets, in tcpdump's language [default: all].
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
    /// Write a capture file (pcapng); `-` is standard output.
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// End after this many packets.
    #[arg(short = 'c', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Packets that ports receive, packets that they send, or both.
    #[arg(short = 'Q', long, value_enum, value_name = "DIRECTION", default_value = "inout")]
    pub direction: Direction,
    /// Capture at most this many bytes of each packet.
    #[arg(short = 's', long, value_name = "BYTES", default_value_t = 65_000, value_parser = clap::value_parser!(u32).range(14..=65_000))]
    pub snaplen: u32,
    /// Show only one in N of the packets that match.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub sample: u32,
    /// Print a line for each packet, also if standard output is not a terminal.
    #[arg(long, conflicts_with_all = ["write", "json"])]
    pub lines: bool,
    /// Print a JSON object for each packet.
    #[arg(long, conflicts_with = "write")]
    pub json: bool,
    #[command(flatten)]
    pub socket: Socket,
}

/// `brickmoon trace`.
#[derive(Clone, Debug, Args)]
pub struct Trace {
    /// Which packets, in tcpdump's language [default: all].
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
    /// End after this many packets.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Print a JSON object for each packet.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub socket: Socket,
}
