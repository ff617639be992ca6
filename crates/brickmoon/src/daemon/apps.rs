//! Lua apps of the configuration: linked with the workers' ports and router, and reported by `show`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use bm_api::Error;
use bm_control::config::Config;
use bm_control::config::app::{self, ROUTER};
use bm_graph::{Network, NetworkError};
use bm_lua::apps::{AppLink, AppNews, AppSet, AppSpec, AppsSpec, Module};

use super::path::Paths;
use super::scripts::{self, trees};
use crate::failure::Failure;
use crate::serve::app_report::PART;

/// The apps of a configuration in the form that `bm-lua` takes.
pub fn spec(config: &Config) -> AppsSpec {
    let app = |app: &app::App| AppSpec {
        name: app.name.clone(),
        module: match &app.module {
            app::Module::File(file) => Module::File(file.clone()),
            app::Module::Lua(name) => Module::Lua(name.clone()),
            app::Module::Rust(name) => Module::Rust(name.clone()),
        },
        class: app.class.clone(),
        argument: app.argument.clone(),
        core: app.core.map(|core| core as usize),
    };
    let link = |link: &app::Link| AppLink { from: link.from.clone(), to: link.to.clone() };
    let ports = config.ports.iter().enumerate().map(|(index, port)| port.name(index));
    AppsSpec {
        apps: config.apps.iter().map(app).collect(),
        links: config.links.iter().map(link).collect(),
        outer: ports.chain([ROUTER.into()]).collect(),
        trees: trees(config),
    }
}

/// Directories of `[lua] path` that do not exist, by line.
fn missing_trees(config: &Config) -> Vec<(usize, String)> {
    let missing = config.lua.path.iter().filter(|folder| !folder.is_dir());
    let why = |folder: &PathBuf| {
        (config.lua.line, format!("`path` in [lua]: no such directory: {}", folder.display()))
    };
    missing.map(why).collect()
}

/// The online cores, from 0; empty if that is unknown.
fn online() -> Vec<u32> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
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
    let core = |name: &str| config.apps.iter().find(|app| app.name == name).and_then(|app| app.core);
    let workers = config.daemon.workers.unwrap_or(1);
    for link in &config.links {
        let (from, to) = (core(&link.from.0), core(&link.to.0));
        if workers > 1 && from.is_some() != to.is_some() {
            problems.push((link.line, format!(
                "this [[link]] leads from {} to {}, one of which has its own core, which works only with one worker (here: {workers}): set workers = 1 in [daemon], or remove `core`",
                link.from.0, link.to.0
            )));
        }
    }
    problems
}

/// Checks apps, links and module directories, and reports all errors with lines of `file`. Modules are run to get the
/// schemas of their classes.
pub fn check(file: Option<&Path>, config: &Config) -> Result<(), Error> {
    let mut problems = config.check_links();
    problems.extend(missing_trees(config));
    problems.extend(wrong_cores(config, &online()));
    if problems.is_empty() {
        let found = bm_lua::apps::check(&spec(config)).map_err(Error::new)?;
        problems.extend(found.into_iter().map(|(name, why)| {
            let line = config.apps.iter().find(|app| app.name == name).map_or(0, |app| app.line);
            (line, format!("app {name}: {why}"))
        }));
    }
    if problems.is_empty() {
        return Ok(());
    }
    problems.sort();
    let file = scripts::of(file);
    let lines = problems.into_iter().map(|(line, why)| format!("{file}, line {line}: {why}"));
    Err(Error::new(lines.collect::<Vec<_>>().join("\n")))
}

/// Checks that the apps get packets: only workers run apps, and only ports of the user path and claims give packets to workers.
pub fn can_run(config: &Config, paths: &Paths) -> Result<(), Error> {
    if let Some(app) = config.apps.first()
        && !paths.needs_workers(config)
    {
        let why = format!("app {} needs the user path, but the ports use the kernel path", app.name);
        let hint = format!("{}, or remove [[app]] from the configuration", scripts::FOR_WORKERS);
        return Err(Error::new(why).hint(hint));
    }
    if paths.claims(config) {
        return Ok(());
    }
    let in_kernel = config.ports.iter().enumerate().zip(&paths.0).filter(|(_, path)| path.in_kernel);
    let names: Vec<_> = in_kernel.map(|((index, port), _)| port.name(index)).collect();
    let Some(link) = config.links.iter().find(|link| names.contains(&link.from.0)) else { return Ok(()) };
    let (port, line) = (&link.from.0, link.line);
    let why = format!("the [[link]] on line {line} takes packets from {port}, which uses the kernel path");
    let hint = "set path = \"user\" for this port, or select packets for workers with [[claim]]";
    Err(Error::new(why).hint(hint))
}

/// Links the ports `names` with the router and the slow path, or with apps where the configuration links them.
pub fn join(network: &mut Network, config: &Config, names: &[String]) -> Result<(), NetworkError> {
    let has = |app: &str, name: &str, from: bool| {
        let mut ends = config.links.iter().map(|link| if from { &link.from } else { &link.to });
        ends.any(|(one, end)| one == app && end == name)
    };
    for name in names.iter().filter(|name| network.has(name)).cloned().collect::<Vec<_>>() {
        if !has(&name, "output", true) && !has(ROUTER, &name, false) {
            network.link(&format!("{name}.output -> router.{name}"))?;
        }
        if has(ROUTER, &name, true) {
            // Packets from the slow path take the same links as those of the router.
            network.link(&format!("router.{name} -> {PART}.router:{name}"))?;
            network.link(&format!("slow.{name} -> {PART}.slow:{name}"))?;
        } else {
            network.link(&format!("router.{name} -> {name}.router"))?;
            network.link(&format!("slow.{name} -> {name}.slow"))?;
        }
    }
    let is_app = |name: &str| config.apps.iter().any(|app| app.name == name);
    for app::Link { from: (from, output), to: (to, input), .. } in &config.links {
        // A worker without a queue of a port does not have the port.
        if !is_app(from) && from != ROUTER && network.has(from) {
            network.link(&format!("{from}.{output} -> {PART}.{from}:{output}"))?;
        }
        if !is_app(to) && network.has(to) {
            network.link(&format!("{PART}.{to}:{input} -> {to}.{input}"))?;
        }
    }
    Ok(())
}

/// Replaces the apps of all workers by those of `config`.
pub fn reload(set: &AppSet, config: &Config) -> Result<(), Error> {
    let hint = "fix the file and reload; until then the previous apps keep running";
    set.reload(&spec(config)).map_err(|error| Error::new(error).hint(hint))
}

/// Aborts apps that hang. Returns why the workers must be restarted, if they must.
///
/// # Errors
/// An app hangs in a C function, so that only ending the process helps.
pub fn look_after(set: &AppSet) -> Result<Option<String>, Failure> {
    let mut trouble = None;
    for news in set.look_after(Instant::now()) {
        match news {
            AppNews::Failed { worker, why } => {
                trouble.get_or_insert(format!("the apps of worker {worker} failed: {why}"));
            }
            AppNews::Stuck { lasts } => return Err(scripts::stuck("an app", lasts)),
        }
    }
    Ok(trouble)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(links: &str) -> Config {
        let text = format!(
            "[[port]]\ndevice = 'eth0'\n[[port]]\ndevice = 'eth1'\n[[app]]\nname = 'guard'\nmodule = 'guard.lua'\n{links}"
        );
        Config::parse(Path::new("/etc/x/test.toml"), &text).expect("a right configuration")
    }

    fn link(from: &str, to: &str) -> String {
        format!("[[link]]\nfrom = '{from}'\nto = '{to}'\n")
    }

    struct Nothing;
    impl bm_graph::App for Nothing {}

    fn joined(links: &str) -> Vec<String> {
        let mut network = Network::new();
        for name in ["eth0", "eth1", "router", "slow", "lua"] {
            network.app(name, Box::new(Nothing)).expect("names differ");
        }
        let config = config(links);
        join(&mut network, &config, &["eth0".into(), "eth1".into()]).expect("links fit");
        network.links().map(ToString::to_string).collect()
    }

    #[test]
    fn links_lead_through_apps_where_they_are_asked_to() {
        let plain = joined("");
        assert_eq!(plain.len(), 6);
        assert_eq!(plain[0], "eth0.output -> router.eth0");
        let ways = link("eth0.output", "guard.input")
            + &link("guard.output", "router.eth0")
            + &link("router.eth1", "guard.back")
            + &link("guard.out", "eth1.guard");
        assert_eq!(
            joined(&ways),
            [
                "router.eth0 -> eth0.router",
                "slow.eth0 -> eth0.slow",
                "eth1.output -> router.eth1",
                "router.eth1 -> lua.router:eth1",
                "slow.eth1 -> lua.slow:eth1",
                "eth0.output -> lua.eth0:output",
                "lua.router:eth0 -> router.eth0",
                "lua.eth1:guard -> eth1.guard",
            ]
        );
    }

    #[test]
    fn says_what_is_wrong_with_links() {
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
            let Err(Error { message: said, .. }) = check(Some(Path::new("f.toml")), &config(&links)) else {
                panic!("{links}")
            };
            assert_eq!(said, format!("f.toml, line 8: {why}"));
        }
        let twice = link("eth0.output", "guard.input") + &link("eth1.output", "guard.input");
        let Err(Error { message: said, .. }) = check(None, &config(&twice)) else {
            panic!("two links into one place")
        };
        assert_eq!(
            said,
            "the configuration, line 11: guard.input already has a link, on line 8: remove one of the two"
        );
    }

    #[test]
    fn says_which_cores_cannot_have_apps() {
        let text = |core: u32, daemon: &str| {
            format!(
                "[daemon]\n{daemon}\n[[port]]\ndevice = 'eth0'\n[[app]]\nname = 'a'\nmodule = 'a.lua'\ncore = {core}\n\
                     [[link]]\nfrom = 'eth0.output'\nto = 'a.input'"
            )
        };
        let said = |core, daemon| {
            let config = Config::parse(Path::new("t.toml"), &text(core, daemon)).expect("readable");
            wrong_cores(&config, &[0, 1])
        };
        assert_eq!(said(1, "workers = 1"), []);
        assert_eq!(said(1, ""), []);
        assert_eq!(said(7, ""), [(5, "app a: core 7 does not exist; online cores: 0, 1".into())]);
        let taken = "app a: `cores` in [daemon] gives core 1 to worker 0: use another core";
        assert_eq!(said(1, "cores = [1]"), [(5, taken.into())]);
        let many = said(1, "workers = 2");
        assert!(many[0].0 == 9 && many[0].1.contains("(here: 2): set workers = 1"), "{many:?}");
        assert!(online().contains(&0) || online().is_empty());
    }

    #[test]
    fn names_folders_of_modules_that_are_not_there() {
        let config =
            Config::parse(Path::new("/none/b.toml"), "\n[lua]\npath = ['x', '/']").expect("readable");
        let Err(Error { message: said, .. }) = check(Some(Path::new("b.toml")), &config) else {
            panic!("no such directory")
        };
        assert_eq!(said, "b.toml, line 3: `path` in [lua]: no such directory: /none/x");
    }

    #[test]
    fn twins_are_called_in_links_as_in_linux() {
        for device in ["net_pcap0,rx_pcap=a.pcap", "0000:01:00.0", "eth_af_packet_with_a_long_name"] {
            let port = bm_control::config::Port::new(bm_control::config::Device::Dpdk(device.into()));
            assert_eq!(port.name(0), bm_port_dpdk::Spec::new(device).host_tap());
        }
    }
}
