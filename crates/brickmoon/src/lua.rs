//! `brickmoon run` and `brickmoon snabb`: Lua programs.

mod answers;
mod natives;
mod port_memory;
mod router;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bm_lua::{Natives, Outcome, Program, ProgramSource, Tree, World};
use bm_stats::Registry;

use crate::args::{Lua, Run, Snabb};
use bm_cli::Failure;

use answers::{Facts, Server};

/// The Rust apps that Lua apps of the daemon can use; accounts are kept in `registry`.
pub fn natives(registry: Arc<Registry>) -> Arc<dyn Natives> {
    Arc::new(natives::Apps::new(registry))
}

/// Maximum number of counters.
const COUNTERS: usize = 1 << 15;

/// `brickmoon run PROGRAM.lua ARGUMENTS`.
pub fn run(run: Run) -> Result<(), Failure> {
    let Run { lua, program, arguments } = run;
    start(ProgramSource::File(program), arguments, &lua)
}

/// `brickmoon snabb -t MODULE`, or `brickmoon snabb PROGRAM ARGUMENTS`.
pub fn snabb(snabb: Snabb) -> Result<(), Failure> {
    let Snabb { lua, test, program } = snabb;
    let mut words = program.into_iter();
    let source = match test {
        Some(module) => ProgramSource::Test(module),
        None => ProgramSource::Named(words.next().ok_or_else(|| {
            Failure::usage(
                "no program given: use `brickmoon snabb PROGRAM [ARGUMENTS]`, or -t MODULE to run a selftest",
            )
        })?),
    };
    start(source, words.collect(), &lua)
}

fn start(source: ProgramSource, arguments: Vec<String>, lua: &Lua) -> Result<(), Failure> {
    if let Some(folder) = lua.trees.iter().find(|folder| !folder.is_dir()) {
        return Err(Failure::usage(format!("--path {}: no such directory", folder.display())));
    }
    let trees = lua.trees.iter().flat_map(|folder| Tree::at(folder)).collect();
    let registry = Arc::new(Registry::anonymous(COUNTERS).map_err(Failure::failed)?);
    let apps = natives(registry.clone());
    let world = World::new(apps, trees, lua.packet_bytes as usize).map_err(Failure::failed)?;
    bm_lua::end_on_signals().map_err(Failure::failed)?;
    let facts = Facts {
        registry,
        report_slots: world.report_slots.clone(),
        frame_pool: world.frame_pool.clone(),
        started: Instant::now(),
    };
    // A selftest ends before anybody could query it.
    let is_test = matches!(source, ProgramSource::Test(_)) && lua.socket.is_none();
    let _server = if is_test { None } else { Server::start(lua.socket.as_deref(), facts)? };
    let setup = (lua.setup_seconds > 0).then(|| Duration::from_secs(lua.setup_seconds));
    match (Program { source, arguments, world, setup, workers: lua.workers.into() }).run() {
        Ok(Outcome::Done | Outcome::Exit(0)) => Ok(()),
        Ok(Outcome::Exit(status)) => Err(Failure::Status(status)),
        Err(error) => Err(Failure::failed(error)),
    }
}
