//! Lua hooks: from the configuration to the hooks of each thread, and their reports for `show hooks`.

use bm_api::{Drop, DropAt, Drops, Error, Hook, Hooks};
use bm_cli::Failure;
use bm_control::config::{self, Config, HookFailure, HookStage};
use bm_graph::Stage;
use bm_lua::Tree;
use bm_lua::hook::{Budget, HookNews, HookReport, HookSet, HookSpec, OnFailure, OnHang};
use bm_serve::report::Counters;
use bm_stats::Scope;

use crate::workers::scripts;

/// The hooks of a configuration in the form that `bm-lua` takes.
pub fn specs(config: &Config) -> Vec<HookSpec> {
    let trees = scripts::trees(config);
    config.hooks.iter().map(|hook| spec(hook, &trees)).collect()
}

fn spec(hook: &config::Hook, trees: &[Tree]) -> HookSpec {
    let stage = hook.stage.map(|stage| match stage {
        HookStage::Ingress => Stage::Ingress,
        HookStage::Lookup => Stage::Lookup,
        HookStage::Egress => Stage::Egress,
        HookStage::Slow => Stage::Slow,
    });
    HookSpec {
        name: hook.name.clone(),
        file: hook.file.clone(),
        stage,
        arguments: hook.arguments.clone(),
        budget: Budget {
            cycles: hook.budget.into(),
            percent: hook.budget_percent.into(),
            patience: hook.patience,
        },
        on_failure: hook.on_failure.map(|on_failure| match on_failure {
            HookFailure::Pass => OnFailure::Pass,
            HookFailure::Drop => OnFailure::Drop,
            HookFailure::Linux => OnFailure::Linux,
        }),
        trees: trees.to_vec(),
    }
}

/// Loads the files again; if one cannot be loaded, the old versions stay.
pub fn reload(set: &HookSet, config: &Config) -> Result<(), Error> {
    let hint = "fix the file and reload; until then the previous versions keep running";
    set.reload(&specs(config)).map_err(|error| Error::new(error).hint(hint))
}

/// Loads the files without using them, so that errors are known before the workers are restarted.
pub fn try_load(set: &HookSet, config: &Config) -> Result<(), Error> {
    let hint = "fix the file and reload; nothing has changed";
    set.try_load(&specs(config)).map_err(|error| Error::new(error).hint(hint))
}

/// Interrupts hooks that hang, unless `on_hang` forbids it, and logs failures.
///
/// # Errors
/// A call hangs that is not or cannot be interrupted, so that only ending the process helps.
pub fn supervise(set: &HookSet, on_hang: OnHang) -> Result<(), Failure> {
    for news in set.supervise(on_hang) {
        match news {
            HookNews::Retired { name, file, version, health, why, instead } => {
                let (file, health) = (file.display(), health.name());
                let instead = match instead {
                    Ok(running) => format!("version {running} runs instead"),
                    Err(on_failure) => does_not_run(on_failure),
                };
                tracing::error!("hook {name}: version {version} of {file} is {health}; {instead}: {why}");
            }
            HookNews::Stuck { lasts } => return Err(scripts::hang_failure("a hook", lasts, on_hang)),
        }
    }
    Ok(())
}

/// What happens to the packets of a hook that does not run.
fn does_not_run(on_failure: OnFailure) -> String {
    let fate = match on_failure {
        OnFailure::Pass => "its packets pass without it",
        OnFailure::Drop => "its packets are dropped",
        OnFailure::Linux => "Linux gets its packets",
    };
    format!("{fate} (`on_failure` is \"{}\")", on_failure.name())
}

/// The notes of `status`: one for each hook whose newest version does not run.
pub fn notes(reports: &[HookReport]) -> Vec<String> {
    let failed = reports.iter().filter(|hook| hook.running != Some(hook.version));
    let mut notes = Vec::new();
    for hook in failed {
        let HookReport { name, version, health, on_failure, .. } = hook;
        let (health, hint) = (health.name(), "`show hooks` says why; fix the file and reload");
        notes.push(match hook.running {
            Some(running) => {
                format!("hook {name}: version {version} is {health}, version {running} runs instead: {hint}")
            }
            None => {
                format!("hook {name} is {health} and does not run, {}: {hint}", does_not_run(*on_failure))
            }
        });
    }
    notes
}

/// All hooks with their counters.
pub fn hooks(reports: Vec<HookReport>, counters: &Counters) -> Hooks {
    Hooks { hooks: reports.into_iter().map(|report| hook(report, counters)).collect() }
}

fn hook(report: HookReport, counters: &Counters) -> Hook {
    let HookReport { name, file, stages, version, health, running, budget, on_failure, error, .. } = report;
    let mut hook = Hook {
        file: file.display().to_string(),
        stages: stages.iter().map(|stage| stage.name().to_string()).collect(),
        state: health.name().into(),
        version,
        running,
        budget: budget.cycles,
        budget_percent: budget.percent,
        on_failure: on_failure.name().into(),
        last_error: error,
        ..Hook::default()
    };
    let mut cycles = 0;
    for (counter, &value) in of_hooks(counters).filter(|(_, of, _)| *of == name).map(|(c, _, v)| (c, v)) {
        match counter.split_once('/') {
            // Belongs to the Lua state, not to the hook: shown by `show workers`.
            Some(("jit", _)) => {}
            Some(("drop", reason)) => *hook.drops.entry(reason.into()).or_default() += value,
            Some((_, own)) => *hook.counters.entry(own.into()).or_default() += value,
            None => match counter {
                "calls" => hook.calls += value,
                "frames" => hook.frames += value,
                "cycles" => cycles += value,
                "errors" => hook.errors += value,
                "ejections" => hook.ejections += value,
                _ => hook.hangs += value,
            },
        }
    }
    hook.cycles_per_frame = cycles as f64 / hook.frames.max(1) as f64;
    hook.name = name;
    hook
}

/// Counters of hooks: counter name, hook name and value.
fn of_hooks(counters: &Counters) -> impl Iterator<Item = (&str, &str, &u64)> {
    counters.iter().filter_map(|(name, value)| match Scope::parse(name) {
        (Scope::Hook { hook, .. }, counter) => Some((counter, hook, value)),
        _ => None,
    })
}

/// Replaces the common drop reason of hooks by the names that hooks gave, so that no frame is counted twice.
pub fn name_drops(drops: &mut Drops, reports: &[HookReport], counters: &Counters) {
    let mut named: Vec<Drop> = Vec::new();
    for (counter, hook, &frames) in of_hooks(counters).filter(|(.., frames)| **frames > 0) {
        let Some(reason) = counter.strip_prefix("drop/") else { continue };
        let meaning = reports.iter().filter(|report| report.name == hook).flat_map(|report| &report.reasons);
        let meaning = meaning.filter(|(name, _)| name == reason).map(|(_, meaning)| meaning.clone()).next();
        let app = format!("hook {hook}");
        match named.iter_mut().find(|drop| drop.reason == reason && drop.at[0].app == app) {
            Some(drop) => {
                drop.frames += frames;
                drop.at[0].frames += frames;
            }
            None => named.push(Drop {
                reason: reason.into(),
                meaning: meaning.unwrap_or_else(|| "dropped by a version that no longer runs".into()),
                frames,
                at: vec![DropAt { app, frames }],
            }),
        }
    }
    let sum: u64 = named.iter().map(|drop| drop.frames).sum();
    for drop in drops.drops.iter_mut().filter(|drop| drop.reason == bm_stats::Reason::Hook.name()) {
        drop.frames = drop.frames.saturating_sub(sum);
    }
    drops.drops.retain(|drop| drop.frames > 0);
    drops.drops.append(&mut named);
    drops.drops.sort_by_key(|drop| std::cmp::Reverse(drop.frames));
}
