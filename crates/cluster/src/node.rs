//! A node of a cluster: what it knows of Linux and of other nodes, and what follows from that.
//!
//! ```text
//! Linux: neighbors, addresses of external ports ──► indices ──► map `neighbors` of the program
//!                                                     └──► told to all other nodes
//! other nodes: what they have told ──► routes and permanent neighbors on fabric links, in Linux
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;

use bm_bpf::PinnedLink;
use bm_sys::Interfaces;
use bm_vlb::address::{Destination, Node, Source};
use bm_wire::ethernet::Mac;

use crate::error::ClusterError;
use crate::fabric::{Joined, Taking};
use crate::given::{GONE, inherited, to_layout};
use crate::indices::{Indices, Meaning};
use crate::kernel;
use crate::layout::{NO_INTERFACE, PORT_MESSAGE, PORT_PROBE_REPLY};
use crate::local::{Local, LocalPort};
use crate::message::{self, ETHERNET, Entry, Key, Unread};
use crate::pins::{self, Pins};
use crate::probe;
use crate::program::Program;
use crate::remote::{Far, Objects};
use crate::session::{Refused, Session, State};
use crate::settings::{FabricLink, Settings};
use crate::view::{ClusterView, LinkView, of_state, refusal};

/// How often hellos and probes are sent.
pub const TICK_NS: u64 = 100_000_000;
/// The shortest time between two looks at Linux: neighbors may change all the time.
const PAUSE_NS: u64 = 20_000_000;
/// How often Linux is looked at although it has sent no event, and neighbors in use are confirmed.
const LOOK_NS: u64 = 5_000_000_000;
/// How long after the start the routes that an earlier daemon has left stay, although their node has not told of them yet.
const GRACE_NS: u64 = 5_000_000_000;

/// One link to another node.
struct FabricEnd {
    device: String,
    peer: String,
    session: Session,
    joined: Option<Joined>,
    mtu: u32,
    /// Why the interface cannot be used.
    trouble: Option<String>,
    /// What was logged last.
    said: (Option<State>, Option<Refused>),
}

/// This node.
pub struct Cluster {
    settings: Settings,
    own: Node,
    key: Key,
    program: Program,
    interfaces: Interfaces,
    pins: Option<Pins>,
    left: Vec<PinnedLink>,
    links: Vec<FabricEnd>,
    indices: Indices,
    local: Local,
    ports: Vec<LocalPort>,
    meanings: Vec<Meaning>,
    entries: Vec<Entry>,
    /// The version of `entries`.
    version: u64,
    routes: usize,
    notes: Vec<String>,
    started_ns: u64,
    tick_ns: u64,
    look_ns: u64,
    updated_ns: u64,
    /// What Linux refused, as logged last.
    refused: String,
    /// Linux has changed, or what other nodes have told.
    changed: bool,
    kept: bool,
}

impl Cluster {
    /// Loads the program and attaches it to the interfaces of fabric links that exist. `nonce` gives random numbers.
    ///
    /// # Errors
    /// What is wrong with the settings or the key, or what the kernel refused. An interface that cannot be used is no
    /// error; see [`Self::view`].
    pub fn open(settings: Settings, now_ns: u64, nonce: impl FnMut() -> u64) -> Result<Self, ClusterError> {
        if let Some(problem) = settings.problems().first() {
            return Err(ClusterError::Settings(problem.to_string()));
        }
        let own = settings.own().ok_or_else(|| ClusterError::Settings("this node is no member".into()))?;
        let key = probe::read_key(&settings.key_file)?;
        let interfaces =
            Interfaces::open().map_err(ClusterError::system("opening a socket to query interfaces"))?;
        let mut notes = Vec::new();
        let pins = Pins::claim()
            .map_err(|why| notes.push(format!("the fabric program will end with the daemon: {why}")))
            .ok();
        let left = pins.as_ref().map(Pins::links).unwrap_or_default();
        let program = Program::load(&left)?;
        let links = ends(&settings, own, nonce);
        let indices = inherited(&program, settings.epoch, own)?;
        let mut cluster = Self {
            settings,
            own,
            key,
            program,
            interfaces,
            pins,
            left,
            links,
            indices,
            local: Local::default(),
            ports: Vec::new(),
            meanings: Vec::new(),
            entries: Vec::new(),
            version: 0,
            routes: 0,
            notes,
            started_ns: now_ns,
            tick_ns: now_ns,
            look_ns: now_ns,
            updated_ns: 0,
            refused: String::new(),
            changed: true,
            kept: false,
        };
        cluster.place_links()?;
        cluster.update(now_ns)?;
        for pinned in cluster.left.drain(..).filter(pins::is_ours) {
            pinned.remove();
        }
        Ok(cluster)
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What the operator should know.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Sets the link to each node for which there is none yet.
    fn place_links(&self) -> Result<(), ClusterError> {
        for node in (0..Node::COUNT).filter_map(Node::new) {
            let is_member = self.links.iter().any(|link| link.session.peer() == node);
            self.program.set_link(node, if is_member { NO_INTERFACE } else { 0 })?;
        }
        Ok(())
    }

    /// Notes that Linux has changed.
    pub fn touch(&mut self) {
        self.changed = true;
    }

    /// The descriptors that messages arrive at.
    pub fn descriptors(&self) -> Vec<std::os::fd::RawFd> {
        use std::os::fd::{AsFd, AsRawFd};
        let joined = self.links.iter().filter_map(|link| link.joined.as_ref());
        joined.map(|joined| joined.socket.as_fd().as_raw_fd()).collect()
    }

    /// When [`Self::step`] has something to do without news.
    pub fn due_ns(&self) -> u64 {
        if self.changed { self.tick_ns.min(self.updated_ns + PAUSE_NS) } else { self.tick_ns }
    }

    /// Reads what has arrived, sends what is due, and brings Linux up to date.
    ///
    /// # Errors
    /// What the kernel said; it is tried again with the next step.
    pub fn step(&mut self, now_ns: u64) -> Result<(), ClusterError> {
        for at in 0..self.links.len() {
            self.receive(at, now_ns);
        }
        let is_due = self.changed && now_ns >= self.updated_ns + PAUSE_NS || now_ns >= self.look_ns;
        let done = if is_due { self.update(now_ns) } else { Ok(()) };
        if now_ns >= self.tick_ns {
            self.tick_ns = now_ns + TICK_NS;
            (0..self.links.len()).for_each(|at| self.send(at, now_ns));
        }
        self.watch(now_ns);
        done
    }

    fn receive(&mut self, at: usize, now_ns: u64) {
        let mut buffer = [0; 2048];
        while let Some(frame) =
            self.links[at].joined.as_ref().and_then(|joined| joined.socket.receive(&mut buffer))
        {
            let Some((header, body)) = frame.split_at_checked(ETHERNET) else { continue };
            let Some(to) = header.first_chunk::<6>().and_then(|to| Destination::parse(Mac(*to)).ok()) else {
                continue;
            };
            let session = &mut self.links[at].session;
            self.changed |= match to.port.number() {
                PORT_MESSAGE => match message::read(body, &self.key) {
                    Ok(message) => session.receive(message, now_ns),
                    Err(Unread::Key) => {
                        session.refuse(Refused::Key, now_ns);
                        false
                    }
                    Err(Unread::Form) => false,
                },
                PORT_PROBE_REPLY => probe::read(body, &self.key, session.nonce(), now_ns)
                    .is_some_and(|round_trip_ns| session.probed(round_trip_ns, now_ns)),
                _ => false,
            };
        }
    }

    fn send(&mut self, at: usize, now_ns: u64) {
        let (own, epoch) = (own_mac(self.own), self.settings.epoch);
        let FabricEnd { session, joined: Some(joined), .. } = &mut self.links[at] else { return };
        let peer = session.peer();
        let hello = session.hello(self.version);
        let mut messages = session.news(self.version, &self.entries, now_ns);
        messages.push(hello);
        // In the order of their numbers.
        messages.sort_by_key(|message| message.sequence);
        // A frame that is lost is sent again: until the other end has this version, and with the next tick.
        joined.socket.send(&probe::frame(epoch, own, peer, &self.key, session.nonce(), now_ns));
        for message in &messages {
            joined.socket.send(&message::frame(message, &self.key, own, peer));
        }
    }

    /// Logs changes of links, and notes that routes have to follow.
    fn watch(&mut self, now_ns: u64) {
        for link in &mut self.links {
            let state = link.joined.is_some().then(|| link.session.state(now_ns));
            let refused = link.session.refused(now_ns).cloned();
            let said = (state, refused);
            if said == link.said {
                continue;
            }
            self.changed |= said.0 != link.said.0;
            let (device, peer) = (&link.device, &link.peer);
            match &said {
                (_, Some(why)) => tracing::warn!("fabric link {device} to {peer}: {}", refusal(why, peer)),
                (Some(State::Up), None) => tracing::info!("fabric link {device}: {peer} is up"),
                (Some(state), None) => tracing::warn!("fabric link {device} to {peer}: {}", of_state(*state)),
                (None, None) => {}
            }
            link.said = said;
        }
    }

    /// Brings the program, what others are told, and Linux up to date.
    fn update(&mut self, now_ns: u64) -> Result<(), ClusterError> {
        let failed =
            |step| move |error: bm_netlink::Error| ClusterError::System { step, error: error.into() };
        self.updated_ns = now_ns;
        self.local = Local::read().map_err(failed("reading interfaces, addresses and neighbors"))?;
        self.follow_interfaces();
        self.ports = self.local.ports(&self.settings);
        self.meanings = self.local.meanings(&self.ports);
        for (index, meaning) in self.indices.set(&self.meanings, now_ns) {
            let neighbor = meaning.map_or(GONE, |meaning| to_layout(&meaning));
            self.program.set_neighbor(index, &neighbor)?;
        }
        let entries = self.local.entries(&self.ports, &self.meanings, &self.indices);
        if entries != self.entries || self.version == 0 {
            (self.entries, self.version) = (entries, self.version + 1);
            self.tick_ns = now_ns;
        }
        self.follow_others(now_ns).map_err(failed("changing routes and neighbors"))?;
        if now_ns >= self.look_ns {
            self.look_ns = now_ns + LOOK_NS;
            self.keep_fresh().map_err(failed("confirming neighbors"))?;
        }
        self.changed = false;
        Ok(())
    }

    /// Takes interfaces of fabric links that have appeared, and lets go of those that are gone.
    fn follow_interfaces(&mut self) {
        for link in &mut self.links {
            let now = self.local.link(&link.device);
            let ifindex = now.map(|now| now.ifindex);
            let peer = link.session.peer();
            if let Some(joined) = link.joined.take_if(|joined| Some(joined.ifindex) != ifindex) {
                let _gone = self.program.count(joined.ifindex, false);
                let _never_fails = self.program.set_link(peer, NO_INTERFACE);
                joined.leave(&self.interfaces);
            }
            let Some(now) = now else {
                link.trouble = Some(format!("there is no interface {}", link.device));
                continue;
            };
            link.mtu = now.mtu;
            if link.joined.is_some() {
                continue;
            }
            let mut taking = Taking {
                interfaces: &self.interfaces,
                program: &mut self.program,
                pins: self.pins.as_ref(),
                left: &mut self.left,
                own: own_mac(self.own).0,
            };
            let entered = Joined::enter(&mut taking, now).and_then(|joined| {
                self.program.set_link(peer, joined.ifindex)?;
                Ok(joined)
            });
            match entered {
                Ok(joined) => (link.joined, link.trouble) = (Some(joined), None),
                Err(why) => {
                    let why = why.to_string();
                    if link.trouble.as_ref() != Some(&why) {
                        tracing::warn!("fabric link {} cannot be used: {why}", link.device);
                    }
                    link.trouble = Some(why);
                }
            }
        }
    }

    /// Makes Linux have what other nodes have told.
    fn follow_others(&mut self, now_ns: u64) -> Result<(), bm_netlink::Error> {
        let mut wanted = Objects::default();
        let is_ours = |address: IpAddr| self.local.has(address, &self.meanings);
        let mut ends: Vec<_> = self.links.iter().collect();
        ends.sort_by_key(|link| link.session.peer());
        let (mut all, mut stay) = (BTreeSet::new(), BTreeSet::new());
        for link in ends {
            let Some(joined) = &link.joined else { continue };
            let (node, ifindex) = (link.session.peer(), joined.ifindex);
            all.insert(ifindex);
            if !link.session.has_told() && now_ns < self.started_ns + GRACE_NS {
                stay.insert(ifindex);
            }
            let far = Far { node, ifindex, mtu: link.mtu, epoch: self.settings.epoch };
            wanted.add(&far, link.session.entries(now_ns), is_ours);
        }
        let present = kernel::present(&all)?;
        self.routes = wanted.routes.len();
        if present == wanted {
            return Ok(());
        }
        let outcome = kernel::change(&present, &wanted, |ifindex| stay.contains(&ifindex))?;
        let refused = outcome.first.first().map(|refusal| refusal.error.to_string()).unwrap_or_default();
        if refused != self.refused && !refused.is_empty() {
            tracing::warn!(
                count = outcome.refused,
                "Linux refuses routes or neighbors of the cluster: {refused}"
            );
        }
        self.refused = refused;
        Ok(())
    }

    /// Asks Linux to confirm neighbors that frames were sent to.
    fn keep_fresh(&self) -> Result<(), bm_netlink::Error> {
        let wanting = self.indices.iter().filter(|(meaning, _)| self.local.needs_use(meaning));
        let used = wanting.filter(|(_, index)| self.program.take_used(*index));
        let used: Vec<_> = used.map(|(meaning, _)| (meaning.ifindex, meaning.address)).collect();
        if used.is_empty() { Ok(()) } else { kernel::confirm(&used) }
    }

    /// The node as it is now.
    pub fn view(&self, now_ns: u64) -> ClusterView {
        let link = |link: &FabricEnd| {
            let refused = link.session.refused(now_ns).map(|why| refusal(why, &link.peer));
            LinkView {
                device: link.device.clone(),
                peer: link.peer.clone(),
                node: link.session.peer().number(),
                state: link.joined.is_some().then(|| link.session.state(now_ns)),
                trouble: link.trouble.clone().or(refused),
                round_trip_ns: link.session.round_trip_ns,
                counters: link
                    .joined
                    .as_ref()
                    .and_then(|joined| self.program.counters(joined.ifindex))
                    .unwrap_or_default(),
            }
        };
        ClusterView {
            name: self.settings.name.clone(),
            node: self.own.number(),
            epoch: self.settings.epoch.number(),
            members: self.settings.members.len(),
            neighbors: self.meanings.len() - self.indices.without,
            without_index: self.indices.without,
            routes: self.routes,
            links: self.links.iter().map(link).collect(),
        }
    }

    /// Keeps program, routes and neighbors when this is dropped.
    ///
    /// # Errors
    /// If the program is not pinned.
    pub fn keep(&mut self) -> Result<(), ClusterError> {
        if self.pins.is_none() {
            return Err(ClusterError::NotPinned);
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
        let joined: Vec<_> = self.links.iter_mut().filter_map(|link| link.joined.take()).collect();
        let all = joined.iter().map(|joined| joined.ifindex).collect();
        if let Err(error) = kernel::remove(&all) {
            tracing::warn!(%error, "routes to other nodes of the cluster could not be removed");
        }
        joined.into_iter().for_each(|joined| joined.leave(&self.interfaces));
    }
}

/// The links of these settings; none has an interface yet.
fn ends(settings: &Settings, own: Node, mut nonce: impl FnMut() -> u64) -> Vec<FabricEnd> {
    let end = |link: &FabricLink| {
        let peer = settings.member(&link.peer)?.node;
        let session = Session::new(own, &settings.name, peer, settings.epoch, nonce().max(1));
        let (device, peer) = (link.device.clone(), link.peer.clone());
        Some(FabricEnd { device, peer, session, joined: None, mtu: 0, trouble: None, said: (None, None) })
    };
    settings.links.iter().filter_map(end).collect()
}

/// The MAC of all fabric interfaces of a node: the source address of frames that it sends straight to their output node.
fn own_mac(own: Node) -> Mac {
    Source { input: own, via: None, sample: None }.mac()
}
