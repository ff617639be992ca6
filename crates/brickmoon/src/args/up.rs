//! Arguments of `brickmoon up`.

use std::net::SocketAddr;
use std::path::PathBuf;

use bm_control::config::{IdleChoice, PathChoice};
use bm_daemon::{Options, PathOption};
use bm_fastpath::AttachChoice;
use clap::{Args, ValueEnum};

/// `brickmoon up`.
#[derive(Clone, Debug, Default, Args)]
pub struct Up {
    /// Configuration file [default: /etc/brickmoon/brickmoon.toml, unless --port is given]. Options on the command line
    /// override its settings.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A port: the name of an existing interface, xdp:IF, tap:NAME, pcap:IN[,OUT] or dpdk:DEVICE. May be repeated.
    #[arg(long = "port", value_name = "DEVICE")]
    pub ports: Vec<String>,
    /// Path of the packets: kernel, user or auto; PORT=kernel sets it for one port. May be repeated.
    #[arg(long = "path", value_name = "[PORT=]PATH")]
    pub paths: Vec<PathOf>,
    /// Where the kernel path attaches to ports without `attach` in their [[port]]: xdp, tc or auto.
    #[arg(long, value_name = "TYPE")]
    pub attach: Option<Attach>,
    /// Number of workers, each on one core [default: as many as each port has queues, at most one per core].
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// What workers do when no packets arrive [default: sleep].
    #[arg(long, value_enum, value_name = "HOW")]
    pub poll: Option<Poll>,
    /// Control socket to listen on [default: /run/brickmoon/api.sock].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Serve metrics for Prometheus at http://ADDR/metrics.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
    /// Serve a web page at http://ADDR/, such as 127.0.0.1:9480; other than loopback addresses need --web-token.
    #[arg(long, value_name = "ADDR")]
    pub web: Option<SocketAddr>,
    /// The web page asks for the token in this file.
    #[arg(long, value_name = "FILE")]
    pub web_token: Option<PathBuf>,
}

impl From<Up> for Options {
    fn from(up: Up) -> Self {
        Self {
            config: up.config,
            ports: up.ports,
            paths: up.paths.into_iter().map(PathOption::from).collect(),
            attach: up.attach.map(AttachChoice::from),
            workers: up.workers.map(|workers| workers as u32),
            idle: up.poll.map(IdleChoice::from),
            socket: up.socket,
            metrics: up.metrics,
            web: up.web,
            web_token: up.web_token,
        }
    }
}

/// The path that packets take, for one port or for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathOf {
    /// The port as written; `None` for all ports that have no path of their own.
    pub port: Option<String>,
    /// The path that was chosen.
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
        let path = path.map_err(|_| "expected kernel, user, auto or PORT=PATH".to_string())?;
        Ok(Self { port, path })
    }
}

impl From<PathOf> for PathOption {
    fn from(PathOf { port, path }: PathOf) -> Self {
        let path = match path {
            Path::Kernel => PathChoice::Kernel,
            Path::User => PathChoice::User,
            Path::Auto => PathChoice::Auto,
        };
        Self { port, path }
    }
}

/// What workers do when no packets arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Poll {
    /// Poll without pause: lowest latency, but each worker uses a whole core.
    Busy,
    /// Sleep until a packet arrives.
    Sleep,
}

impl From<Poll> for IdleChoice {
    fn from(poll: Poll) -> Self {
        match poll {
            Poll::Busy => Self::Busy,
            Poll::Sleep => Self::Sleep,
        }
    }
}

/// The path that packets take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Path {
    /// In the kernel, by XDP programs.
    Kernel,
    /// In user space, by workers over AF_XDP.
    User,
    /// In the kernel, unless something in the configuration needs workers; `brickmoon status` says what.
    Auto,
}

/// What the kernel path is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Attach {
    /// XDP, which gets frames before Linux does.
    Xdp,
    /// tc ingress, which keeps large packets whole and leaves checksums incomplete.
    Tc,
    /// XDP, or tc once it suits the traffic better; `brickmoon show ports` says which and why.
    Auto,
}

impl From<Attach> for AttachChoice {
    fn from(attach: Attach) -> Self {
        match attach {
            Attach::Xdp => Self::Xdp,
            Attach::Tc => Self::Tc,
            Attach::Auto => Self::Auto,
        }
    }
}
