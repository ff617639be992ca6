//! The daemon as its clients see it: answers to API requests.

mod clear;
mod drops;
mod explain;
mod ports;
mod status;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bm_api::request::{self, ClearQuery, StopQuery};
use bm_api::{
    AppTime, Apps, Cleared, Cluster, Error, Hooks, Links, Reloaded, Status, Stopping, Verify, Worker, Workers,
};
use bm_control::config;
use bm_control::control_thread::{ControlState, Handle};
use bm_serve::report::{self, Counters};
use bm_serve::{Answers, app_report, metrics};
use tokio::sync::Notify;

use crate::configuration;
use crate::guard::health::{Health, Silent};
use crate::lock;
use crate::log;
use crate::options::Options;
use crate::router::Forwarder;
use crate::workers::hooks;
use crate::workers::threads::WorkerThreads;

/// The daemon as its clients see it.
pub struct Daemon {
    forwarder: Arc<Forwarder>,
    /// The command line.
    options: Options,
    started: Instant,
    /// The note for `status` of a daemon that keeps all privileges.
    unconfined: Option<String>,
    /// URL of the web page.
    web: Option<String>,
    /// Threads that make no progress.
    silent: Silent,
    /// What counters were when they were cleared.
    baseline: clear::Baseline,
    /// Notified when the daemon is to end.
    pub end: Notify,
}

impl Daemon {
    /// Answers for this forwarder.
    pub fn new(
        forwarder: Arc<Forwarder>,
        options: Options,
        started: Instant,
        unconfined: Option<String>,
        web: Option<String>,
    ) -> Self {
        let silent = Health::subscribe(forwarder.driver.handle());
        Self {
            forwarder,
            options,
            started,
            unconfined,
            web,
            silent,
            baseline: clear::Baseline::default(),
            end: Notify::new(),
        }
    }

    /// The line that is printed when the daemon is ready.
    pub fn ready(&self) -> String {
        let status = self.status().unwrap_or_default();
        let switches = match (status.switches, status.switch_ports) {
            (0, _) => String::new(),
            (switches, ports) => format!(
                "{} with {}, ",
                bm_cli::counted_as(switches.into(), "switch", "switches"),
                bm_cli::counted(ports.into(), "port")
            ),
        };
        format!(
            "ready: {switches}{}, {}, {} IPv4 and {} IPv6 routes in {} ms",
            bm_cli::counted(status.ports.into(), "port"),
            bm_cli::counted(status.workers.into(), "worker"),
            bm_cli::count(status.routes_ipv4 as u64),
            bm_cli::count(status.routes_ipv6 as u64),
            self.started.elapsed().as_millis(),
        )
    }

    /// The note for a daemon without ports.
    pub fn no_ports(&self) -> Option<String> {
        let setup = self.forwarder.setup();
        let file = self.options.config.as_deref().unwrap_or(Path::new(config::FILE));
        let nothing = setup.config.ports.is_empty() && setup.config.switches.is_empty();
        nothing.then(|| {
            format!("no ports: add [[port]] tables to {}, then run `brickmoon reload`", file.display())
        })
    }

    /// All counters, including those of the kernel path.
    fn counters(&self) -> Counters {
        self.counters_with(&self.control().ask(|control| control.kernel_counters()).unwrap_or_default())
    }

    /// All counters, with the given ones of the kernel path for each port.
    fn counters_with(&self, kernel: &[bm_fastpath::Counters]) -> Counters {
        let mut counters = Counters::new();
        // After a change of links, counters of the same name may exist more than once: they are summed.
        let all = self.forwarder.context.registry.counters().into_iter();
        all.for_each(|(name, value)| *counters.entry(name).or_default() += value);
        self.forwarder.switches.add_to(&mut counters);
        if let Some(running) = lock(&self.forwarder.running).as_ref() {
            for (port, kernel) in running.ports.iter().zip(kernel) {
                match port.path.in_kernel {
                    true => report::add_kernel(&mut counters, &port.name, kernel),
                    false => report::add_steering(&mut counters, &port.name, kernel),
                }
            }
        }
        counters
    }

    /// Reports of the Lua apps of each worker.
    fn reports(&self) -> Vec<bm_lua::Report> {
        let apps = self.forwarder.context.apps.get().into_iter().filter(|apps| !apps.is_empty());
        apps.flat_map(|apps| apps.reports(app_report::PATIENCE)).collect()
    }
}

/// What the daemon answers: a function for each request.
pub fn all() -> Answers<Daemon> {
    Answers::<Daemon>::new(no_such_path)
        .on(request::STATUS, |daemon, _| daemon.status())
        .on(request::PORTS, |daemon, _| daemon.ports())
        .on(request::ROUTES, |daemon, query| daemon.control().try_ask(move |control| control.routes(&query)))
        .on(request::EXPLAIN, |daemon, query| daemon.explain(query))
        .on(request::NEIGHBORS, |daemon, _| daemon.control().ask(|control| control.neighbors()))
        .on(request::NEXT_HOPS, |daemon, _| daemon.control().ask(|control| control.next_hops()))
        .on(request::APPS, |daemon, _| Ok(daemon.apps()))
        .on(request::LINKS, |daemon, _| Ok(daemon.links()))
        .on(request::WORKERS, |daemon, _| Ok(daemon.workers()))
        .on(request::DROPS, |daemon, _| Ok(daemon.drops()))
        .on(request::HOOKS, |daemon, _| Ok(daemon.hooks()))
        .on(request::FILTERS, |daemon, _| daemon.control().ask(|control| control.filters()))
        .on(request::FLOWS, |daemon, query| daemon.control().flows(query))
        .on(request::CLEAR_FLOWS, |daemon, _| daemon.control().clear_flows())
        .on(request::SAS, |daemon, _| Ok(daemon.ipsec().sas()))
        .on(request::POLICIES, |daemon, _| Ok(daemon.ipsec().policies()))
        .on(request::COLLECTORS, |daemon, _| Ok(daemon.forwarder.sampling.collectors()))
        .on(request::SWITCHES, |daemon, _| Ok(daemon.forwarder.switches.switches()))
        .on(request::MACS, |daemon, _| Ok(daemon.forwarder.switches.macs()))
        .on(request::CLUSTER, |daemon, _| Ok(daemon.cluster()))
        .on(request::DRAIN, |daemon, _| daemon.set_drained(true))
        .on(request::JOIN, |daemon, _| daemon.set_drained(false))
        .on(request::REMOVE, |daemon, query| daemon.remove_member(&query.name))
        .on(request::CLEARED, |daemon, _| Ok(daemon.baseline.cleared()))
        .on(request::CLEAR, |daemon, query| daemon.clear(&query))
        .on(request::VERIFY, |daemon, _| daemon.verify())
        .on(request::RELOAD, |daemon, _| daemon.reload())
        .on(request::STOP, |daemon, query| daemon.stop(&query))
        .on_metrics(Daemon::metrics)
        .on_nodes(|daemon, name, path| daemon.forwarder.cluster.ask(name, path))
}

fn no_such_path() -> Error {
    let hint = format!("paths begin with /{}/; docs/api.md lists them", request::VERSION);
    Error::new("no such path").hint(hint)
}

impl Daemon {
    /// The control thread.
    fn control(&self) -> &Handle {
        self.forwarder.driver.handle()
    }

    fn status(&self) -> Result<Status, Error> {
        let of_control = self.control().ask(|control| (control.status(), control.interfaces()));
        of_control.map(|(status, ports)| self.completed(status, &ports))
    }

    fn apps(&self) -> Apps {
        let mut apps = report::apps(&self.counters());
        apps.apps.extend(self.reports().iter().flat_map(app_report::apps_of));
        apps
    }

    fn links(&self) -> Links {
        let mut links = report::links(&self.counters());
        app_report::add_links(&self.reports(), &mut links.links);
        links
    }

    fn workers(&self) -> Workers {
        // Counters of the kernel path do not concern workers.
        let (counters, reports) = (self.counters_with(&[]), self.reports());
        let running = lock(&self.forwarder.running);
        let Some(running) = running.as_ref() else { return Workers::default() };
        let (frames, free) = running.threads.as_ref().map_or((0, 0), WorkerThreads::frames);
        let restarts = self.forwarder.failures();
        let mut workers = Vec::new();
        for (index, state) in running.workers().into_iter().enumerate() {
            let [breaths, moves, sleeps, busy_ns] = state.counters;
            workers.push(Worker {
                worker: index as u32,
                core: state.core.map(|core| core as u32),
                alive: state.alive,
                priority: state.priority,
                queues: state.queues,
                breaths,
                moves,
                sleeps,
                busy_ns: Some(busy_ns),
                apps: state.times.into_iter().map(|(app, ns)| AppTime { app, ns }).collect(),
                restarts,
                frames: frames as u32,
                frames_free: free as u32,
                lua: app_report::lua_of_worker(index, &counters, &reports),
            });
        }
        Workers { workers }
    }

    fn hooks(&self) -> Hooks {
        let reports = self.forwarder.context.hooks.get().map(|hooks| hooks.report()).unwrap_or_default();
        hooks::hooks(reports, &self.counters())
    }

    fn metrics(&self) -> String {
        let ControlState { status, ports, kernel, filters } =
            self.control().ask(|control| control.state()).unwrap_or_default();
        let mut counters = self.counters_with(&kernel);
        self.add_linux(&mut counters, &kernel);
        counters.insert("log/lines_lost".into(), log::lost());
        report::add_filters(&mut counters, &filters);
        let counters: Vec<_> = counters.into_iter().collect();
        let (links, collectors) = (self.cluster().links, self.forwarder.sampling.collectors());
        metrics::render(&self.completed(status, &ports), &counters, &links, &collectors)
    }

    fn cluster(&self) -> Cluster {
        self.forwarder.cluster.cluster(&self.counters())
    }

    fn set_drained(&self, drained: bool) -> Result<Cluster, Error> {
        self.forwarder.cluster.set_drained(drained)?;
        Ok(self.cluster())
    }

    fn remove_member(&self, name: &str) -> Result<Cluster, Error> {
        self.forwarder.cluster.remove(name)?;
        Ok(self.cluster())
    }

    fn clear(&self, query: &ClearQuery) -> Result<Cleared, Error> {
        if query.undo {
            self.baseline.forget();
        } else {
            self.baseline.set(self.ports()?, self.drops());
        }
        Ok(self.baseline.cleared())
    }

    fn verify(&self) -> Result<Verify, Error> {
        let mut verify = self.control().verify()?;
        let interfaces = self.control().ask(|control| control.interfaces()).unwrap_or_default();
        let not_ours = self.forwarder.not_ours(&interfaces);
        verify.notes.extend(not_ours.unfiltered.into_iter().chain(not_ours.by_nftables));
        Ok(verify)
    }

    /// Reads the configuration file again and applies all changes that are possible while running.
    ///
    /// # Errors
    /// What is wrong with the file, or why it cannot be applied. Then nothing has changed, or the error says what has.
    pub fn reload(&self) -> Result<Reloaded, Error> {
        self.forwarder.reload(|| configuration::read_again(&self.options))
    }

    /// Makes the daemon end after this reply has been sent.
    fn stop(&self, query: &StopQuery) -> Result<Stopping, Error> {
        if query.keep {
            self.forwarder.keep()?;
        }
        self.end.notify_one();
        Ok(Stopping { pid: std::process::id(), kept: query.keep })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_request_is_answered() {
        let answered: BTreeSet<_> = all().paths().collect();
        let all: BTreeSet<_> = request::REQUESTS.iter().map(|request| request.path).collect();
        assert_eq!(answered, all);
    }
}
