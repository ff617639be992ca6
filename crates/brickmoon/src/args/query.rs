//! Arguments of commands that ask the daemon.

use std::path::PathBuf;
use std::time::Duration;

use bm_serve::client::Server;
use clap::Args;

/// How to reach the daemon.
#[derive(Clone, Debug, Args)]
pub struct Socket {
    /// Control socket of the daemon.
    #[arg(long, value_name = "PATH", default_value = bm_api::request::SOCKET)]
    pub socket: PathBuf,
    /// Give up after this many seconds without an answer [default: 30; 300 for verify, reload and stop].
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: Option<u64>,
}

impl Socket {
    /// The daemon to ask.
    pub fn server(&self) -> Server {
        Server { socket: self.socket.clone(), timeout: self.timeout.map(Duration::from_secs) }
    }
}

/// Options of commands that only query the daemon.
#[derive(Clone, Debug, Args)]
pub struct Query {
    #[command(flatten)]
    pub socket: Socket,
    /// Ask another node of the cluster, over the fabric; only for commands that show something.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Print the reply as JSON.
    #[arg(long)]
    pub json: bool,
}
