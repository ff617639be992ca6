//! `cargo xtask test`: builds the test programs, all of them or those that are named, and runs several in parallel.
//!
//! `cargo test` runs one program after the other, and most of them sleep: they wait for neighbors, timers and
//! daemons. Here one more runs in parallel than there are cores, and beside them, when a core is idle, what is no test
//! program: Clippy, the loom models, the count of instructions. The output of a program is kept together and shown
//! when it has ended, in cargo's own format, with a sum over all of them at the end.
//!
//! `xtask/suites.toml` lists the programs that need the machine to themselves, those that share it with one other, and
//! those to start first.
//!
//! Many programs run daemons and hosts in network namespaces, and some of their time limits fail now and then on a busy
//! machine. If up to five fail, they are run once more, alone, and that result counts; the last
//! lines name the tests that failed at first as flaky. A program that hangs is killed and has failed.
//! What failed tests printed is shown once more at the end.

mod build;
mod plan;
mod process;
mod report;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use plan::{Order, Plan, Program};
use report::Sum;

/// Builds and runs all programs whose names contain one of `words`, or all if there are none.
pub fn run(root: &Path, words: &[String]) -> Result<String, Vec<String>> {
    let plan = Plan::read(root)?;
    let features = features(root)?;
    let mut programs = match words {
        [] => build::all(root, &features)?,
        _ => build::named(root, &features, words)?,
    };
    programs.extend(plan::others(root, &features));
    programs.retain(|program| is_named(&program.name, words));
    if programs.is_empty() {
        return Err(vec![format!("no test program has one of {words:?} in its name")]);
    }
    let begin = Instant::now();
    let Order { idle, beside, in_pairs, alone } = plan.order(programs);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let results = Mutex::new(Results::default());
    thread::scope(|scope| {
        scope.spawn(|| run_all(idle, 1, &results));
        // Programs sleep about half of the time.
        run_all(beside, cores + 1, &results);
        run_all(in_pairs, 2, &results);
    });
    run_all(alone, 1, &results);
    let Results { mut sum, again } = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    if again.len() <= AGAIN_MAX {
        again.iter().for_each(|(program, first)| run_again(program, first, &mut sum));
    } else {
        again.iter().for_each(|(program, output)| sum.count(&program.name, output));
    }
    sum.end(begin.elapsed())
}

/// The sum so far, and the programs that have failed and may be run again, which it does not count yet.
#[derive(Default)]
struct Results {
    sum: Sum,
    again: Vec<(Program, Result<Output, String>)>,
}

/// Whether a program's name contains one of `words`; if there are none, each is meant.
fn is_named(name: &str, words: &[String]) -> bool {
    words.is_empty() || words.iter().any(|word| name.contains(word.as_str()))
}

/// The most failed programs that are run once more. If more have failed, none is, since that is not by chance.
const AGAIN_MAX: usize = 5;

/// Runs a failed program once more; `first` is what it printed before.
fn run_again(program: &Program, first: &Result<Output, String>, sum: &mut Sum) {
    let begin = Instant::now();
    let output = process::run(program);
    sum.show(&program.name, &output, begin.elapsed());
    sum.count(&program.name, &output);
    if report::passed(&output) {
        sum.passed_again(&program.name, first);
    }
}

/// Whether a feature is among the options of cargo.
pub fn has(features: &[String], feature: &str) -> bool {
    features.iter().flat_map(|option| option.split(',')).any(|name| name == feature)
}

/// The options of cargo that `tools/features` prints.
pub fn features(root: &Path) -> Result<Vec<String>, Vec<String>> {
    let output = Command::new(root.join("tools/features"))
        .output()
        .map_err(|error| failed("tools/features", &error))?;
    Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_string).collect())
}

/// Cargo, as if it was not called by a program that cargo has started: the build script of ring is run again, and all that
/// needs ring is compiled again, if one of these variables differs.
pub fn cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
    without_package(&mut command);
    command
}

/// Removes what cargo says about the package of this program.
fn without_package(command: &mut Command) {
    let of_package = |name: &std::ffi::OsStr| {
        name.to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| of_package(name)) {
        command.env_remove(name);
    }
}

/// Runs programs in their order, `at_a_time` of them beside each other.
fn run_all(programs: Vec<Program>, at_a_time: usize, results: &Mutex<Results>) {
    let waiting = Mutex::new(programs.into_iter());
    thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| run_one_by_one(&waiting, results));
        }
    });
}

/// Runs the next of the programs that wait, until none does.
fn run_one_by_one(waiting: &Mutex<std::vec::IntoIter<Program>>, results: &Mutex<Results>) {
    loop {
        // Unlocked again before the program runs.
        let Some(program) = waiting.lock().unwrap_or_else(PoisonError::into_inner).next() else { return };
        let begin = Instant::now();
        let output = process::run(&program);
        let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
        results.sum.show(&program.name, &output, begin.elapsed());
        if !program.when_idle && !report::passed(&output) {
            results.again.push((program, output));
        } else {
            results.sum.count(&program.name, &output);
        }
    }
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> Vec<String> {
    vec![format!("{what}: {error}")]
}
