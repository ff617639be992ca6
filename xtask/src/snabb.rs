//! `cargo xtask snabb TREE`: runs the tests of Snabb's public tree, unmodified, on brickmoon.
//!
//! The tree is copied to `target/snabb`, so that nothing is written into it, and gets a `src/snabb` of two lines that
//! calls the brickmoon binary. Each test is a process in its own network namespace with a time limit; several run at
//! once. The table shows for each: passed, skipped itself, failed or timed out, and the first line of the
//! reason. Tests that cannot pass anywhere or on this kind of machine are listed by name, with the reason
//! (`known.rs`): they are run and shown, but do not count as failures. Absent on purpose: changes to the tree, and
//! skipping for it.

mod coverage;
mod known;
mod plan;
mod run;
mod table;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Command-line options.
struct Options {
    tree: PathBuf,
    binary: PathBuf,
    jobs: usize,
    limit: Duration,
    only: Option<String>,
    coverage: bool,
}

const USAGE: &str =
    "usage: cargo xtask snabb TREE [--only TEXT] [--jobs N] [--seconds S] [--binary PATH] [--coverage]";

/// Runs the tests whose names contain `--only`, or counts how much of the public API exists (`--coverage`).
pub fn run(root: &Path, arguments: impl Iterator<Item = String>) -> Result<String, Vec<String>> {
    let options = parse(root, arguments).map_err(|why| vec![why])?;
    let folder = root.join("target/snabb");
    let copy = prepare(&options, &folder).map_err(|why| vec![why])?;
    if options.coverage {
        return coverage::count(root, &options.binary, &copy).map_err(|why| vec![why]);
    }
    huge_pages().map_err(|why| vec![why])?;
    let mut jobs = plan::list(&copy)?;
    if let Some(only) = &options.only {
        jobs.iter_mut().for_each(|job| job.retain(|test| test.name.contains(only)));
        jobs.retain(|job| !job.is_empty());
    }
    if jobs.is_empty() {
        return Err(vec!["no test has such a name".into()]);
    }
    let results = run::all(jobs, &run::Place::new(&copy, &folder, options.limit), options.jobs);
    table::summary(results)
}

fn parse(root: &Path, mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let tree = arguments.next().filter(|word| !word.starts_with('-')).ok_or(USAGE)?;
    let binary = root.join("target/release/brickmoon");
    let (jobs, limit) = (2, Duration::from_secs(180));
    let mut options = Options { tree: tree.into(), binary, jobs, limit, only: None, coverage: false };
    while let Some(option) = arguments.next() {
        if option == "--coverage" {
            options.coverage = true;
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("{option} needs a value; {USAGE}"))?;
        let number = || {
            value
                .parse()
                .ok()
                .filter(|number| *number > 0)
                .ok_or(format!("{option} {value}: expected a number above 0"))
        };
        match option.as_str() {
            "--only" => options.only = Some(value),
            "--binary" => options.binary = value.into(),
            "--jobs" => options.jobs = number()? as usize,
            "--seconds" => options.limit = Duration::from_secs(number()?),
            _ => return Err(format!("unknown option {option}; {USAGE}")),
        }
    }
    Ok(options)
}

/// The copy of the tree, with its `snabb`.
fn prepare(options: &Options, folder: &Path) -> Result<PathBuf, String> {
    let tree = options.tree.canonicalize().map_err(|why| format!("{}: {why}", options.tree.display()))?;
    if !tree.join("src/core").is_dir() || !tree.join("lib/pflua/src").is_dir() {
        return Err(format!(
            "{} is not a checkout of Snabb: src/core or lib/pflua/src is missing",
            tree.display()
        ));
    }
    let binary = options.binary.canonicalize();
    let binary = binary.map_err(|why| format!("{}: {why}: run `make build`", options.binary.display()))?;
    let copy = folder.join("tree");
    let _none_before = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(&copy).map_err(|why| format!("{}: {why}", copy.display()))?;
    for part in ["src", "lib"] {
        shell(Command::new("cp").args(["-a", "--reflink=auto"]).arg(tree.join(part)).arg(&copy))?;
    }
    // Scripts of the tree expect shared memory where Snabb has it.
    let line = format!("exec {} snabb --path {} \"$@\"", binary.display(), copy.display());
    let script = format!("#!/bin/sh\nSNABB_SHM_ROOT=/var/run/snabb {line}\n");
    let snabb = copy.join("src/snabb");
    std::fs::write(&snabb, script).map_err(|why| format!("{}: {why}", snabb.display()))?;
    shell(Command::new("chmod").arg("755").arg(&snabb))?;
    Ok(copy)
}

/// Huge pages for tests that run in parallel. If there are none left, the tree's `lib.ctable` uses other pages, and
/// unmaps more of them than it has mapped: sooner or later such a test is killed by a signal.
const HUGE_PAGES: u32 = 1024;

fn huge_pages() -> Result<(), String> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(|why| why.to_string())?;
    let free = text.lines().find_map(|line| line.strip_prefix("HugePages_Free:")?.trim().parse::<u32>().ok());
    match free.unwrap_or(0) {
        HUGE_PAGES.. => Ok(()),
        free => Err(format!(
            "{free} huge pages are free, but {HUGE_PAGES} are needed: sysctl vm.nr_hugepages=1280"
        )),
    }
}

/// Runs a command that must succeed.
fn shell(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|why| format!("{command:?}: {why}"))?;
    let message = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(message(&output.stdout));
    }
    Err(format!("{command:?}: {}: {}{}", output.status, message(&output.stdout), message(&output.stderr)))
}
