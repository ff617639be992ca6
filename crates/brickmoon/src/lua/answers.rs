//! The control socket of a Lua program: `show apps`, `links`, `workers` and `drops`, as for the daemon.
//!
//! Counters of ports and routers are in shared memory. Lua apps are queried through [`ReportSlots`]: their workers answer
//! between two breaths. Figures of several workers for one app or link are summed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use bm_api::request;
use bm_api::{Account, App, Apps, Drops, Error, Link, Links, Status, Stopping, Worker, Workers};
use bm_cli::Failure;
use bm_frame::FramePool;
use bm_lua::{Report, ReportSlots};
use bm_serve::server::runtime;
use bm_serve::socket::Socket;
use bm_serve::{Answers, app_report, metrics, program_socket, report};
use bm_stats::Registry;
use tokio::sync::oneshot;

/// The sources of the answers.
pub struct Facts {
    /// Counters of Rust apps.
    pub registry: Arc<Registry>,
    /// For queries to the workers.
    pub report_slots: ReportSlots,
    /// The free packets.
    pub frame_pool: Arc<FramePool>,
    /// When the program started.
    pub started: Instant,
}

/// A thread that answers until this is dropped.
pub struct Server {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers at `path`, or else at a socket of the program's own, whose path it logs; `None` if that cannot be
    /// opened: the program runs without it.
    ///
    /// # Errors
    /// If `path` is given and is the daemon's socket or cannot be opened.
    pub fn start(path: Option<&Path>, facts: Facts) -> Result<Option<Self>, Failure> {
        if path == Some(Path::new(request::SOCKET)) {
            return Err(Failure::Usage(format!(
                "--socket {}: this is the socket of the daemon; use another path",
                request::SOCKET
            )));
        }
        let runtime = runtime().map_err(Failure::failed)?;
        let socket = runtime.block_on(async {
            match path {
                Some(path) => Socket::listen(path, false).await.map(Some),
                None => Ok(program_socket::somewhere().await),
            }
        })?;
        let Some(socket) = socket else { return Ok(None) };
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("bm-api".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = socket.serve_all(answers().routes(Arc::new(facts))) => {}
                    _ = ended => {}
                }
            });
        });
        let thread = thread.map_err(Failure::failed)?;
        Ok(Some(Self { end: Some(end), thread: Some(thread) }))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ends the thread.
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been logged.
            let _panicked = thread.join();
        }
    }
}

/// What a Lua program answers: a function for each request that it knows.
fn answers() -> Answers<Facts> {
    Answers::<Facts>::new(no_such_path)
        .on(request::STATUS, |facts, _| Ok(facts.status()))
        .on(request::APPS, |facts, _| Ok(facts.apps()))
        .on(request::LINKS, |facts, _| Ok(facts.links()))
        .on(request::WORKERS, |facts, _| Ok(facts.workers()))
        .on(request::DROPS, |facts, _| Ok(facts.drops()))
        .on(request::STOP, |_, _| {
            bm_lua::interrupt();
            Ok(Stopping { pid: std::process::id(), kept: false })
        })
        .on_metrics(Facts::metrics)
}

fn no_such_path() -> Error {
    let others = "a Lua program answers status, apps, links, workers, drops, metrics and stop";
    Error::new("a Lua program cannot answer this request").hint(others)
}

impl Facts {
    fn reports(&self) -> Vec<Report> {
        self.report_slots.ask(app_report::PATIENCE)
    }

    fn counters(&self) -> report::Counters {
        report::counters(&self.registry)
    }

    fn status(&self) -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            path: "lua".into(),
            workers: self.reports().iter().filter(|report| report.alive).count() as u32,
            ..Status::default()
        }
    }

    fn apps(&self) -> Apps {
        let mut all = report::apps(&self.counters()).apps;
        all.extend(self.reports().iter().flat_map(app_report::apps_of));
        Apps { apps: summed(all) }
    }

    fn links(&self) -> Links {
        let mut sums: BTreeMap<String, Link> = BTreeMap::new();
        for link in self.reports().iter().flat_map(app_report::links_of) {
            let sum = sums.entry(link.name.clone()).or_default();
            sum.tx += link.tx;
            sum.tx_bytes += link.tx_bytes;
            sum.rx += link.rx;
            sum.rx_bytes += link.rx_bytes;
            sum.dropped += link.dropped;
            sum.waiting += link.waiting;
            // If only one worker has the link, this names it.
            sum.worker = link.worker;
            sum.name = link.name;
        }
        Links { links: sums.into_values().collect() }
    }

    fn workers(&self) -> Workers {
        let (frames, free) = (self.frame_pool.memory().slots() as u32, self.frame_pool.available() as u32);
        let reports = self.reports();
        let workers = reports.iter().map(|report| Worker {
            worker: report.worker as u32,
            alive: report.alive,
            breaths: report.breaths,
            moves: report.moves,
            sleeps: report.sleeps,
            frames,
            frames_free: free,
            lua: Some(app_report::lua_of(report.jit)),
            ..Worker::default()
        });
        Workers { workers: workers.collect() }
    }

    fn drops(&self) -> Drops {
        let mut drops = report::drops(&self.counters());
        app_report::add_drops(&self.reports(), &mut drops);
        drops.by_linux_unknown = Some("it is counted by the daemon, not by Lua programs".into());
        drops
    }

    fn metrics(&self) -> String {
        let counters: Vec<_> = self.counters().into_iter().collect();
        metrics::render(&self.status(), &counters, &[], &bm_api::Collectors::default())
    }
}

/// Sums the accounts of apps with the same name.
fn summed(apps: Vec<App>) -> Vec<App> {
    let mut sums: BTreeMap<String, App> = BTreeMap::new();
    for App { name, worker, account } in apps {
        let sum =
            sums.entry(name.clone()).or_insert_with(|| App { name, worker, account: Account::default() });
        if sum.worker != worker {
            sum.worker = None;
        }
        let of = &mut sum.account;
        for (entry, more) in [
            (&mut of.received, account.received),
            (&mut of.originated, account.originated),
            (&mut of.sent, account.sent),
            (&mut of.host, account.host),
            (&mut of.passed, account.passed),
            (&mut of.held, account.held),
            (&mut of.consumed, account.consumed),
            (&mut of.dropped, account.dropped),
        ] {
            *entry += more;
        }
        for (reason, frames) in account.drops {
            *of.drops.entry(reason).or_default() += frames;
        }
    }
    sums.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_of_all_workers_are_summed() {
        let of = |name: &str, worker, received| App {
            name: name.into(),
            worker: Some(worker),
            account: Account { received, drops: [("link_full".into(), 1)].into(), ..Account::default() },
        };
        let sums = summed(vec![of("sink", 0, 5), of("source", 1, 2), of("sink", 1, 7)]);
        let shown: Vec<_> = sums
            .iter()
            .map(|app| (app.name.as_str(), app.worker, app.account.received, app.account.drops["link_full"]))
            .collect();
        assert_eq!(shown, [("sink", None, 12, 2), ("source", Some(1), 2, 1)]);
    }
}
