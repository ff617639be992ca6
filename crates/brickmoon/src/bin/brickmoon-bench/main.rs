//! `brickmoon-bench`: what `brickmoon bench`, `demo`, `simulate` and `plan` run.
//!
//! It is a program beside the router, so that the router contains nothing that exists only to be measured, simulated or planned
//! (docs/decisions/0027-benches-apart.md). The benches and the demo themselves are in `bm-eval`,
//! the simulator and the planner in `bm-simulate`.

#![forbid(unsafe_code)]

mod args;
mod cluster;
mod commands;
mod figures;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::filter::LevelFilter;

/// Why a command failed, and so its exit status.
#[derive(Debug)]
pub enum Failure {
    /// Exit status 1.
    Failed(String),
    /// Wrong options: exit status 2.
    Usage(String),
}

impl Failure {
    /// A failure with the text of `error`.
    pub fn failed(error: impl ToString) -> Self {
        Self::Failed(error.to_string())
    }

    /// A mistake in the options, with the text of `error`.
    pub fn usage(error: impl ToString) -> Self {
        Self::Usage(error.to_string())
    }
}

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    start_log(cli.verbose);
    let (status, why) = match commands::run(cli.command) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Failed(why)) => (1, why),
        Err(Failure::Usage(why)) => (2, why),
    };
    say(&why);
    ExitCode::from(status)
}

/// Writes a line to standard error, unless that is closed.
fn say(line: &str) {
    let _closed = writeln!(std::io::stderr(), "brickmoon: {line}");
}

/// Logs to standard error, by how often `-v` was given.
fn start_log(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
    log.with_ansi(std::io::stderr().is_terminal()).with_target(verbose > 1).init();
}

/// Writes to standard output. A closed pipe (`| head`) is not an error.
pub fn write(text: &str) -> Result<(), Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::failed(error)),
        _ => Ok(()),
    }
}
