//! Plans a reload: from the plan that a daemon carries out to that for another configuration.

use bm_api::{Error, Reloaded};
use bm_control::config::{Config, Effect, PathChoice};

use super::machine::Machine;
use super::path::{self, Paths};
use super::{Plan, checks, problems, with_paths, workers};

/// What a running daemon carries out, and what it cannot change while it runs.
pub struct Current<'a> {
    /// The configuration in use.
    pub config: &'a Config,
    pub plan: &'a Plan,
    /// Whether workers' sockets can take claimed packets: the kernel path was loaded with the map for them.
    pub takes_claims: bool,
    /// Whether there are workers with hooks.
    pub has_hooks: bool,
    /// Whether there are workers that apps can run on, and whether they have some.
    pub apps: Option<bool>,
}

/// What a reload does.
#[derive(Debug)]
pub struct Changes {
    /// The new configuration, without what needs a restart of the daemon.
    pub config: Config,
    pub plan: Plan,
    pub reply: Reloaded,
    /// Changed keys of ports, paths and workers, which are rearranged.
    pub arranged: Vec<String>,
}

/// Plans the changes from the current configuration to `new`.
///
/// # Errors
/// What is wrong with the new configuration on this machine, and how to fix it. Ports that are not changed may wait for
/// better interfaces.
pub fn reload(
    current: &Current<'_>,
    mut new: Config,
    machine: &Machine,
    file: Option<&std::path::Path>,
) -> Result<Changes, Error> {
    let chosen = path::choose(&new, machine).map_err(Error::new)?;
    let has_kernel = machine.no_kernel_path.is_none();
    let paths = if has_kernel { kept_paths(current, &new, chosen) } else { chosen };
    let (mut reply, mut arranged) = effects(current.config, &new, has_kernel);
    // Without these, workers would have no policies of programs or of the kernel, and send in clear.
    new.ipsec.xfrm_socket.clone_from(&current.config.ipsec.xfrm_socket);
    new.ipsec.kernel = current.config.ipsec.kernel;
    checks::all(file, &new, machine, &paths)?;
    let members_only = match (&current.config.cluster, &new.cluster) {
        (Some(old), Some(new)) => old.differs_in_members_only(new),
        _ => false,
    };
    if !members_only && (paths.needs_workers(&new) || current.plan.paths.needs_workers(current.config)) {
        // They send to fabric links, and balance.
        arranged.extend(reply.changed.extract_if(.., |key| key == "cluster"));
    }
    let mut problems = problems(&new, machine, &paths).into_iter();
    let of_change =
        problems.find(|(index, _)| arranged.contains(&format!("port.{}", new.ports[*index].device)));
    if let Some((_, why)) = of_change {
        return Err(Error::new(why).hint("nothing has changed"));
    }
    let needs_workers = paths.needs_workers(&new);
    if needs_workers || current.plan.paths.needs_workers(current.config) {
        reply.restarted.clone_from(&arranged);
    } else {
        reply.changed.extend(arranged.clone());
    }
    if let Some(slots) = machine.slots.filter(|_| needs_workers && !arranged.is_empty()) {
        workers::check_memory(&new, machine, slots)?;
    }
    if paths.any_kernel() && !current.takes_claims && !new.claims.is_empty() {
        reply.changed.retain(|key| !key.starts_with("claim."));
        reply.needs_restart.push("claim".into());
        new.claims.clear();
    }
    // Files are always loaded again, whether they have changed or not.
    if current.has_hooks && !new.hooks.is_empty() && !reply.changed.iter().any(|key| key == "hook") {
        reply.changed.push("hook".into());
    }
    let live_apps = current.apps.is_some_and(|has_some| has_some || !new.apps.is_empty());
    if live_apps && arranged.is_empty() && !reply.changed.iter().any(|key| key.starts_with("app.")) {
        reply.changed.push("app".into());
    }
    Ok(Changes { plan: with_paths(&new, machine, paths), config: new, reply, arranged })
}

/// How each change takes effect: what the reply says so far, and the keys that are rearranged.
fn effects(old: &Config, new: &Config, has_kernel: bool) -> (Reloaded, Vec<String>) {
    let (mut reply, mut arranged) = (Reloaded::default(), Vec::new());
    for changed in old.diff(new) {
        match changed.effect {
            Effect::Live => reply.changed.push(changed.key),
            Effect::Workers if has_kernel || changed.key != "daemon.path" => arranged.push(changed.key),
            Effect::Workers | Effect::Daemon => reply.needs_restart.push(changed.key),
        }
    }
    if !has_kernel {
        let chosen = new.ports.iter().filter(|port| port.path == PathChoice::Kernel);
        reply.needs_restart.extend(chosen.map(|port| format!("port.{}.path", port.device)));
    }
    (reply, arranged)
}

/// The paths for a new configuration: a port whose path is chosen automatically keeps the one that it has, unless the
/// configured paths have changed.
fn kept_paths(current: &Current<'_>, new: &Config, chosen: Paths) -> Paths {
    let old = current.config;
    if old.daemon.path != new.daemon.path {
        return chosen;
    }
    let mut paths = chosen;
    for (port, path) in new.ports.iter().zip(&mut paths.0) {
        let mut before = old.ports.iter().zip(&current.plan.paths.0);
        let same = before.find(|(other, _)| other.device == port.device && other.path == port.path);
        if let Some((_, before)) = same {
            path.clone_from(before);
        }
    }
    paths
}
