//! The daemon's part of a cluster, and the API replies about it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use bm_api::{Account, Drops, Error, FabricLink};
use bm_cli::Failure;
use bm_cluster::{ClusterError, LinkView, Service, State, StoreView};
use bm_control::config::Config;
use bm_forward::{BalancingCounter, BalancingPlan, FabricPort};
use bm_serve::client;
use bm_serve::report::{self, Counters};
use bm_stats::{CounterKind, Scope};
use bm_vlb::balancer;
use bm_vlb::quota::Mode;

use crate::lock;
use crate::random;

/// Entries of each worker's table of flowlets.
const FLOWLETS: u32 = 16_384;
/// How long a path may be used beyond its share: longer than workers may be kept waiting for a processor.
const BURST_NS: u64 = 10_000_000;

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
        let service = Service::start(settings.clone())
            .and_then(|service| answering(service, config))
            .map_err(|why| Failure::Failed(format!("cluster: {why}")))?;
        Ok(Self(Mutex::new(Some(service))))
    }

    /// Applies another configuration.
    ///
    /// # Errors
    /// If it cannot be started with those settings.
    pub fn change(&self, config: &Config) -> Result<(), Error> {
        let mut node = lock(&self.0);
        let started = match (node.take(), &config.cluster) {
            (before, None) => {
                drop(before);
                None
            }
            (Some(same), Some(settings)) if same.configured() == settings => Some(same),
            (Some(other), Some(settings)) => Some(
                other
                    .change(settings.clone())
                    .and_then(|service| answering(service, config))
                    .map_err(failure)?,
            ),
            (None, Some(settings)) => Some(
                Service::start(settings.clone())
                    .and_then(|service| answering(service, config))
                    .map_err(failure)?,
            ),
        };
        *node = started;
        Ok(())
    }

    /// How `workers` workers together distribute packets over fabric links; `None` without a cluster.
    pub fn balancing(&self, workers: usize) -> Option<BalancingPlan> {
        let node = lock(&self.0);
        let service = node.as_ref()?;
        let settings = service.settings();
        let of_each = settings.input_bps() / workers.max(1) as u64;
        Some(BalancingPlan {
            settings: balancer::Settings {
                mode: settings.balancing,
                seed: u64::from(random()) << 32 | u64::from(random()),
                flowlets: FLOWLETS,
                burst_ns: BURST_NS,
                ..balancer::Settings::new(settings.own()?, of_each)
            },
            links: settings
                .links
                .iter()
                .map(|link| FabricPort {
                    name: link.device.clone(),
                    node: settings.member(&link.peer).map(|member| member.node),
                })
                .collect(),
            peers: service.peers(),
            workers,
        })
    }

    /// Notes for `status`.
    pub fn notes(&self) -> Vec<String> {
        lock(&self.0).iter().flat_map(Service::notes).collect()
    }

    /// The node with its links, and with what its workers have sent by `counters`.
    pub fn cluster(&self, counters: &Counters) -> bm_api::Cluster {
        let node = lock(&self.0);
        let Some(service) = node.as_ref() else { return bm_api::Cluster::default() };
        let (view, settings) = (service.view(), service.settings());
        bm_api::Cluster {
            balancing: balancing_name(settings.balancing).into(),
            speed: settings.input_bps() / 1_000_000,
            store: service.store().map(store),
            member_list: settings
                .members
                .iter()
                .map(|member| (member.name.clone(), member.node.number()))
                .collect(),
            not_members: view.not_members,
            flowlet_gap_us: view.flowlet_gap_ns / 1000,
            balanced: balanced(counters),
            drained: view.is_drained,
            name: view.name,
            node: view.node,
            epoch: view.epoch,
            members: view.members,
            neighbors: view.neighbors,
            neighbors_without_index: view.without_index,
            routes: view.routes,
            links: view.links.iter().map(|view| link(view, counters)).collect(),
        }
    }

    /// Asks other nodes to send nothing over this one any more, or to do so again.
    ///
    /// # Errors
    /// If there is no cluster, or nodes do not confirm it in time.
    pub fn set_drained(&self, drained: bool) -> Result<(), Error> {
        let node = lock(&self.0);
        let service = node.as_ref().ok_or_else(no_cluster)?;
        let done = if drained { service.drain() } else { service.join() };
        done.map_err(|why| Error::new(format!("cluster: {why}")))
    }

    /// Removes a member from the store of the members.
    ///
    /// # Errors
    /// If there is no cluster or no store, or it stays a member.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        // It may take seconds, in which others want to look at the node.
        let remover = lock(&self.0).as_ref().ok_or_else(no_cluster)?.remover().map_err(failure)?;
        remover.remove(name).map_err(failure)
    }

    /// What another node answers to a GET request: status and body.
    ///
    /// # Errors
    /// If there is no cluster, or no such node, or it does not answer.
    pub fn ask(&self, name: &str, path: &str) -> Result<(u16, Vec<u8>), Error> {
        let nodes = lock(&self.0).as_ref().ok_or_else(no_cluster)?.other_nodes();
        nodes.ask(name, path).map_err(|why| Error::new(format!("cluster: {why}")))
    }

    /// Adds drops on fabric links, with their descriptions.
    pub fn add_drops(&self, drops: &mut Drops) {
        let links = self.cluster(&Counters::new()).links;
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

/// Lets other nodes see what the control socket shows.
fn answering(service: Service, config: &Config) -> Result<Service, ClusterError> {
    let socket = config.daemon.socket.clone();
    service.answer_with(move |path| client::answer(&socket, path))?;
    Ok(service)
}

fn failure(why: ClusterError) -> Error {
    Error::new(format!("cluster: {why}"))
}

fn no_cluster() -> Error {
    Error::new("this router belongs to no cluster").hint("the configuration has no [cluster]")
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

/// What the balancers of all workers have done, by name; empty without workers.
fn balanced(counters: &Counters) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (name, value) in counters {
        if let (Scope::Balancer { .. }, name) = Scope::parse(name)
            && BalancingCounter::NAMES.contains(&name)
        {
            *sums.entry(name.to_string()).or_default() += value;
        }
    }
    sums
}

fn balancing_name(mode: Mode) -> &'static str {
    match mode {
        Mode::DirectOnly => "direct",
        Mode::DirectVlb(_) => "vlb",
        Mode::Classic => "classic",
    }
}

/// Frames and bytes that workers have sent through a fabric link.
fn sent(counters: &Counters, device: &str) -> (u64, u64) {
    let (mut frames, mut bytes) = (0, 0);
    for (name, value) in counters {
        let (Scope::Link { link, .. }, counter) = Scope::parse(name) else { continue };
        let to = link.rsplit_once("-> ").and_then(|(_, to)| to.rsplit_once('.'));
        if to.is_none_or(|(port, _)| port != device) {
            continue;
        }
        match counter {
            "txpackets" => frames += value,
            "txbytes" => bytes += value,
            _ => {}
        }
    }
    (frames, bytes)
}

fn store(view: StoreView) -> bm_api::ClusterStore {
    bm_api::ClusterStore {
        endpoint: view.endpoint,
        connected: view.is_connected,
        trouble: view.trouble,
        registered: view.registered.iter().map(registered_node).collect(),
        other_key: view.other_key,
    }
}

fn registered_node(node: &bm_cluster::Registration) -> bm_api::RegisteredNode {
    bm_api::RegisteredNode {
        name: node.name.clone(),
        node: node.node.number(),
        epoch: node.epoch.number(),
        ports: node.ports.iter().map(|port| (port.device.clone(), port.number.number())).collect(),
    }
}

fn link(view: &LinkView, workers: &Counters) -> FabricLink {
    let (sent, sent_bytes) = sent(workers, &view.device);
    let counters = &view.counters;
    let drops = counters.drops().filter(|(_, frames)| *frames > 0);
    let state = match view.state {
        None => "missing",
        Some(State::Up) => "up",
        Some(State::NoDaemon) => "no-daemon",
        Some(State::NoProgram) => "no-program",
        Some(State::Down) => "down",
    };
    FabricLink {
        device: view.device.clone(),
        peer: view.peer.clone(),
        node: view.node,
        state: state.into(),
        trouble: view.trouble.clone(),
        sent,
        sent_bytes,
        timeout_us: view.timeout_ns / 1000,
        failures: view.failures,
        drained: view.is_drained,
        epoch: view.epoch,
        from_peer: view.carried.map(|carried| bm_api::Carried {
            sent: carried.sent,
            arrived: carried.arrived,
            lost: carried.lost,
        }),
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
            .filter(|(name, _)| !name.starts_with("drop_") && *name != "received_bytes")
            .map(|(name, frames)| (name.into(), frames))
            .collect(),
    }
}
