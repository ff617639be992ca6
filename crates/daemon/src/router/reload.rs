//! Applies another configuration while the daemon runs: all changes that are possible without a restart, or none.
//!
//! ```text
//! file, machine ─► plan ─► switches ─┬─► control ─► apps ─► hooks     each step applies the new configuration;
//!                                     └─► ports and workers            if one fails, earlier ones are undone
//! ```

use bm_api::{Error, Reloaded};
use bm_control::config::Config;

use super::restarts::Restarts;
use super::{Forwarder, Setup};
use crate::lock;
use crate::plan::changes::{self, Changes, Current};
use crate::plan::machine::Machine;
use crate::ports::probe;
use crate::workers::data_path::DataPath;
use crate::workers::{apps, hooks};

/// Applies a configuration to one part of the daemon.
type CarryOut<'a, S> = Box<dyn FnMut(&S) -> Result<(), Error> + 'a>;

/// A step of a reload. It is undone by carrying it out with the old configuration.
struct Step<'a, S> {
    carry_out: CarryOut<'a, S>,
    /// Whether a failed step may have changed something.
    partial: bool,
}

impl<'a, S> Step<'a, S> {
    /// A step that changes nothing if it fails.
    fn atomic(carry_out: impl FnMut(&S) -> Result<(), Error> + 'a) -> Self {
        Self { carry_out: Box::new(carry_out), partial: false }
    }

    /// A step that may fail halfway.
    fn partial(carry_out: impl FnMut(&S) -> Result<(), Error> + 'a) -> Self {
        Self { carry_out: Box::new(carry_out), partial: true }
    }
}

/// Carries out all steps for `new`; if one fails, undoes those done, in reverse order.
///
/// # Errors
/// Why a step failed, and whether the others could be undone.
fn all_or_nothing<S>(mut steps: Vec<Step<'_, S>>, old: &S, new: &S) -> Result<(), Error> {
    let failed = steps.iter_mut().enumerate().find_map(|(at, step)| Some((at, (step.carry_out)(new).err()?)));
    let Some((at, error)) = failed else { return Ok(()) };
    let done = at + usize::from(steps[at].partial);
    let undone: Vec<_> =
        steps[..done].iter_mut().rev().filter_map(|step| (step.carry_out)(old).err()).collect();
    match undone.first() {
        None if error.hint.is_none() => Err(error.hint("nothing has changed")),
        None => Err(error),
        Some(left) => {
            let hint = format!(
                "restart the daemon: undoing the other changes also failed ({left}); Linux forwards packets that the daemon does not"
            );
            Err(Error::new(error).hint(hint))
        }
    }
}

impl Forwarder {
    /// Applies all changes that are possible while running, from the configuration that `read` returns.
    ///
    /// # Errors
    /// What is wrong with it, or why it cannot be applied. Then nothing has changed, or the error says what has.
    pub fn reload(&self, read: impl FnOnce() -> Result<Config, Error>) -> Result<Reloaded, Error> {
        // From here on no other thread starts or ends the data path.
        let mut restarts = lock(&self.restarts);
        if restarts.ended {
            return Err(Error::new("the daemon is shutting down"));
        }
        let _pause = restarts.spare.release();
        let reloaded = read().and_then(|new| self.reload_with(&mut restarts, new));
        restarts.spare.fill();
        reloaded
    }

    fn reload_with(&self, restarts: &mut Restarts, new: Config) -> Result<Reloaded, Error> {
        let old = self.setup();
        let Changes { config, plan, reply, arranged } = self.changes(&old, new)?;
        let setup = Setup { config, plan };
        self.carry_out(restarts, &old, &setup, &arranged)?;
        *lock(&self.setup) = setup.into();
        // Interfaces may have changed meanwhile.
        self.links.notify_one();
        Ok(reply)
    }

    /// Plans the changes from `old` to `new`, without those that need a restart of the daemon.
    fn changes(&self, old: &Setup, new: Config) -> Result<Changes, Error> {
        let machine = self.machine(&new);
        let machine = Machine { scripts: probe::scripts(&new, &machine.online), ..machine };
        let current = Current {
            config: &old.config,
            plan: &old.plan,
            takes_claims: self.claims.is_some(),
            has_hooks: self.context.hooks.get().is_some(),
            apps: self.context.apps.get().map(|set| !set.is_empty()),
        };
        changes::reload(&current, new, &machine, self.file.as_deref())
    }

    /// Whether workers have apps, or will have.
    fn live_apps(&self, new: &Config) -> bool {
        self.context.apps.get().is_some_and(|set| !(new.apps.is_empty() && set.is_empty()))
    }

    /// Applies `new`; if that fails, `old` again.
    fn carry_out(
        &self,
        restarts: &mut Restarts,
        old: &Setup,
        new: &Setup,
        arranged: &[String],
    ) -> Result<(), Error> {
        let control = self.driver.handle();
        // An interface that a switch releases may become a port, and vice versa: hence one step before the ports and one
        // after them.
        let mut steps = vec![
            Step::partial(|setup: &Setup| self.switches.change(&setup.config)),
            Step::partial(|setup: &Setup| self.cluster.change(&setup.config)),
        ];
        let told = Step::atomic(|setup: &Setup| {
            self.sampling.apply(&setup.config.export);
            Ok(())
        });
        let freed = Step::atomic(|_: &Setup| self.switches.attach_freed_interfaces());
        // Apps that had failed too often are started again.
        if !arranged.is_empty() || lock(&self.paused).take().is_some() {
            if let Some(set) = self.context.hooks.get().filter(|_| new.plan.paths.needs_workers(&new.config))
            {
                hooks::try_load(set, &new.config)?;
            }
            let step = Step::partial(|setup: &Setup| {
                control.set_counters(setup.config.firewall.counters)?;
                // Errors on ports that this reload adds or changes are fatal; older ports may have changed since they worked.
                let arranged = self.arrange(restarts, setup, &|port| {
                    std::ptr::eq(setup, new) && arranged.contains(&format!("port.{}", port.device))
                });
                arranged.map_err(Error::new)
            });
            steps.extend([step, freed, told]);
            return all_or_nothing(steps, old, new);
        }
        // Building tables may fail after the settings have been changed.
        steps.push(Step::partial(|setup: &Setup| control.reconfigure(&setup.config)));
        steps.extend([freed, told]);
        steps.push(Step::atomic(|setup: &Setup| {
            lock(&self.running).iter().for_each(|running: &DataPath| running.place(&setup.config));
            Ok(())
        }));
        if let Some(set) = self.context.apps.get().filter(|_| self.live_apps(&new.config)) {
            steps.push(Step::atomic(|setup: &Setup| apps::reload(set, &setup.config)));
        }
        // Last, since it cannot be undone: the files may have changed.
        if let Some(set) = self.context.hooks.get() {
            steps.push(Step::atomic(|setup: &Setup| hooks::reload(set, &setup.config)));
        }
        all_or_nothing(steps, old, new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Carries out three steps, some of which fail; returns what was done and the error.
    fn done(fails: &[&str]) -> (Vec<String>, Option<String>) {
        let done = RefCell::new(Vec::new());
        let step = |name: &'static str| {
            let done = &done;
            move |setup: &&str| {
                let what = format!("{name} {setup}");
                done.borrow_mut().push(what.clone());
                if fails.contains(&&*what) { Err(Error::new(format!("{what} fails"))) } else { Ok(()) }
            }
        };
        let steps =
            vec![Step::partial(step("control")), Step::atomic(step("apps")), Step::partial(step("hooks"))];
        let error = all_or_nothing(steps, &"old", &"new").err().map(|error| error.to_string());
        (done.take(), error)
    }

    #[test]
    fn a_reload_that_fails_is_undone_in_reverse_order() {
        let (steps, error) = done(&[]);
        assert_eq!((steps.join(", "), error), ("control new, apps new, hooks new".into(), None));
        let (steps, error) = done(&["control new"]);
        assert_eq!(steps, ["control new", "control old"]);
        assert_eq!(error.as_deref(), Some("control new fails: nothing has changed"));
        let (steps, _) = done(&["apps new"]);
        assert_eq!(steps, ["control new", "apps new", "control old"], "apps have been undone by themselves");
        let (steps, error) = done(&["hooks new", "apps old"]);
        assert_eq!(steps[3..], ["hooks old", "apps old", "control old"]);
        assert_eq!(
            error.as_deref(),
            Some(
                "hooks new fails: restart the daemon: undoing the other changes also failed (apps old fails); Linux forwards packets that the daemon does not"
            )
        );
    }
}
