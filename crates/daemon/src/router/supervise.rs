//! Restarts the data path when a part of it fails. Linux forwards meanwhile.
//!
//! A thread that starts the data path, after a failure or for a reload, or ends it, holds [`Restarts`](super::restarts::Restarts) until it is done.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bm_api::PortMode;
use bm_cli::Failure;
use bm_lua::apps::AppSet;
use bm_lua::hook::{HookSet, OnHang};
use bm_serve::report;

use super::Forwarder;
use super::restarts::{FAILURES_MAX, FAILURES_WITHIN};
use crate::lock;
use crate::workers::data_path::DataPath;
use crate::workers::{apps, hooks, scripts};

/// What to do if the data path has failed too often.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TooMany {
    /// The daemon ends.
    End,
    /// It goes on without the data path: an app has failed, which a packet can make it do.
    Pause,
}

/// Lua hooks and apps of workers that are being ended: one that hangs must not keep its worker.
pub struct Scripts {
    hooks: Option<Arc<HookSet>>,
    apps: Option<Arc<AppSet>>,
    on_hang: OnHang,
}

impl Scripts {
    /// Interrupts what hangs. Returns whether something still hangs that should have been interrupted: its worker will
    /// not end.
    pub fn hang(&self) -> bool {
        let now = Instant::now();
        self.hooks.iter().for_each(|hooks| drop(hooks.supervise(self.on_hang)));
        self.apps.iter().for_each(|apps| drop(apps.supervise(now, self.on_hang)));
        self.hooks.iter().any(|hooks| hooks.is_overdue(now))
            || self.apps.iter().any(|apps| apps.is_overdue(now))
    }
}

impl Forwarder {
    /// Restarts the data path if one of its threads panicked or hangs; Linux forwards meanwhile.
    pub fn supervise(&self) -> Result<(), Failure> {
        let starts = self.starts.load(Ordering::Acquire);
        let grace = self.setup().config.daemon.kernel_grace;
        lock(&self.watch).supervise(self.driver.handle(), grace);
        let policies = {
            let mut ipsec = lock(&self.context.ipsec);
            ipsec.supervise();
            ipsec.version()
        };
        let is_to_be_put = {
            let mut tables = lock(&self.filter_tables);
            tables.is_to_be_put() || tables.policies != policies
        };
        if is_to_be_put || self.look_at_coverage() {
            self.links.notify_one();
        }
        self.keep_tags();
        if let Some(running) = lock(&self.running).as_ref() {
            self.meter.supervise(&running.ports, || report::counters(&self.context.registry));
        }
        let trouble = lock(&self.running).as_mut().and_then(DataPath::trouble);
        match trouble {
            // A restart would wait for its thread. It is interrupted soon, or the process ends.
            Some(_) if self.lua_is_overdue() => Ok(()),
            Some(trouble) => self.start_again(trouble, starts, TooMany::End),
            None => {
                if self.setup().config.daemon.rebalance {
                    lock(&self.running).as_mut().into_iter().for_each(DataPath::balance);
                }
                Ok(())
            }
        }
    }

    /// Turns tag stripping off again on a port of workers, one at a time: if somebody has turned it on, XDP would take frames
    /// of VLANs for others. The control thread does it for the kernel path.
    fn keep_tags(&self) {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let running = lock(&self.running);
        let ports = running.iter().flat_map(|running| &running.ports);
        let mut by_workers = ports.filter(|port| matches!(port.mode, PortMode::Copy | PortMode::ZeroCopy));
        let count = by_workers.clone().count().max(1);
        if let Some(port) = by_workers.nth(turn % count).filter(|port| bm_port_xdp::keep_tags(&port.name)) {
            tracing::warn!(
                "{}: rxvlan was turned on, which hides VLAN tags from XDP: turned off again",
                port.name
            );
        }
    }

    /// Interrupts Lua code that hangs; restarts the data path if its apps have failed.
    pub fn supervise_lua(&self) -> Result<(), Failure> {
        let starts = self.starts.load(Ordering::Acquire);
        let on_hang = scripts::on_hang(&self.setup().config);
        let hooks = self.context.hooks.get().map_or(Ok(()), |hooks| hooks::supervise(hooks, on_hang));
        let apps = self.context.apps.get().map_or(Ok(None), |apps| apps::supervise(apps, on_hang));
        match hooks.and(apps) {
            Ok(None) => self.end_pause(starts),
            Ok(Some(trouble)) => self.start_again(&trouble, starts, TooMany::Pause),
            Err(stuck) => {
                // Its thread never ends, so the process must; the kernel then takes back what is not given back here.
                let _given_back = self.driver.handle().ask(|control| control.set_active(false));
                tracing::error!("{stuck}");
                crate::log::flush();
                std::process::exit(1);
            }
        }
    }

    /// Whether Lua code hangs that could not be interrupted yet.
    fn lua_is_overdue(&self) -> bool {
        let now = Instant::now();
        self.context.hooks.get().is_some_and(|hooks| hooks.is_overdue(now))
            || self.context.apps.get().is_some_and(|apps| apps.is_overdue(now))
    }

    /// The Lua code, to be supervised while the forwarder ends.
    pub fn scripts(&self) -> Scripts {
        let (hooks, apps) = (self.context.hooks.get().cloned(), self.context.apps.get().cloned());
        Scripts { hooks, apps, on_hang: scripts::on_hang(&self.setup().config) }
    }

    /// Whether any Lua hook or app is running.
    pub fn has_scripts(&self) -> bool {
        let hooks = self.context.hooks.get().is_some_and(|hooks| !hooks.is_empty());
        hooks || self.context.apps.get().is_some_and(|apps| !apps.is_empty())
    }

    /// Starts apps again that have failed too often, once some time has passed.
    fn end_pause(&self, starts: u64) -> Result<(), Failure> {
        // One lock after the other: a reload takes them the other way round.
        let is_paused = lock(&self.paused).is_some();
        if !is_paused || !lock(&self.restarts).may(Instant::now()) {
            return Ok(());
        }
        let trouble = lock(&self.paused).take().unwrap_or_default();
        self.start_again(&trouble, starts, TooMany::Pause)
    }

    /// The note of `status` on apps that have failed too often.
    pub fn pause_note(&self) -> Option<String> {
        let trouble = lock(&self.paused).clone()?;
        let first = trouble.lines().next().unwrap_or_default().to_owned();
        Some(format!("Linux forwards, since apps failed too often ({first}): fix them and reload"))
    }

    /// Restarts the data path, unless it has been restarted since the trouble was seen, when it had been started `starts`
    /// times.
    fn start_again(&self, trouble: &str, starts: u64, too_many: TooMany) -> Result<(), Failure> {
        let mut restarts = lock(&self.restarts);
        // A reload has restarted it meanwhile, or the daemon is ending.
        if restarts.ended || self.starts.load(Ordering::Acquire) != starts {
            return Ok(());
        }
        if !restarts.allows(Instant::now()) {
            let minutes = FAILURES_WITHIN.as_secs() / 60;
            let why = format!("{trouble}, for the {}th time within {minutes} minutes", FAILURES_MAX + 1);
            if too_many == TooMany::End {
                return Err(Failure::Failed(format!("{why}: Linux forwards from now on")));
            }
            tracing::error!(
                "{why}: Linux forwards until `reload`, or until the failures are some minutes old"
            );
            *lock(&self.paused) = Some(trouble.into());
            // What only workers can filter is dropped then.
            return self.end_workers(&mut restarts);
        }
        self.failures.fetch_add(1, Ordering::Relaxed);
        tracing::error!("{trouble}: restarting the data path; Linux forwards meanwhile");
        let _pause = restarts.spare.release();
        let arranged = self.arrange(&mut restarts, &self.setup(), &|_| false);
        restarts.spare.fill();
        arranged
    }

    /// Detaches the programs in the kernel without waiting for any thread, unless they are to keep running.
    pub fn detach_without_waiting(&self) {
        if !self.keeps.load(Ordering::Relaxed) {
            self.driver.handle().detach_without_waiting();
        }
    }

    /// Hands all packets back to Linux and ends all threads.
    pub fn end(&self) {
        // Waits for a restart in progress, after which control can stop taking packets.
        lock(&self.restarts).ended = true;
        if !self.keeps.load(Ordering::Relaxed) {
            let kept = self.inbound_policies();
            // From here on nftables drops what workers should have decrypted.
            lock(&self.filter_tables).unmark();
            if let Err(error) = self.driver.handle().ask(|control| control.set_active(false)) {
                tracing::error!(
                    "cannot hand the ports back to Linux: {error}; this happens when the process exits"
                );
                self.driver.handle().detach_without_waiting();
            }
            lock(&self.watch).end();
            lock(&self.filter_tables).end(kept);
        }
        let running = lock(&self.running).take();
        drop(running.map(DataPath::stop));
        lock(&self.context.ipsec).end();
        self.sampling.end();
        self.switches.end();
        self.cluster.end();
    }
}
