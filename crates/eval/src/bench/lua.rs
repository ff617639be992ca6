//! `bench lua`: how long does a packet take in networks of Lua apps, and how long in the same apps in Rust?
//!
//! Both use the same links and frames, with Snabb's 102 packets per pull, packet by packet. The Lua side runs Snabb's
//! whole loop: clock, timers, counters, accounts. A case is a line in [`CASES`]: a Lua chunk that creates the network
//! and returns a function for one turn, and the network in Rust. Hooks have their own cases ([`hooks`]).

mod apps;
pub(super) mod hooks;
mod soak;

use std::sync::Arc;
use std::time::Duration;

use bm_frame::{FramePool, Freelist};
use bm_graph::{Engine, Network};
use bm_lua::{NoNatives, PAYLOAD, PreparedFunction, State, World};
use bm_testbed::testbed::cores;

use super::{BenchError, Options};
use crate::alternate::{Sample, Turns, alternate, alternate_samples, process_time};
use crate::report::Row;

pub use soak::{Minute, soak, soak_table};

/// Time limit of the bench in seconds, if none is given.
const SECONDS: u64 = 20;
/// Number of breaths per call of a subject.
const BREATHS: u64 = 500;
/// Number of frames that circulate in the cases of a single app.
const ROUND: usize = 256;
/// Shortest time of a case.
const LEAST: Duration = Duration::from_millis(1500);

/// A network of apps in Rust, with the number of packets in one breath.
type Rust = fn(&mut Freelist) -> (Network, u64);

/// What is measured: the name, the network in Lua, and the same in Rust.
struct Case {
    name: &'static str,
    lua: &'static str,
    rust: Rust,
}

/// All cases with one worker.
const CASES: [Case; 5] = [
    Case { name: "basic1", lua: include_str!("lua/basic1.lua"), rust: apps::basic1 },
    Case { name: "source-sink", lua: include_str!("lua/source_sink.lua"), rust: apps::source_sink },
    Case { name: "chain-8", lua: include_str!("lua/chain.lua"), rust: apps::chain },
    Case { name: "forward", lua: include_str!("lua/forward.lua"), rust: apps::forward },
    Case { name: "ttl", lua: include_str!("lua/ttl.lua"), rust: apps::ttl },
];
/// Two workers compared with one, each on its core.
const WORKERS: &str = "workers-2";

/// Measures all selected cases.
///
/// # Errors
/// See [`BenchError`].
pub fn lua(options: &Options) -> Result<Vec<Row>, BenchError> {
    let cases: Vec<_> = CASES.iter().filter(|case| options.wants(case.name)).collect();
    let of_hooks: Vec<_> = hooks::CASES.iter().filter(|case| options.wants(case.name)).collect();
    if cases.is_empty() && of_hooks.is_empty() && !options.wants(WORKERS) {
        return Err(BenchError::NoCase { wanted: options.case.clone().unwrap_or_default() });
    }
    let whole = Duration::from_secs(if options.seconds == 0 { SECONDS } else { options.seconds });
    let measurements = 2 * (cases.len() + of_hooks.len() + usize::from(options.wants(WORKERS)));
    let turns = Turns::within(whole.max(LEAST * measurements as u32 / 2), measurements);
    let mut rows = Vec::new();
    if options.wants(WORKERS) {
        rows.extend(workers(turns)?);
    }
    settle();
    for case in cases {
        rows.extend(measure(case, turns)?);
    }
    for case in of_hooks {
        rows.extend(hooks::measure(case, turns)?);
    }
    Ok(rows)
}

fn world() -> Result<World, BenchError> {
    World::new(Arc::new(NoNatives), Vec::new(), PAYLOAD).map_err(BenchError::build("frame memory"))
}

/// Stays on one core: a thread that moves starts with cold caches. If pinning is refused, measure without.
fn settle() {
    if let Some(&core) = cores::allowed().last() {
        let _refused = cores::pin(0, core);
    }
}

/// A case in Lua, ready to be measured.
fn in_lua(case: &Case) -> Result<(State, PreparedFunction), BenchError> {
    let state = State::new(&world()?).map_err(BenchError::build("the Lua state"))?;
    let program =
        state.prepare(case.name, case.lua, ROUND).map_err(BenchError::build("the network in Lua"))?;
    Ok((state, program))
}

/// A case in Rust, with the number of packets in one breath.
fn in_rust(case: &Case) -> Result<(Engine, u64), BenchError> {
    let frame_pool = FramePool::new(32_768, 2048).map_err(BenchError::build("frame memory"))?;
    let mut frames = Freelist::new(frame_pool, 8192);
    let (network, packets) = (case.rust)(&mut frames);
    let engine = Engine::new(network, frames).map_err(BenchError::build("the network in Rust"))?;
    Ok((engine, packets))
}

fn measure(case: &Case, turns: Turns) -> Result<Vec<Row>, BenchError> {
    let (_state, program) = in_lua(case)?;
    let (mut engine, packets) = in_rust(case)?;
    let mut failed = None;
    let measured = alternate(
        turns,
        &mut [
            ("lua", &mut || turn(&program, &mut failed)),
            ("rust", &mut || {
                (0..BREATHS).for_each(|_| _ = engine.breathe());
                BREATHS * packets
            }),
        ],
    );
    engine.stop();
    match failed {
        Some(error) => Err(BenchError::build("the run in Lua")(error)),
        None => Ok(measured.iter().map(|measured| row(case.name, measured)).collect()),
    }
}

fn row(case: &str, measured: &crate::alternate::Series) -> Row {
    Row::mpps("lua", case, measured).with("frame_bytes", 60)
}

/// One turn in Lua. A program that has failed does nothing any more; its error is reported at the end.
fn turn(program: &PreparedFunction, failed: &mut Option<bm_lua::LuaError>) -> u64 {
    if failed.is_some() {
        return 0;
    }
    program.call(BREATHS).unwrap_or_else(|error| {
        *failed = Some(error);
        0
    })
}

/// A network on one worker and on two: packets of all workers, by the CPU time of each. Workers that slow down
/// each other (memory, caches) show in it, other work on the machine does not.
fn workers(turns: Turns) -> Result<Vec<Row>, BenchError> {
    let subjects = [prepare(2)?, prepare(1)?];
    let names = vec!["lua".to_string(), "lua-1-worker".to_string()];
    let measured = alternate_samples(turns.runs, names, |index| -> Result<Sample, BenchError> {
        let failed = BenchError::build("the run in Lua");
        let program = &subjects[index].1;
        program.call(turns.warm_up.as_millis() as u64).map_err(&failed)?;
        let start = process_time();
        let items = program.call(turns.slot.as_millis() as u64).map_err(&failed)?;
        let workers = [2.0, 1.0][index];
        let rate = items as f64 * workers / (process_time() - start).as_secs_f64().max(1e-9);
        Ok(Sample { items, rate, ns: if items == 0 { 0.0 } else { 1e9 / rate } })
    })?;
    Ok(measured.iter().map(|measured| row(WORKERS, measured)).collect())
}

/// The network, on this many workers.
fn prepare(workers: usize) -> Result<(State, PreparedFunction), BenchError> {
    let state = State::new(&world()?).map_err(BenchError::build("the Lua state"))?;
    let text = include_str!("lua/workers.lua");
    let program = state.prepare(WORKERS, text, workers).map_err(BenchError::build("the network in Lua"))?;
    Ok((state, program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_moves_as_many_packets_in_lua_as_in_rust() {
        for case in &CASES {
            let state = State::new(&world().unwrap()).unwrap();
            let program = state.prepare(case.name, case.lua, ROUND).unwrap();
            let mut frames = Freelist::new(FramePool::new(4096, 2048).unwrap(), 2048);
            let (network, packets) = (case.rust)(&mut frames);
            let mut engine = Engine::new(network, frames).unwrap();
            (0..50).for_each(|_| _ = engine.breathe());
            let last = engine.link_stats().last().unwrap();
            assert_eq!(last.txpackets, 50 * apps::last_link(case.name, packets), "{}", case.name);
            assert_eq!(last.txdrop, 0);
            engine.stop();
            assert_eq!(program.call(50).unwrap(), 50 * packets, "{}", case.name);
        }
    }
}
