//! Checks of Lua hooks and apps: their files, their cores, and whether they get packets.

use std::path::{Path, PathBuf};

use bm_api::Error;
use bm_control::config::Config;
use bm_control::config::app::app_of_port;

use super::machine::Machine;
use super::path::Paths;

/// Hint for hooks and apps that get no packets since all ports use the kernel path.
const FOR_WORKERS: &str = "start with --path user or auto, set path = \"user\" for a port, select packets for workers with [[claim]]";

/// Checks the files of hooks, and apps with their links, cores and module directories; reports all errors with the lines
/// of `file` that name them.
pub fn check(file: Option<&Path>, config: &Config, machine: &Machine) -> Result<(), Error> {
    let file = name_of(file);
    let mut problems = Vec::new();
    for hook in &config.hooks {
        if let Some(error) = machine.scripts.hooks.get(&hook.file) {
            problems.push(format!("{file}, line {}: hook {}: {error}", hook.line, hook.name));
        }
    }
    if !problems.is_empty() {
        return Err(Error::new(problems.join("\n")));
    }
    let mut problems = before_apps(config, &machine.scripts.missing, &machine.online);
    if problems.is_empty() {
        if let Some(why) = &machine.scripts.unchecked {
            return Err(Error::new(why));
        }
        problems.extend(machine.scripts.apps.iter().map(|(name, why)| {
            let line = config.apps.iter().find(|app| app.name == *name).map_or(0, |app| app.line);
            (line, format!("app {name}: {why}"))
        }));
    }
    if problems.is_empty() {
        return Ok(());
    }
    problems.sort();
    let lines = problems.into_iter().map(|(line, why)| format!("{file}, line {line}: {why}"));
    Err(Error::new(lines.collect::<Vec<_>>().join("\n")))
}

/// What is wrong with apps and their links before their modules are looked at, by line.
pub fn before_apps(config: &Config, missing: &[PathBuf], online: &[u32]) -> Vec<(usize, String)> {
    let mut problems = config.check_links();
    for folder in missing {
        problems.push((config.lua.line, format!("`path` in [lua]: no such directory: {}", folder.display())));
    }
    problems.extend(wrong_cores(config, online));
    problems
}

/// Name of the configuration file in messages.
fn name_of(file: Option<&Path>) -> String {
    file.map_or_else(|| "the configuration".into(), |file| file.display().to_string())
}

/// Apps on cores that do not exist or belong to a worker, and links that such apps cannot have, by line.
fn wrong_cores(config: &Config, online: &[u32]) -> Vec<(usize, String)> {
    let mut problems = Vec::new();
    for (app, core) in config.apps.iter().filter_map(|app| Some((app, app.core?))) {
        let why = if !online.is_empty() && !online.contains(&core) {
            let known: Vec<_> = online.iter().map(u32::to_string).collect();
            format!("core {core} does not exist; online cores: {}", known.join(", "))
        } else if let Some(worker) = config.daemon.cores.iter().position(|taken| *taken == core) {
            format!("`cores` in [daemon] gives core {core} to worker {worker}: use another core")
        } else {
            continue;
        };
        problems.push((app.line, format!("app {}: {why}", app.name)));
    }
    let workers = config.daemon.workers.unwrap_or(1);
    for link in &config.links {
        let (from, to) = (core_of_app(config, &link.from.0), core_of_app(config, &link.to.0));
        if workers > 1 && from.is_some() != to.is_some() {
            problems.push((link.line, format!(
                "this [[link]] leads from {} to {}, one of which has its own core, which works only with one worker (here: {workers}): set workers = 1 in [daemon], or remove `core`",
                link.from.0, link.to.0
            )));
        }
    }
    problems
}

/// Checks that hooks and apps get packets.
pub fn get_packets(config: &Config, paths: &Paths) -> Result<(), Error> {
    hooks_get_packets(config, paths)?;
    apps_get_packets(config, paths)
}

/// Checks that hooks get packets: only workers run them.
fn hooks_get_packets(config: &Config, paths: &Paths) -> Result<(), Error> {
    match config.hooks.first() {
        Some(hook) if !paths.needs_workers(config) => {
            let why = format!("hook {} needs the user path, but the ports use the kernel path", hook.name);
            Err(Error::new(why).hint(format!("{FOR_WORKERS}, or remove [[hook]] from the configuration")))
        }
        _ => Ok(()),
    }
}

/// Checks that the apps get packets: only workers run apps, and only ports of the user path and claims give packets to workers.
fn apps_get_packets(config: &Config, paths: &Paths) -> Result<(), Error> {
    if let Some(app) = config.apps.first()
        && !paths.needs_workers(config)
    {
        let why = format!("app {} needs the user path, but the ports use the kernel path", app.name);
        let hint = format!("{FOR_WORKERS}, or remove [[app]] from the configuration");
        return Err(Error::new(why).hint(hint));
    }
    if paths.claims(config) {
        return Ok(());
    }
    let ports = config.ports.iter().zip(&paths.0).enumerate();
    let in_kernel = ports.filter(|(_, (_, path))| path.in_kernel);
    let names: Vec<_> = in_kernel.map(|(index, (port, _))| app_of_port(&port.name(index))).collect();
    let Some(link) = config.links.iter().find(|link| names.contains(&link.from.0)) else { return Ok(()) };
    let (port, line) = (&link.from.0, link.line);
    let why = format!("the [[link]] on line {line} takes packets from {port}, which uses the kernel path");
    let hint = "set path = \"user\" for this port, or select packets for workers with [[claim]]";
    Err(Error::new(why).hint(hint))
}

/// The core that the configuration names for an app.
fn core_of_app(config: &Config, name: &str) -> Option<u32> {
    config.apps.iter().find(|app| app.name == name)?.core
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A configuration with two ports, one app and these links.
    pub(crate) fn config(links: &str) -> Config {
        let text = format!(
            "[[port]]\ndevice = 'eth0'\n[[port]]\ndevice = 'eth1'\n[[app]]\nname = 'guard'\nmodule = 'guard.lua'\n{links}"
        );
        Config::parse(Path::new("/etc/x/test.toml"), &text).expect("a right configuration")
    }

    pub(crate) fn link(from: &str, to: &str) -> String {
        format!("[[link]]\nfrom = '{from}'\nto = '{to}'\n")
    }

    #[test]
    fn reports_errors_in_links() {
        for (links, why) in [
            (
                link("eth0.output", "gard.input"),
                "gard.input: unknown app or port gard, expected one of guard, eth0, eth1, router",
            ),
            (
                link("eth0.input", "guard.input"),
                "eth0.input: packets that arrive on a port come from eth0.output",
            ),
            (
                link("guard.output", "router.eth2"),
                "router.eth2: links of the router have the names of ports: eth0, eth1",
            ),
            (
                link("guard.output", "eth0.slow"),
                "eth0.slow is the link of the router to the port: use another name",
            ),
            (
                link("eth0.output", "router.eth1"),
                "this [[link]] involves no app: ports and the router are linked automatically",
            ),
        ] {
            let message = check(Some(Path::new("f.toml")), &config(&links), &Machine::default());
            assert_eq!(message, Err(Error::new(format!("f.toml, line 8: {why}"))));
        }
        let twice = link("eth0.output", "guard.input") + &link("eth1.output", "guard.input");
        let why =
            "the configuration, line 11: guard.input already has a link, on line 8: remove one of the two";
        assert_eq!(check(None, &config(&twice), &Machine::default()), Err(Error::new(why)));
    }

    #[test]
    fn reports_cores_that_cannot_run_apps() {
        let message = |core: u32, daemon: &str| {
            let text = format!(
                "[daemon]\n{daemon}\n[[port]]\ndevice = 'eth0'\n[[app]]\nname = 'a'\nmodule = 'a.lua'\ncore = {core}\n\
                     [[link]]\nfrom = 'eth0.output'\nto = 'a.input'"
            );
            let config = Config::parse(Path::new("t.toml"), &text).expect("readable");
            wrong_cores(&config, &[0, 1])
        };
        assert_eq!(message(1, "workers = 1"), []);
        assert_eq!(message(1, ""), []);
        assert_eq!(message(7, ""), [(5, "app a: core 7 does not exist; online cores: 0, 1".into())]);
        let taken = "app a: `cores` in [daemon] gives core 1 to worker 0: use another core";
        assert_eq!(message(1, "cores = [1]"), [(5, taken.into())]);
        let many = message(1, "workers = 2");
        assert!(many[0].0 == 9 && many[0].1.contains("(here: 2): set workers = 1"), "{many:?}");
    }
}
