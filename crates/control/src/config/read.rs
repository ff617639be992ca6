//! Reads TOML into a [`Config`], and keeps the line of every value for error messages.
//!
//! [`Declared::read`] reads what is declared with a form, code here and below what needs more: required keys, and keys
//! that must fit each other. Each key is read by one call, which also registers it as known; all other keys are reported
//! as unknown. So the list of known keys always matches the keys that are read.

mod apps;
mod cluster;
mod export;
mod filter;
mod hooks;
mod ipsec;
mod switches;

use super::declare::Declared;
use super::error::Key;
use super::*;
use toml::de::{DeTable, DeValue};

use super::section::{Report, Section, Table, is_plain};

/// Parses a configuration, or returns all errors in it. Files with keys and tokens are looked for in `folder`.
pub(super) fn config(text: &str, folder: &Path) -> Result<Config, Vec<Problem>> {
    let mut report = Report::new(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let at = error.span().map_or(0, |span| span.start);
        report.add(at, ProblemKind::Syntax(error.message().into()));
    }
    // Text after a syntax error is read only in part, so further errors would be misleading.
    if !errors.is_empty() {
        return Err(report.problems);
    }
    let config = read_all(document.get_ref(), folder, &mut report);
    report.problems.sort_by_key(|problem| problem.line);
    if report.problems.is_empty() { Ok(config) } else { Err(report.problems) }
}

fn read_all(document: &Table<'_>, folder: &Path, report: &mut Report) -> Config {
    let mut config = Config::default();
    let mut top = Section::new("", document, report);
    top.read("daemon", "[daemon]", |section| daemon(section, &mut config.daemon));
    config.ports = ports(&mut top);
    top.read("fib", "[fib]", |section| config.fib.read(section));
    top.read("slow_path", "[slow_path]", |section| config.slow_path.read(section));
    top.read("neighbors", "[neighbors]", |section| config.neighbors.read(section));
    top.read("mirror", "[mirror]", |section| config.mirror.read(section));
    top.read("lua", "[lua]", |section| lua(section, &mut config.lua));
    config.hooks = hooks::hooks(&mut top);
    config.apps = apps::apps(&mut top);
    config.links = apps::links(&mut top, &config.ports);
    config.claims = filter::claims(&mut top);
    config.switches = switches::switches(&mut top, &config.ports);
    top.read("cluster", "[cluster]", |section| {
        config.cluster = Some(cluster::cluster(section, &config.ports))
    });
    top.read("filter", "[filter]", |section| filter::filter(section, &mut config.filter, &config.claims));
    top.read("firewall", "[firewall]", |section| config.firewall.read(section));
    top.read("flows", "[flows]", |section| config.flows.read(section));
    top.read("ipsec", "[ipsec]", |section| ipsec::ipsec(section, folder, &config.ports, &mut config.ipsec));
    export::export(&mut top, &mut config.export);
    top.finish();
    config
}

/// Reads `[daemon]`, whose settings must fit each other.
fn daemon(section: &mut Section<'_, '_>, daemon: &mut Daemon) {
    daemon.read(section);
    if daemon.idle == IdleChoice::Busy
        && let Some(priority) = daemon.priority.filter(|priority| *priority > 0)
    {
        section.report("priority", ProblemKind::BusyRealTime { priority });
    }
    if let Some(workers) = daemon.workers
        && !daemon.cores.is_empty()
        && daemon.cores.len() < workers as usize
    {
        section.report("cores", ProblemKind::FewCores { cores: daemon.cores.len(), workers });
    }
}

fn lua(section: &mut Section<'_, '_>, lua: &mut Lua) {
    lua.read(section);
    let set = section.table.get("path").filter(|_| !lua.path.is_empty());
    lua.line = set.map_or(0, |path| section.report.line(path.span().start));
}

fn ports(top: &mut Section<'_, '_>) -> Vec<Port> {
    let mut ports: Vec<(usize, Port)> = Vec::new();
    for (start, table) in top.tables("port", "[[port]] with device = \"xdp:eth0\" below it") {
        let mut section = top.element("[[port]]", table);
        let port = port(&mut section, start);
        section.finish();
        let Some((at, port)) = port else { continue };
        match ports.iter().find(|(_, other)| same_device(&other.device, &port.device)) {
            Some((first, _)) => {
                let first = top.report.line(*first);
                top.report.add(at, ProblemKind::DeviceTwice { device: port.device.to_string(), first });
            }
            None => ports.push((at, port)),
        }
    }
    ports.into_iter().map(|(_, port)| port).collect()
}

/// A port and the position of its device.
fn port(section: &mut Section<'_, '_>, start: usize) -> Option<(usize, Port)> {
    let device = section.text("device", "\"xdp:eth0\"").map(|(at, text)| (at, text.parse::<Device>()));
    let mut port = Port::default();
    port.read(section);
    match device {
        Some((at, Ok(device))) => Some((at, Port { device, ..port })),
        Some((at, Err(why))) => {
            section.report.add(at, ProblemKind::Device(why));
            None
        }
        None if !section.table.contains_key("device") => {
            section.report.add(start, ProblemKind::NoDevice);
            None
        }
        None => None,
    }
}

/// Whether two ports use the same interface or files.
fn same_device(one: &Device, two: &Device) -> bool {
    one == two || (one.interface().is_some() && one.interface() == two.interface())
}
