//! A node of a cluster: it announces its own neighbors to other nodes, and adds theirs to Linux.
//!
//! ```text
//! Linux: neighbors, addresses of external ports ──► indices ──► map `neighbors` of the program
//!                                                     └──► announced to all other nodes
//! announcements of other nodes ──► routes and permanent neighbors on fabric links, in Linux
//! ```

mod asking;
mod change;
mod interfaces;
mod neighbors;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bm_bpf::{PinnedLink, Pins};
use bm_sys::Interfaces;
use bm_vlb::address::{Destination, Node, Source};
use bm_vlb::published::PublishedPeers;
use bm_wire::ethernet::Mac;

use crate::confirm::Confirmations;
use crate::error::ClusterError;
use crate::fabric_end::{FabricEnd, detour_of, fabric_ends, ways_of};
use crate::indices::Indices;
use crate::kernel;
use crate::layout::{Neighbor, PORT_MESSAGE};
use crate::local::{Local, LocalPort};
use crate::message::{self, ETHERNET, Entry, Epochs, Key, MessageError};
use crate::neighbor::LocalNeighbor;
use crate::neighbor_map::{inherited, to_layout};
use crate::on_link::OwnRoutes;
use crate::pins;
use crate::probe;
use crate::prober::{Prober, Sender};
use crate::program::Program;
use crate::questions::{Answers, Question};
use crate::remote::{Objects, RemoteNode};
use crate::settings::Settings;
use crate::solicit::Solicitations;
use crate::view::ClusterView;
use crate::ways::Ways;

/// How often hellos are sent.
pub const TICK_NS: u64 = 100_000_000;
/// The shortest time between two updates from Linux's tables: neighbors may change all the time.
const UPDATE_INTERVAL_NS: u64 = 20_000_000;
/// How often other nodes get the number of frames that were sent to them.
const COUNTS_NS: u64 = 1_000_000_000;
/// How often Linux's tables are read without an event, and neighbors in use are confirmed.
const POLL_NS: u64 = 5_000_000_000;
/// How long after the start routes of an earlier daemon are kept although their node has not announced them yet, or not yet
/// sent a probe back.
const GRACE_NS: u64 = 5_000_000_000;

pub use asking::NodeRequest;

/// This node.
pub struct Cluster {
    settings: Settings,
    own: Node,
    epochs: Epochs,
    /// Gives random numbers.
    nonce: fn() -> u64,
    key: Key,
    program: Program,
    interfaces: Interfaces,
    pins: Option<Pins>,
    /// Links of an earlier daemon that were not taken over yet.
    earlier_links: Vec<PinnedLink>,
    links: Vec<FabricEnd>,
    /// Interfaces of links to nodes that are no members any more, whose routes and neighbors have to go.
    left: BTreeSet<u32>,
    prober: Prober,
    indices: Indices,
    ways: Ways,
    local: Local,
    ports: Vec<LocalPort>,
    /// Which neighbors of external ports have answered, and those that are announced.
    confirmations: Confirmations,
    neighbors: Vec<LocalNeighbor>,
    /// What asks hosts on external ports, by interface.
    solicitations: BTreeMap<u32, Solicitations>,
    is_over_limit: bool,
    own_routes: OwnRoutes,
    routes_ns: u64,
    /// When an address that is not on-link by `own_routes` is looked at again.
    recheck_ns: Option<u64>,
    entries: Vec<Entry>,
    /// The version of `entries`.
    version: u64,
    routes: usize,
    notes: Vec<String>,
    started_ns: u64,
    tick_ns: u64,
    counts_ns: u64,
    poll_ns: u64,
    updated_ns: u64,
    /// The first change that Linux rejected, as logged last.
    rejected: String,
    /// Other nodes must not use this one as intermediate.
    drained: bool,
    /// Linux's tables have changed, or the announcements of other nodes.
    changed: bool,
    kept: bool,
    /// Questions of this node that are not answered yet, by number; and its answers to others.
    questions: BTreeMap<u64, Question>,
    answers: Answers,
    /// To the thread that answers.
    asked: Option<std::sync::mpsc::Sender<asking::NodeRequest>>,
}

impl Cluster {
    /// Loads the program and attaches it to the interfaces of fabric links that exist. `nonce` gives random numbers.
    ///
    /// # Errors
    /// If the settings or the key are invalid, or the kernel rejects the program. An interface that cannot be used is no
    /// error; see [`Self::view`].
    pub fn open(settings: Settings, now_ns: u64, nonce: fn() -> u64) -> Result<Self, ClusterError> {
        if let Some(problem) = settings.problems().first() {
            return Err(ClusterError::Settings(problem.to_string()));
        }
        let own = settings.own().ok_or_else(|| ClusterError::Settings("this node is not a member".into()))?;
        let key = probe::read_key(&settings.key_file)?;
        let interfaces =
            Interfaces::open().map_err(bm_bpf::Error::system("opening a socket to query interfaces"))?;
        let mut notes = Vec::new();
        let pins = pins::claim()
            .map_err(|why| notes.push(format!("the fabric program stops when the daemon ends: {why}")))
            .ok();
        let earlier_links = pins.as_ref().map(Pins::links).unwrap_or_default();
        let program = Program::load(&earlier_links)?;
        let (indices, epochs) = inherited(&program, settings.epoch, own, key.clone())?;
        let confirmations = Confirmations::new(own, indices.iter().map(|(neighbor, _)| *neighbor));
        let links = fabric_ends(&settings, own, epochs, nonce);
        let sender = Sender { key: key.clone(), epoch: settings.epoch, from: own_mac(own) };
        let prober = Prober::start(sender)?;
        let ways = Ways::new(settings.room(), settings.flowlet_gap_us.map(|us| u64::from(us) * 1000));
        let mut cluster = Self {
            settings,
            own,
            epochs,
            nonce,
            key,
            program,
            interfaces,
            pins,
            earlier_links,
            links,
            left: BTreeSet::new(),
            prober,
            indices,
            ways,
            local: Local::default(),
            ports: Vec::new(),
            confirmations,
            neighbors: Vec::new(),
            solicitations: BTreeMap::new(),
            is_over_limit: false,
            own_routes: OwnRoutes::default(),
            routes_ns: 0,
            recheck_ns: None,
            entries: Vec::new(),
            version: 0,
            routes: 0,
            notes,
            started_ns: now_ns,
            tick_ns: now_ns,
            counts_ns: now_ns,
            poll_ns: now_ns,
            updated_ns: 0,
            rejected: String::new(),
            drained: false,
            changed: true,
            kept: false,
            questions: BTreeMap::new(),
            answers: Answers::default(),
            asked: None,
        };
        cluster.publish_links();
        cluster.set_members()?;
        cluster.update(now_ns)?;
        cluster.mark_missing_links()?;
        for pinned in cluster.earlier_links.drain(..).filter(pins::is_ours) {
            pinned.remove();
        }
        Ok(cluster)
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What the balancers of workers go by.
    pub fn peers(&self) -> Arc<PublishedPeers> {
        Arc::clone(self.ways.published())
    }

    /// Notes for `status`.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Notes an event of Linux: its tables are read again with the next step.
    pub(crate) fn note_linux_event(&mut self) {
        self.changed = true;
    }

    /// Asks other nodes to send nothing over this one any more, or to do so again.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn set_drained(&mut self, drained: bool, now_ns: u64) -> Result<(), ClusterError> {
        if self.drained != drained {
            (self.drained, self.changed, self.updated_ns) = (drained, true, 0);
        }
        self.step(now_ns)
    }

    /// Whether other nodes must not use this one as intermediate.
    pub fn is_drained(&self) -> bool {
        self.drained
    }

    /// The nodes whose daemon runs, but has not yet confirmed our last announcement.
    pub(crate) fn unconfirmed(&self, now_ns: u64) -> Vec<String> {
        self.links
            .iter()
            .filter(|link| link.session.lacks(self.version, now_ns))
            .map(|link| link.peer.clone())
            .collect()
    }

    /// The descriptors that messages arrive at.
    pub fn descriptors(&self) -> Vec<std::os::fd::RawFd> {
        use std::os::fd::{AsFd, AsRawFd};
        let attached = self.links.iter().filter_map(|link| link.attached.as_ref());
        let sockets = attached.map(|attached| attached.socket.as_fd());
        let hosts = self.solicitations.values().flat_map(Solicitations::descriptors);
        sockets.chain(hosts).chain([self.prober.changed().fd()]).map(|fd| fd.as_raw_fd()).collect()
    }

    /// When [`Self::step`] is due even if nothing arrives.
    pub(crate) fn due_ns(&self) -> u64 {
        let update = self.changed.then_some(self.updated_ns + UPDATE_INTERVAL_NS);
        [update, self.hosts_due_ns()].into_iter().flatten().fold(self.tick_ns, u64::min)
    }

    /// Reads messages that have arrived, sends those that are due, and updates Linux.
    ///
    /// # Errors
    /// If the kernel rejects something; the next step tries again.
    pub fn step(&mut self, now_ns: u64) -> Result<(), ClusterError> {
        self.observe();
        for at in 0..self.links.len() {
            self.receive(at, now_ns);
        }
        self.log_changes(now_ns);
        self.ask_hosts(now_ns);
        self.changed |= self.must_recheck(now_ns);
        // At once: updating Linux's tables may take longer.
        self.ways.publish(ways_of(&self.links));
        let is_due = self.changed && now_ns >= self.updated_ns + UPDATE_INTERVAL_NS || now_ns >= self.poll_ns;
        let done = if is_due { self.update(now_ns) } else { Ok(()) };
        if now_ns >= self.tick_ns {
            self.tick_ns = now_ns + TICK_NS;
            (0..self.links.len()).for_each(|at| self.send(at, now_ns));
            if now_ns >= self.counts_ns && !self.settings.relays {
                self.counts_ns = now_ns + COUNTS_NS;
                self.send_counts();
            }
        }
        // What was detached or has appeared.
        self.ways.publish(ways_of(&self.links));
        done
    }

    /// Notes which links are alive.
    fn observe(&mut self) {
        self.prober.changed().clear();
        for link in &mut self.links {
            self.changed |= link.session.set_answers(link.observed().is_alive);
        }
        self.ways.measured(self.prober.gap_ns());
    }

    fn receive(&mut self, at: usize, now_ns: u64) {
        let mut buffer = [0; 2048];
        while let Some(frame) =
            self.links[at].attached.as_ref().and_then(|attached| attached.socket.receive(&mut buffer))
        {
            let Some((header, body)) = frame.split_at_checked(ETHERNET) else { continue };
            let Some(to) = header.first_chunk::<6>().and_then(|to| Destination::parse(Mac(*to)).ok()) else {
                continue;
            };
            let session = &mut self.links[at].session;
            self.changed |= match to.port.number() {
                PORT_MESSAGE => match message::read(body, &self.key) {
                    Ok(message) => session.receive(message, now_ns),
                    Err(MessageError::Key) => {
                        session.refuse_key(now_ns);
                        false
                    }
                    Err(MessageError::Malformed) => false,
                },
                _ => false,
            };
            for contents in self.links[at].session.take_inbox() {
                self.handle(at, contents, now_ns);
            }
        }
    }

    fn send(&mut self, at: usize, now_ns: u64) {
        let own = own_mac(self.own);
        let FabricEnd { session, attached: Some(attached), .. } = &mut self.links[at] else { return };
        let peer = session.peer();
        let mut messages = session.hellos(self.version, now_ns);
        messages.extend(session.announcement(self.version, &self.entries, now_ns));
        // Lost frames do no harm: the next tick sends again, until the other end has this version.
        for message in &messages {
            attached.socket.send(&message::frame(message, &self.key, own, peer));
        }
    }

    /// Logs changes of links; routes are updated when the state of one has changed.
    fn log_changes(&mut self, now_ns: u64) {
        for link in &mut self.links {
            self.changed |= link.log_change(now_ns);
        }
    }

    /// Updates the program's maps, the announcement, and Linux's routes and neighbors.
    fn update(&mut self, now_ns: u64) -> Result<(), ClusterError> {
        let failed =
            |step| move |error: bm_netlink::Error| bm_bpf::Error::System { step, error: error.into() };
        self.updated_ns = now_ns;
        self.local = Local::read().map_err(failed("reading interfaces, addresses and neighbors"))?;
        self.update_interfaces();
        let ports = self.local.ports(&self.settings);
        if ports != self.ports || self.version == 0 {
            self.ports = ports;
            self.set_ports()?;
        }
        self.update_neighbors(now_ns).map_err(failed("reading routes"))?;
        self.write_indices(now_ns)?;
        let mut entries = self.local.entries(&self.ports, &self.neighbors, &self.indices);
        let unusable = self.links.iter().filter(|link| !link.is_usable());
        entries.extend(unusable.map(|link| Entry::NoLink(link.session.peer().number())));
        entries.extend(self.drained.then_some(Entry::Drained));
        entries.extend(self.claims());
        if entries != self.entries || self.version == 0 {
            (self.entries, self.version) = (entries, self.version + 1);
            self.tick_ns = now_ns;
        }
        self.indices.announced(self.version);
        self.update_linux(now_ns).map_err(failed("changing routes and neighbors"))?;
        self.links.iter_mut().for_each(|link| link.session.set_applied());
        if now_ns >= self.poll_ns {
            self.poll_ns = now_ns + POLL_NS;
            self.confirm_used_neighbors().map_err(failed("confirming neighbors"))?;
        }
        self.changed = false;
        Ok(())
    }

    /// Writes to the program which index is which neighbor.
    fn write_indices(&mut self, now_ns: u64) -> Result<(), ClusterError> {
        let confirmed = self.links.iter().map(|link| link.session.confirmed()).min().unwrap_or(0);
        let mut changes = self.indices.confirmed(confirmed, now_ns);
        changes.extend(self.indices.set(&self.neighbors));
        for (index, neighbor) in changes {
            let neighbor = neighbor.map_or_else(Neighbor::default, |neighbor| to_layout(index, &neighbor));
            self.program.set_neighbor(index.number, &neighbor)?;
        }
        Ok(())
    }

    /// Adds the announcements of other nodes to Linux, and removes what they no longer announce.
    fn update_linux(&mut self, now_ns: u64) -> Result<(), bm_netlink::Error> {
        let mut wanted = Objects::default();
        let is_ours = |prefix| self.is_ours(prefix);
        let mut announced = Vec::new();
        let (mut all, mut kept) = (self.left.clone(), BTreeSet::new());
        for link in &self.links {
            let Some(attached) = &link.attached else { continue };
            let (node, ifindex) = (link.session.peer(), attached.ifindex);
            all.insert(ifindex);
            if !link.session.is_known() && now_ns < self.started_ns + GRACE_NS {
                kept.insert(ifindex);
            }
            let detour = detour_of(&self.links, link);
            let remote = RemoteNode { node, ifindex, mtu: link.mtu, epoch: link.session.peer_epoch() };
            match detour.filter(|_| self.settings.uses_intermediates()) {
                Some((ifindex, mtu)) => {
                    announced.push((RemoteNode { ifindex, mtu, ..remote }, link.session.announced()));
                }
                None => announced.push((remote, link.session.entries())),
            }
        }
        let present = kernel::present(&all)?;
        // If two nodes announce the same, the one that is in use stays.
        announced.iter().for_each(|(remote, entries)| wanted.add(remote, entries, is_ours, Some(&present)));
        announced.iter().for_each(|(remote, entries)| wanted.add(remote, entries, is_ours, None));
        self.routes = wanted.routes.len();
        if present == wanted {
            self.left.clear();
            return Ok(());
        }
        let outcome = kernel::change(&present, &wanted, |ifindex| kept.contains(&ifindex))?;
        let rejected = outcome.first.first().map(|refusal| refusal.error.to_string()).unwrap_or_default();
        if rejected != self.rejected && !rejected.is_empty() {
            tracing::warn!(
                count = outcome.refused,
                "Linux rejected routes or neighbors of the cluster: {rejected}"
            );
        }
        self.rejected = rejected;
        self.left.clear();
        Ok(())
    }

    /// Asks Linux to confirm neighbors that frames were sent to.
    fn confirm_used_neighbors(&self) -> Result<(), bm_netlink::Error> {
        let stale = self.indices.iter().filter(|(neighbor, _)| self.local.needs_use(neighbor));
        let used = stale.filter(|(_, index)| self.program.take_used(index.number));
        let used: Vec<_> = used.map(|(neighbor, _)| (neighbor.ifindex, neighbor.address)).collect();
        if used.is_empty() { Ok(()) } else { kernel::confirm(&used) }
    }

    /// The node as it is now.
    pub fn view(&self, now_ns: u64) -> ClusterView {
        let links = self.links.iter().map(|link| {
            let attached = link.attached.as_ref();
            let counters = attached.and_then(|attached| self.program.counters(attached.ifindex));
            link.view(counters.unwrap_or_default(), now_ns)
        });
        ClusterView {
            name: self.settings.name.clone(),
            node: self.own.number(),
            epoch: self.settings.epoch.number(),
            not_members: self.not_members(),
            members: self.settings.members.len(),
            neighbors: self.neighbors.len() - self.indices.without,
            without_index: self.indices.without,
            routes: self.routes,
            is_drained: self.drained,
            flowlet_gap_ns: self.ways.gap_ns(),
            links: links.collect(),
        }
    }

    /// Whether [`Self::keep`] was called.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// Leaves the program, routes and neighbors in place when this is dropped.
    ///
    /// # Errors
    /// If the program is not pinned.
    pub fn keep(&mut self) -> Result<(), ClusterError> {
        if self.pins.is_none() {
            return Err(bm_bpf::Error::NotPinned.into());
        }
        self.kept = true;
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let attached: Vec<_> = self.links.iter_mut().filter_map(|link| link.attached.take()).collect();
        let all = attached.iter().map(|attached| attached.ifindex).collect();
        if let Err(error) = kernel::remove(&all) {
            tracing::warn!(%error, "routes to other nodes of the cluster could not be removed");
        }
        attached.into_iter().for_each(|attached| attached.detach(&self.interfaces));
    }
}

/// The MAC of all fabric interfaces of a node: the source address of frames that it sends directly to their output node.
fn own_mac(own: Node) -> Mac {
    Source { input: own, via: None, sample: None }.mac()
}
