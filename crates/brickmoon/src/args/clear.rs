//! Arguments of `brickmoon clear`.

use clap::{Args, Subcommand};

use crate::query::Query;

/// `brickmoon clear`.
#[derive(Debug, Args)]
#[command(infer_subcommands = true)]
pub struct Clear {
    /// What to clear.
    #[command(subcommand)]
    pub what: ClearCommand,
}

/// What to clear.
#[derive(Debug, Subcommand)]
pub enum ClearCommand {
    /// The counters of `show ports` and `show drops`. Metrics, --json and the API are not affected.
    Counters(ClearCounters),
    /// The flows: Linux forwards the next packets of each connection, and flows are learned from them again.
    Flows(Query),
}

/// `brickmoon clear counters`.
#[derive(Debug, Args)]
pub struct ClearCounters {
    /// Undo it: show everything that was counted since the start of the daemon.
    #[arg(long)]
    pub undo: bool,
    #[command(flatten)]
    pub query: Query,
}
