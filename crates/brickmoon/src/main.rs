//! The router: `brickmoon up` is the daemon; most other commands query it, and some run Lua programs. `brickmoon-bench`
//! has the benchmarks.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod capture;
mod client;
mod commands;
mod doctor;
mod lua;
mod output;
mod pages;
mod query;
mod relay;
mod show;
mod xfrm;

use std::process::ExitCode;

use bm_cli::Failure;
use bm_daemon::log;
use clap::Parser;

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
