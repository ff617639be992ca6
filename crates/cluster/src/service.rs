//! A node with the thread that keeps it up to date.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use bm_netlink::link::LinkEvents;
use bm_sys::{Mutex, URGENT, set_nice};
use bm_vlb::published::PublishedPeers;

use crate::clock::now_ns;
use crate::error::ClusterError;
use crate::node::Cluster;
use crate::probe;
use crate::settings::Settings;
use crate::store::{Admitted, Remover, Store};
use crate::view::{ClusterView, StoreView};

/// The longest wait.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// How long one round may take, with thousands of routes to other nodes.
const SILENT_MAX: Duration = Duration::from_secs(10);
/// How long to collect events before handling them: they often come in groups.
const GATHER: Duration = Duration::from_millis(2);

/// How long other nodes may take to confirm that this one is drained, and when it ends.
const CONFIRM_MAX: Duration = Duration::from_secs(5);
const CONFIRM_AT_END: Duration = Duration::from_millis(500);
/// How long frames are on their way that were sent before that, at least.
const ON_THE_WAY: Duration = Duration::from_millis(20);

/// A running node. It ends when this is dropped, unless [`Service::keep`] was called.
pub struct Service {
    /// As configured: with a store, the members come from there.
    configured: Settings,
    pub(crate) cluster: Arc<Mutex<Cluster>>,
    store: Option<Store>,
    /// Closing it ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts a node in this thread's network namespace.
    ///
    /// # Errors
    /// If the settings are invalid, the store does not admit this node, or the kernel rejects the program.
    pub fn start(configured: Settings) -> Result<Self, ClusterError> {
        let (settings, admitted) = admitted(&configured)?;
        let failed = bm_bpf::Error::system("subscribing to events of interfaces and neighbors");
        // Subscribed before the first dump, so that no change in between is missed.
        let mut events = LinkEvents::listen_with_neighbors().map_err(|error| failed(error.into()))?;
        let (stop, stopped) = UnixStream::pair().map_err(&failed)?;
        let cluster = Arc::new(Mutex::new(Cluster::open(settings, now_ns(), random)?));
        let shared = Arc::clone(&cluster);
        let thread = std::thread::Builder::new()
            .name("bm-cluster".into())
            .spawn(move || run(&shared, &mut events, &stopped))
            .map_err(&failed)?;
        let mut service = Self { configured, cluster, store: None, stop: Some(stop), thread: Some(thread) };
        service.store = admitted.map(|admitted| admitted.follow(Arc::clone(&service.cluster))).transpose()?;
        Ok(service)
    }

    /// Applies other settings: while packets pass if only the members and the epoch differ, or else as [`Self::replace`].
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn change(mut self, new: Settings) -> Result<Self, ClusterError> {
        if !self.configured.differs_in_members_only(&new) {
            return self.replace(new);
        }
        if new.store.is_none() {
            self.cluster().change_members(new.members.clone(), new.epoch, now_ns())?;
        }
        self.configured = new;
        Ok(self)
    }

    /// Restarts this node with other settings. Frames of other nodes are forwarded meanwhile.
    ///
    /// # Errors
    /// As [`Self::start`]. The program and the routes then stay in place, for a daemon with valid settings to take over.
    fn replace(self, settings: Settings) -> Result<Self, ClusterError> {
        if let Err(error) = self.keep() {
            tracing::warn!("this node forwards nothing for other nodes while it restarts: {error}");
        }
        let drained = self.cluster().is_drained();
        drop(self);
        let service = Self::start(settings)?;
        if drained {
            service.cluster().set_drained(true, now_ns())?;
        }
        Ok(service)
    }

    /// Asks other nodes to send nothing over this one any more. When it returns they do not, and what they have sent has
    /// passed. This node's own ports go on.
    ///
    /// # Errors
    /// If Linux's tables cannot be updated, or nodes have not confirmed it in time: they will have to later.
    pub fn drain(&self) -> Result<(), ClusterError> {
        self.drain_within(CONFIRM_MAX)
    }

    /// Asks other nodes to send packets over this one again.
    ///
    /// # Errors
    /// If Linux's tables cannot be updated.
    pub fn join(&self) -> Result<(), ClusterError> {
        self.cluster().set_drained(false, now_ns())
    }

    fn drain_within(&self, most: Duration) -> Result<(), ClusterError> {
        self.cluster().set_drained(true, now_ns())?;
        let until = now_ns() + most.as_nanos() as u64;
        loop {
            let (now, cluster) = (now_ns(), self.cluster());
            let unconfirmed = cluster.unconfirmed(now);
            let gap = Duration::from_nanos(cluster.view(now).flowlet_gap_ns);
            drop(cluster);
            if unconfirmed.is_empty() {
                // What was sent before takes no longer than delays differ.
                std::thread::sleep(gap.clamp(ON_THE_WAY, most));
                return Ok(());
            }
            if now > until {
                return Err(ClusterError::NotConfirmed(unconfirmed));
            }
            std::thread::sleep(GATHER);
        }
    }

    /// The settings that [`Self::start`] or [`Self::change`] was called with.
    pub fn configured(&self) -> &Settings {
        &self.configured
    }

    /// The settings with the members as they are now.
    pub fn settings(&self) -> Settings {
        self.cluster().settings().clone()
    }

    /// The store of the members; `None`: they are configured.
    pub fn store(&self) -> Option<StoreView> {
        self.store.as_ref().map(Store::view)
    }

    /// What removes members from the store.
    ///
    /// # Errors
    /// If there is none.
    pub fn remover(&self) -> Result<Remover, ClusterError> {
        self.store.as_ref().map(Store::remover).ok_or(ClusterError::NoStore)
    }

    /// Notes for `status`.
    pub fn notes(&self) -> Vec<String> {
        self.cluster().notes().to_vec()
    }

    /// What the balancers of workers go by. Another node has another one: [`Self::change`] to settings that differ in more
    /// than the members makes one.
    pub fn peers(&self) -> Arc<PublishedPeers> {
        self.cluster().peers()
    }

    /// The node as it is now.
    pub fn view(&self) -> ClusterView {
        self.cluster().view(now_ns())
    }

    /// Leaves the program, routes and neighbors in place at the end.
    ///
    /// # Errors
    /// If the program is not pinned.
    pub fn keep(&self) -> Result<(), ClusterError> {
        self.cluster().keep()
    }

    fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.store.take());
        if !self.cluster().is_kept()
            && let Err(error) = self.drain_within(CONFIRM_AT_END)
        {
            tracing::warn!("this node leaves the cluster at once: {error}");
        }
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by itself.
            let _panicked = thread.join();
        }
    }
}

/// With a store: the settings with the members from there, and the node that is one of them.
fn admitted(configured: &Settings) -> Result<(Settings, Option<Admitted>), ClusterError> {
    if configured.store.is_none() {
        return Ok((configured.clone(), None));
    }
    let key = probe::read_key(&configured.key_file)?;
    let admitted = Admitted::join(configured, &key, random())?;
    let list = admitted.list().clone();
    let settings = Settings { members: list.members, epoch: list.epoch, ..configured.clone() };
    Ok((settings, Some(admitted)))
}

fn run(cluster: &Mutex<Cluster>, events: &mut LinkEvents, stopped: &UnixStream) {
    let _watched = bm_sys::heartbeat::watch(SILENT_MAX);
    // What it finds out decides where packets go.
    let _refused = set_nice(URGENT);
    let mut failing = false;
    loop {
        bm_sys::heartbeat::beat();
        let (descriptors, due) = {
            let cluster = cluster.lock();
            (cluster.descriptors(), cluster.due_ns())
        };
        if wait(events, stopped, &descriptors, due) {
            return;
        }
        let has_events = events.drain();
        if has_events {
            std::thread::sleep(GATHER);
            events.drain();
        }
        let mut cluster = cluster.lock();
        if has_events {
            cluster.note_linux_event();
        }
        match cluster.step(now_ns()) {
            Ok(()) => failing = false,
            // Logged once, not on each attempt.
            Err(error) if !failing => {
                failing = true;
                tracing::error!(%error, "the cluster's routes and neighbors are not up to date; trying again");
            }
            Err(_) => {}
        }
    }
}

/// Waits for an event or until `due_ns`; returns whether the node has to stop.
fn wait(events: &LinkEvents, stopped: &UnixStream, others: &[i32], due_ns: u64) -> bool {
    let own = [stopped.as_raw_fd(), events.as_fd().as_raw_fd()];
    let fds = own.into_iter().chain(others.iter().copied());
    let mut all: Vec<_> = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let wait = Duration::from_nanos(due_ns.saturating_sub(now_ns())).min(WAIT_MAX);
    let wait_ms = wait.as_millis() as i32 + 1;
    // SAFETY: an array of as many as said.
    let ready = unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, wait_ms) };
    if ready < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
        // The wait failed; sleep instead of spinning.
        std::thread::sleep(WAIT_MAX);
    }
    ready > 0 && all[0].revents != 0
}

/// A random number.
fn random() -> u64 {
    let mut bytes = [0; 8];
    // So few bytes are neither interrupted nor cut short.
    let _few = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}
