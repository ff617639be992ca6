//! What becomes of the data path when a part of it fails: it is started again, and Linux forwards meanwhile.

use std::sync::atomic::Ordering;

use bm_control::config::Config;

use super::{Daemon, lock};
use crate::Failure;
use crate::daemon::running::{Opened, Running};
use crate::daemon::{apps, hooks};

/// A data path that fails more often than this is not started again: Linux does better.
const RESTARTS_MAX: u64 = 5;

impl Daemon {
    /// Starts the data path again if a thread of it has panicked or hangs; Linux forwards meanwhile.
    pub fn look_after(&self) -> Result<(), Failure> {
        let trouble = lock(&self.running).as_mut().and_then(Running::trouble);
        match trouble {
            Some(trouble) => self.start_again(trouble),
            None => Ok(()),
        }
    }

    /// Breaks off what hangs in Lua; starts the data path again if its apps have failed.
    pub fn look_after_lua(&self) -> Result<(), Failure> {
        let hooks = self.shared.hooks.as_ref().map_or(Ok(()), |hooks| hooks::look_after(hooks));
        let apps = self.shared.apps.as_ref().map_or(Ok(None), |apps| apps::look_after(apps));
        match hooks.and(apps) {
            Ok(None) => Ok(()),
            Ok(Some(trouble)) => self.start_again(&trouble),
            Err(stuck) => {
                // Its thread never ends, so the process must; what the kernel does not take back, it does then.
                let _given_back = self.driver.handle().set_active(false);
                tracing::error!("{}", super::super::why(stuck));
                std::process::exit(1);
            }
        }
    }

    /// Whether any hook or app in Lua is at work.
    pub fn has_scripts(&self) -> bool {
        let hooks = self.shared.hooks.as_ref().is_some_and(|hooks| !hooks.is_empty());
        hooks || self.shared.apps.as_ref().is_some_and(|apps| !apps.is_empty())
    }

    fn start_again(&self, trouble: &str) -> Result<(), Failure> {
        if self.restarts.fetch_add(1, Ordering::Relaxed) >= RESTARTS_MAX {
            return Err(Failure::Failed(format!("{trouble}, again and again: Linux forwards from here on")));
        }
        tracing::error!("{trouble}: it is started again, and Linux forwards meanwhile");
        let config = lock(&self.config).clone();
        self.restart(&config)
    }

    /// Ends the data path and starts it as `config` says.
    pub(super) fn restart(&self, config: &Config) -> Result<(), Failure> {
        let control = self.driver.handle();
        let Some(depot) = &self.depot else {
            return Err(Failure::Failed("ports of the kernel path change with a new start only".into()));
        };
        control.set_active(false).map_err(Failure::failed)?;
        // Steering programs leave their interfaces before they can be put there again.
        control.set_ports(Vec::new()).map_err(Failure::failed)?;
        let before = lock(&self.running).take();
        before.into_iter().for_each(Running::stop);
        let (opened, ports) = Opened::open(config, depot, &self.paths, self.claims.as_ref())?;
        control.set_ports(ports).map_err(Failure::failed)?;
        let running = opened.start(config, &self.shared, control, depot.clone())?;
        *lock(&self.running) = Some(running);
        control.set_active(true).map_err(Failure::failed)
    }
}
