//! Commands that ask the daemon: their options, and how they print the reply.

use std::io::{IsTerminal as _, stdout};
use std::path::PathBuf;
use std::time::Duration;

use bm_api::request::{NoParameters, Request};
use bm_cli::Failure;
use bm_serve::client::{self, Server};
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::output::{is_closed, write};

/// How to reach the daemon.
#[derive(Clone, Debug, Args)]
pub struct Socket {
    /// Control socket of the daemon.
    #[arg(long, global = true, value_name = "PATH", default_value = bm_api::request::SOCKET)]
    pub socket: PathBuf,
    /// Give up after this many seconds without an answer [default: 30; 300 for verify, reload and stop].
    #[arg(long, global = true, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: Option<u64>,
}

/// Whether to repeat the output, and how often.
#[derive(Clone, Copy, Debug, Args)]
pub struct Watch {
    /// Repeat the output every second, or every SECONDS, until interrupted.
    #[arg(long, global = true, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
}

impl Socket {
    /// The daemon that is asked.
    pub fn server(&self) -> Server {
        Server { socket: self.socket.clone(), timeout: self.timeout.map(Duration::from_secs), node: None }
    }
}

/// Options of commands that only query the daemon.
#[derive(Clone, Debug, Args)]
pub struct Query {
    #[command(flatten)]
    pub socket: Socket,
    /// Ask another node of the cluster, over the fabric; only for commands that show something.
    #[arg(long, global = true, value_name = "NAME")]
    pub node: Option<String>,
    /// Print the reply as JSON.
    #[arg(long, global = true)]
    pub json: bool,
}

impl Query {
    /// The daemon that is asked, or the node of its cluster.
    pub fn server(&self) -> Server {
        Server { node: self.node.clone(), ..self.socket.server() }
    }
}

/// Sends a request and prints the reply, as text or as JSON.
pub fn print<R: DeserializeOwned + Serialize>(
    query: &Query,
    request: Request<NoParameters, R>,
    text: fn(&R) -> String,
) -> Result<(), Failure> {
    print_with(query, request, &NoParameters {}, text)
}

/// Sends a request with parameters and prints the reply, as text or as JSON.
pub fn print_with<Q: Serialize, R: DeserializeOwned + Serialize>(
    query: &Query,
    request: Request<Q, R>,
    parameters: &Q,
    text: fn(&R) -> String,
) -> Result<(), Failure> {
    print_reply(query.json, &client::ask(&query.server(), request, parameters)?, text)
}

/// Prints a reply, as text or as JSON.
pub fn print_reply<R: Serialize>(json: bool, reply: &R, text: fn(&R) -> String) -> Result<(), Failure> {
    let text = if json { serde_json::to_string(reply).map_err(Failure::failed)? + "\n" } else { text(reply) };
    write(&text)
}

/// Shows something once, or again and again: on a terminal at the same place, else one after the other.
pub fn watched(watch: Watch, json: bool, show: impl Fn() -> Result<(), Failure>) -> Result<(), Failure> {
    let Some(seconds) = watch.watch else { return show() };
    let clears = !json && stdout().is_terminal();
    while !is_closed() {
        if clears {
            write("\x1b[H\x1b[2J")?;
        }
        show()?;
        std::thread::sleep(Duration::from_secs(seconds));
    }
    Ok(())
}
