//! A model of what an administrator can do to a network namespace: random steps by a seed, Linux alone beside XDP, tc and
//! workers, and what comes of the same packets after each step, byte by byte.
//!
//! ```text
//!   generate ──► step ──► taken by four labs ──► in step with netlink ──► probes ──► compare ──► the next step
//!                                                                                       │
//!                                          script ◄── shrink (new labs, fewer steps) ◄──┘ a difference
//! ```
//!
//! A subject is waited for until it has read what the kernel had announced (a neighbor of a port of its own changes after
//! each step, and messages come in order). From then on it must do as Linux does at once, if the kernel announces such
//! changes; for others (settings, rulesets, carriers) there is a time limit in `run`.
//!
//! | variable | meaning |
//! |---|---|
//! | `BM_SEED=N` | the steps of this seed instead of those of `make test` |
//! | `BM_MODEL_STEPS=N` | how many steps a seed has |
//! | `BM_MODEL_SECONDS=N` | random seeds for so long (`make model SECONDS=3600`) |
//! | `BM_MODEL_OPEN=1` | also steps after which a difference is known (`open`) |
//! | `BM_MODEL_SHRINK=N` | for how many seconds the steps of a finding are made fewer (90) |
//! | `BM_MODEL_SCRIPTS=DIR` | where scripts of findings are written |

mod beds;
mod compare;
mod filters;
mod generate;
mod open;
mod probes;
mod run;
mod script;
mod shrink;
mod step;

use bm_tests::rulesets::number;
use bm_tests::subject::Subject;
use bm_tests::{report, sys};
use run::{Counts, Finding};
use std::time::{Duration, Instant};

/// The seeds of `make test`, always the same.
const SEEDS: [u64; 3] = [1, 2, 3];
/// Steps of each.
const STEPS: u64 = 150;
/// How long a run of `make test` takes, which gives each seed its part; on a busy machine that is fewer steps.
const SHORT: Duration = Duration::from_secs(60);
/// Steps of each seed of a long run, before new labs are built.
const LONG_STEPS: u64 = 250;
/// How long the steps of a finding are made fewer.
const SHRINK: Duration = Duration::from_secs(90);
/// Findings after which a long run ends.
const FINDINGS_MAX: usize = 40;

#[test]
fn output_equals_that_of_linux_after_every_step() {
    let subjects = Subject::with_tc("model");
    if subjects.first() != Some(&Subject::Linux) || subjects.len() < 2 {
        return report::skip("model", "needs Linux and brickmoon as subjects");
    }
    let (begin, mut counts, mut findings) = (Instant::now(), Counts::default(), Vec::new());
    let seconds = number("BM_MODEL_SECONDS");
    let steps = number("BM_MODEL_STEPS").unwrap_or(if seconds.is_some() { LONG_STEPS } else { STEPS });
    let until = begin + seconds.map_or(SHORT, Duration::from_secs);
    let first = number("BM_SEED");
    let now = sys::wall_clock().as_nanos() as u64;
    for index in 0.. {
        let seed = match (first, seconds) {
            (Some(_), None) if index > 0 => break,
            (Some(seed), _) => seed + index,
            (None, Some(_)) => now.wrapping_add(index),
            (None, None) => match SEEDS.get(index as usize) {
                Some(seed) => *seed,
                None => break,
            },
        };
        if Instant::now() > until || findings.len() >= FINDINGS_MAX {
            break;
        }
        println!("BM_SEED={seed}");
        let part = match (first, seconds) {
            (None, None) => begin + SHORT * (index as u32 + 1) / SEEDS.len() as u32,
            _ => until,
        };
        let (of_seed, found) = run::run(&subjects, seed, steps, part);
        counts.add(&of_seed);
        if let Some(found) = found {
            findings.push(tell(found));
        }
    }
    summary(&counts, begin.elapsed());
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
    for (name, sent) in counts.sent.iter().skip(1) {
        assert!(*sent > counts.rounds, "{name} has forwarded next to nothing itself: {sent} frames");
    }
}

/// Shrinks a finding, and writes its script.
fn tell(found: Finding) -> String {
    report::say(&format!(
        "model: after {} steps: {}",
        found.steps.len(),
        script::report(&found).lines().next().unwrap_or_default()
    ));
    let time = number("BM_MODEL_SHRINK").map_or(SHRINK, Duration::from_secs);
    let shrunk = shrink::shrink(&found, Instant::now() + time);
    let once = if shrunk.is_some() { "" } else { "it did not happen again when its steps were repeated: " };
    let smallest = shrunk.unwrap_or(found);
    let (text, script) = (script::report(&smallest), script::of(&smallest));
    report::say(&format!("model: {once}{text}"));
    if let Some(folder) = std::env::var_os("BM_MODEL_SCRIPTS") {
        let file = std::path::Path::new(&folder).join(format!("model-{}.sh", smallest.seed));
        std::fs::write(&file, &script).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        return format!("{once}{text}  {}", file.display());
    }
    format!("{once}{text}\n{script}")
}

fn summary(counts: &Counts, took: Duration) {
    let Counts { steps, refused, rounds, probes, frames, during, transient, lossy, sent } = counts;
    report::say(&format!(
        "model: {steps} steps in {took:.0?}, of which Linux refused {refused}; {rounds} rounds with {probes} packets, of which came {frames} frames from Linux; {during} more while steps were made; {transient} rounds were repeated, {lossy} of them since this machine had lost frames"
    ));
    for (name, sent) in sent {
        report::say(&format!("model: {name} has forwarded {sent} frames itself"));
    }
}
