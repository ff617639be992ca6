//! The router: `brickmoon up` is the daemon; most other commands query it, and some run Lua programs. `brickmoon-bench`
//! has the benchmarks.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod client;
mod commands;
mod daemon;
mod log;
mod lua;

use std::process::ExitCode;

use clap::Parser;

/// Why a command failed; it determines the exit status.
#[derive(Debug)]
pub enum Failure {
    /// An error while running: exit status 1.
    Failed(String),
    /// Wrong usage or configuration: exit status 2.
    Usage(String),
    /// A program asked for this exit status and printed the reason itself.
    Status(u8),
}

impl Failure {
    /// A failure with the text of `error`.
    pub fn failed(error: impl ToString) -> Self {
        Self::Failed(error.to_string())
    }

    /// Wrong usage or configuration, with the text of `error`.
    pub fn usage(error: impl ToString) -> Self {
        Self::Usage(error.to_string())
    }
}

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    log::start(cli.verbose);
    let (status, why) = match commands::run(cli) {
        Ok(()) => (0, None),
        Err(Failure::Failed(why)) => (1, Some(why)),
        Err(Failure::Usage(why)) => (2, Some(why)),
        Err(Failure::Status(status)) => (status, None),
    };
    why.into_iter().for_each(|why| log::say(&format!("brickmoon: {why}")));
    log::flush();
    ExitCode::from(status)
}
