//! The daemon's part of a cluster, and the API replies about it.

use std::sync::Mutex;

use bm_api::{Account, Drops, Error, FabricLink};
use bm_cluster::{LinkView, Service, State};
use bm_control::config::Config;

use super::lock::lock;
use crate::failure::Failure;
use crate::serve::report;

/// This node; none without `[cluster]`, and after [`Node::end`].
#[derive(Default)]
pub struct Node(Mutex<Option<Service>>);

impl Node {
    /// Starts the node if one is configured, otherwise removes what an earlier daemon left of one.
    pub fn start(config: &Config) -> Result<Self, Failure> {
        let Some(settings) = &config.cluster else {
            remove_kept();
            return Ok(Self::default());
        };
        let service =
            Service::start(settings.clone()).map_err(|why| Failure::Failed(format!("cluster: {why}")))?;
        Ok(Self(Mutex::new(Some(service))))
    }

    /// Applies another configuration.
    ///
    /// # Errors
    /// If it cannot be started with those settings.
    pub fn change(&self, config: &Config) -> Result<(), Error> {
        let mut node = lock(&self.0);
        let failed = |why| Error::new(format!("cluster: {why}"));
        let started = match (node.take(), &config.cluster) {
            (before, None) => {
                drop(before);
                None
            }
            (Some(same), Some(settings)) if same.settings() == *settings => Some(same),
            (Some(other), Some(settings)) => Some(other.replace(settings.clone()).map_err(failed)?),
            (None, Some(settings)) => Some(Service::start(settings.clone()).map_err(failed)?),
        };
        *node = started;
        Ok(())
    }

    /// Notes for `status`.
    pub fn notes(&self) -> Vec<String> {
        lock(&self.0).iter().flat_map(Service::notes).collect()
    }

    /// The node with its links.
    pub fn cluster(&self) -> bm_api::Cluster {
        let Some(view) = lock(&self.0).as_ref().map(Service::view) else { return bm_api::Cluster::default() };
        bm_api::Cluster {
            name: view.name,
            node: view.node,
            epoch: view.epoch,
            members: view.members,
            neighbors: view.neighbors,
            neighbors_without_index: view.without_index,
            routes: view.routes,
            links: view.links.iter().map(link).collect(),
        }
    }

    /// Adds drops on fabric links, with their descriptions.
    pub fn add_drops(&self, drops: &mut Drops) {
        let links = self.cluster().links;
        let accounts = links.iter().map(|link| (format!("cluster from {}", link.device), &link.account));
        report::add_drops(drops, &bm_cluster::REASONS, &accounts.collect::<Vec<_>>());
    }

    /// Leaves the node forwarding as intermediate and output node after the daemon has ended.
    pub fn keep(&self) -> Result<(), Error> {
        lock(&self.0).iter().try_for_each(Service::keep).map_err(Error::new)
    }

    /// Stops the node, unless [`Node::keep`] was called.
    pub fn end(&self) {
        drop(lock(&self.0).take());
    }
}

fn remove_kept() {
    let removed = bm_cluster::remove_kept();
    if !removed.is_empty() {
        tracing::info!(
            interfaces = removed.join(", "),
            "removed the fabric program that an earlier daemon left"
        );
    }
}

fn link(view: &LinkView) -> FabricLink {
    let counters = &view.counters;
    let drops = counters.drops().filter(|(_, frames)| *frames > 0);
    let state = match view.state {
        None => "missing",
        Some(State::Up) => "up",
        Some(State::NoDaemon) => "no-daemon",
        Some(State::NoProgram) => "no-program",
        Some(State::Down) => "down",
    };
    let is_detail = |name: &str| !name.starts_with("drop_") && name != "received_bytes";
    FabricLink {
        device: view.device.clone(),
        peer: view.peer.clone(),
        node: view.node,
        state: state.into(),
        trouble: view.trouble.clone(),
        round_trip_us: view.round_trip_ns.map(|ns| ns / 1000),
        account: Account {
            received: counters.received(),
            passed: counters.get("transit") + counters.get("output"),
            host: counters.linux(),
            consumed: counters.get("probes"),
            dropped: counters.dropped(),
            drops: drops.map(|(name, frames)| (name.into(), frames)).collect(),
            received_bytes: counters.get("received_bytes"),
            ..Account::default()
        },
        counters: counters
            .named()
            .filter(|(name, _)| is_detail(name))
            .map(|(name, frames)| (name.into(), frames))
            .collect(),
    }
}
