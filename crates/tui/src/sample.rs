//! The replies of the daemon at one time, and the counters in them by name.

use std::collections::HashMap;

use bm_api::request::{self, NoParameters, Request};
use bm_api::{Apps, Cluster, Drops, Hooks, Links, Ports, Sas, Status, Switches, Workers};
use serde::de::DeserializeOwned;

/// Status and body of a reply, or why there is none.
pub type Reply = Result<(u16, Vec<u8>), String>;

/// Sends GET requests to one daemon or program.
pub trait Get: Send {
    fn get(&mut self, path: &str) -> Reply;
}

/// The replies of one round of requests.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub status: Status,
    pub ports: Ports,
    pub workers: Workers,
    pub apps: Apps,
    pub links: Links,
    pub drops: Drops,
    pub hooks: Hooks,
    pub switches: Switches,
    pub sas: Sas,
    pub cluster: Cluster,
}

impl Sample {
    /// Asks for everything. Lua programs have no ports, hooks, switches, SAs and cluster.
    pub fn take(get: &mut dyn Get) -> Result<Self, String> {
        let mut sample = Self {
            status: ask(get, request::STATUS)?,
            workers: ask(get, request::WORKERS)?,
            apps: ask(get, request::APPS)?,
            links: ask(get, request::LINKS)?,
            drops: ask(get, request::DROPS)?,
            ..Self::default()
        };
        if sample.status.path != "lua" {
            sample.ports = ask(get, request::PORTS)?;
            sample.hooks = ask(get, request::HOOKS)?;
            sample.switches = ask(get, request::SWITCHES)?;
            sample.sas = ask(get, request::SAS)?;
            sample.cluster = ask(get, request::CLUSTER)?;
        }
        Ok(sample)
    }

    /// Every counter of which a rate is shown.
    pub fn counters(&self) -> HashMap<String, u64> {
        let mut all = HashMap::new();
        self.port_counters(&mut all);
        self.app_counters(&mut all);
        self.other_counters(&mut all);
        all
    }

    fn port_counters(&self, all: &mut HashMap<String, u64>) {
        for port in &self.ports.ports {
            let account = &port.account;
            add(
                all,
                &format!("port/{}", port.name),
                &[
                    ("received", account.received),
                    ("received_bytes", account.received_bytes),
                    ("sent", account.sent),
                    ("sent_bytes", account.sent_bytes),
                    ("dropped", account.dropped),
                    ("to_linux", to_linux(port)),
                    ("lost", port.device_counters.values().sum()),
                ],
            );
            for queue in &port.queues {
                *all.entry(format!("worker/{}/received", queue.worker)).or_default() +=
                    queue.account.received;
            }
        }
    }

    fn app_counters(&self, all: &mut HashMap<String, u64>) {
        for worker in &self.workers.workers {
            add(
                all,
                &format!("worker/{}", worker.worker),
                &[
                    ("breaths", worker.breaths),
                    ("moves", worker.moves),
                    ("sleeps", worker.sleeps),
                    ("busy_ns", worker.busy_ns.unwrap_or_default()),
                ],
            );
            let times: Vec<_> = worker.apps.iter().map(|app| (app.app.as_str(), app.ns)).collect();
            add(all, &app_times_key(worker), &times);
        }
        for app in &self.apps.apps {
            let account = &app.account;
            add(
                all,
                &app_key(app),
                &[
                    ("received", account.received),
                    ("sent", account.sent + account.passed),
                    ("host", account.host),
                    ("dropped", account.dropped),
                ],
            );
        }
        for link in &self.links.links {
            let key = link_key(link);
            add(
                all,
                &key,
                &[("tx", link.tx), ("tx_bytes", link.tx_bytes), ("rx", link.rx), ("dropped", link.dropped)],
            );
        }
    }

    fn other_counters(&self, all: &mut HashMap<String, u64>) {
        all.insert("drops".into(), self.drops.total);
        all.extend(self.drops.drops.iter().map(|drop| (format!("drop/{}", drop.reason), drop.frames)));
        let flows = &self.status.flows;
        let [ended, not_learned] = [&flows.ended, &flows.not_learned].map(|of| of.values().sum());
        let totals = [
            ("learned", flows.learned),
            ("ended", ended),
            ("not_learned", not_learned),
            ("full", flows.full),
        ];
        add(all, "flows", &totals);
        for (event, by_reason) in [("ended", &flows.ended), ("not learned", &flows.not_learned)] {
            let counters =
                by_reason.iter().map(|(reason, count)| (format!("flows/{event}/{reason}"), *count));
            all.extend(counters);
        }
        for hook in &self.hooks.hooks {
            let dropped = hook.drops.values().sum();
            add(all, &format!("hook/{}", hook.name), &[("frames", hook.frames), ("dropped", dropped)]);
        }
        for switch in &self.switches.switches {
            for port in &switch.ports {
                add(
                    all,
                    &format!("switch/{}/{}", switch.name, port.name),
                    &[
                        ("received", port.account.received),
                        ("sent", port.sent),
                        ("sent_bytes", port.sent_bytes),
                        ("dropped", port.account.dropped),
                    ],
                );
            }
        }
        for sa in &self.sas.sas {
            add(all, &sa_key(sa), &[("packets", sa.packets), ("bytes", sa.bytes), ("failures", sa.failures)]);
        }
        for link in &self.cluster.links {
            add(
                all,
                &format!("fabric/{}", link.device),
                &[
                    ("sent", link.sent),
                    ("sent_bytes", link.sent_bytes),
                    ("received", link.account.received),
                    ("dropped", link.account.dropped),
                ],
            );
        }
    }
}

/// Frames of a port that the kernel path has left to Linux.
pub fn to_linux(port: &bm_api::Port) -> u64 {
    let counters = port.kernel_counters.iter().filter(|(name, _)| name.starts_with("linux_"));
    port.account.host.max(counters.map(|(_, frames)| frames).sum())
}

pub(crate) fn app_key(app: &bm_api::App) -> String {
    format!("app/{}/{}", app.worker.map_or("-".into(), |worker| worker.to_string()), app.name)
}

pub(crate) fn app_times_key(worker: &bm_api::Worker) -> String {
    format!("worker/{}/app", worker.worker)
}

pub(crate) fn link_key(link: &bm_api::Link) -> String {
    format!("link/{}/{}", link.worker, link.name)
}

/// Not by its name: all SAs of one policy from an IKE daemon have the same.
pub(crate) fn sa_key(sa: &bm_api::Sa) -> String {
    format!("sa/{:#x}/{}", sa.spi, sa.destination)
}

fn add(all: &mut HashMap<String, u64>, key: &str, counters: &[(&str, u64)]) {
    all.extend(counters.iter().map(|(name, value)| (format!("{key}/{name}"), *value)));
}

fn ask<R: DeserializeOwned>(get: &mut dyn Get, request: Request<NoParameters, R>) -> Result<R, String> {
    let (status, body) = get.get(request.path)?;
    bm_api::decode(status, &body).map_err(|error| error.to_string())
}
