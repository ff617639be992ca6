//! Arguments of `brickmoon clear`.

use clap::{Args, Subcommand};

use super::Query;

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
    /// The counters of `show ports` and `show drops`.
    Counters(ClearCounters),
}

/// `brickmoon clear counters`.
#[derive(Debug, Args)]
pub struct ClearCounters {
    /// Show all counts again.
    #[arg(long)]
    pub undo: bool,
    #[command(flatten)]
    pub query: Query,
}
