//! The thread that follows the members in the store (etcd), and registers this node there.
//!
//! ```text
//! etcd ── watch ──► bm-store ── change_members ──► Cluster
//!      ◄── lease, registration, changes of the list ──┘  (compare-and-set: of two changes at once, one is repeated)
//! ```
//!
//! A registration has the epoch of a node, so that the next one can begin (`members.rs`). While etcd cannot
//! be reached, the members stay as they are. The last list is also in a file, so that a daemon can start meanwhile.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bm_etcd::{Client, EtcdError, Range};
use bm_sys::Mutex;
use bm_vlb::address::Node;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use crate::clock::now_ns;
use crate::error::ClusterError;
use crate::members::{MemberList, NoChange, Registration};
use crate::members_copy::MembersCopy;
use crate::message::Key;
use crate::node::Cluster;
use crate::settings::{Settings, StoreSettings};
use crate::view::StoreView;

/// How long a node stays registered that does not renew its lease.
const LEASE_S: u32 = 10;
const TICK: Duration = Duration::from_secs(1);
/// Every so many ticks the lease is renewed and everything is read, whatever the watch says.
const TICKS_OF_LEASE: u32 = 3;
/// How long to wait before the next attempt to reach etcd.
const RETRY: Duration = Duration::from_millis(500);
/// How long a change of the members may wait for others; and a start for the store, if there is a copy of the list.
const CHANGE_MAX: Duration = Duration::from_secs(15);
const REACH_MAX: Duration = Duration::from_secs(4);
const REVOKE_MAX: Duration = Duration::from_millis(500);

/// A request to the thread, which answers with an error's text.
pub struct Remove {
    name: String,
    answer: Sender<Result<(), String>>,
}

/// The running thread. It ends when this is dropped, and the registration with it.
pub struct Store {
    requests: mpsc::UnboundedSender<Remove>,
    stop: Option<oneshot::Sender<()>>,
    view: Arc<Mutex<StoreView>>,
    thread: Option<JoinHandle<()>>,
}

/// A node that is a member, whose thread has not been started yet.
pub(crate) struct Admitted(Follower);

/// What the thread has.
struct Follower {
    client: Client,
    store: StoreSettings,
    name: String,
    key: Key,
    instance: u64,
    lease: Option<i64>,
    /// The registration as it was written last.
    written: Vec<u8>,
    list: MemberList,
    /// The revision of the list in the store; 0: there is none.
    revision: i64,
    registered: Vec<Registration>,
    view: Arc<Mutex<StoreView>>,
}

impl Admitted {
    /// Makes this node a member if it is none yet. Takes the copy of the list if the store cannot be reached.
    ///
    /// # Errors
    /// If it cannot be reached and there is no copy, or does not admit this node.
    pub fn join(settings: &Settings, key: &Key, instance: u64) -> Result<Self, ClusterError> {
        let Some(store) = settings.store.clone() else {
            return Err(ClusterError::Settings("there is no [cluster.store]".into()));
        };
        let client = Client::new(store.etcd.clone())
            .map_err(|why| ClusterError::Store(format!("[cluster.store]: {why}")))?;
        let mut follower = Follower {
            client,
            name: settings.name.clone(),
            key: key.clone(),
            instance,
            lease: None,
            written: Vec::new(),
            list: MemberList::default(),
            revision: 0,
            registered: Vec::new(),
            view: Arc::default(),
            store,
        };
        // In a thread of its own: the caller's may have a runtime already.
        std::thread::scope(|scope| {
            let joining = scope.spawn(|| {
                let joined = runtime()?.block_on(follower.become_member());
                follower.client.disconnect();
                joined
            });
            joining.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        Ok(Self(follower))
    }

    pub fn list(&self) -> &MemberList {
        &self.0.list
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The system's error.
    pub fn follow(self, cluster: Arc<Mutex<Cluster>>) -> Result<Store, ClusterError> {
        let Self(mut follower) = self;
        let (requests, mut receiver) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        let view = Arc::clone(&follower.view);
        let thread = std::thread::Builder::new().name("bm-store".into());
        let thread = thread.spawn(move || {
            let runtime = match runtime() {
                Ok(runtime) => runtime,
                Err(why) => return tracing::error!(%why, "the store of the cluster is not followed"),
            };
            runtime.block_on(async {
                tokio::select! {
                    () = follower.follow(&cluster, &mut receiver) => {}
                    _ = stopped => {}
                }
                follower.leave().await;
            });
        });
        let thread = thread.map_err(bm_bpf::Error::system("starting the thread of the cluster's store"))?;
        Ok(Store { requests, stop: Some(stop), view, thread: Some(thread) })
    }
}

impl Store {
    pub fn view(&self) -> StoreView {
        self.view.lock().clone()
    }

    /// What removes members.
    pub fn remover(&self) -> Remover {
        Remover(self.requests.clone())
    }
}

/// Removes members from the list, which may take a while.
pub struct Remover(mpsc::UnboundedSender<Remove>);

impl Remover {
    /// Removes a member from the list.
    ///
    /// # Errors
    /// Why it stays one.
    pub fn remove(&self, name: &str) -> Result<(), ClusterError> {
        let (answer, answered) = channel();
        let _ended = self.0.send(Remove { name: name.into(), answer });
        let answer = answered.recv_timeout(2 * CHANGE_MAX);
        let answer = answer.unwrap_or_else(|_| Err("the store does not answer".into()));
        answer.map_err(ClusterError::Store)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ended = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by itself.
            let _panicked = thread.join();
        }
    }
}

impl Follower {
    async fn become_member(&mut self) -> Result<(), ClusterError> {
        let began = Instant::now();
        loop {
            let why = match self.try_to_join().await {
                Ok(Ok(true)) => {
                    self.save_copy();
                    return Ok(());
                }
                Ok(Ok(false)) => continue,
                Ok(Err(why @ NoChange::Behind(_))) if began.elapsed() < CHANGE_MAX => why.to_string(),
                Ok(Err(why)) => return Err(ClusterError::Store(format!("[cluster.store]: {why}"))),
                Err(ReadError::Key(why)) => return Err(ClusterError::Store(why)),
                Err(ReadError::Etcd(why)) if began.elapsed() < REACH_MAX => why.to_string(),
                Err(ReadError::Etcd(why)) => return self.take_copy(&why),
            };
            tracing::info!("this node is not a member of the cluster yet: {why}");
            sleep(RETRY).await;
        }
    }

    /// Returns whether this node is a member; `false`: the list was changed meanwhile.
    async fn try_to_join(&mut self) -> Result<Result<bool, NoChange>, ReadError> {
        self.read().await?;
        let next = match self.list.with(&self.name, self.store.node) {
            Ok(next) if next == self.list => return Ok(Ok(true)),
            Ok(next) => next,
            Err(why) => return Ok(Err(why)),
        };
        if let Err(why) = self.list.may_change(&self.registered, "") {
            return Ok(Err(why));
        }
        let set = self.set_list(&next).await?;
        if set {
            self.list = next;
        }
        Ok(Ok(set))
    }

    fn take_copy(&mut self, why: &EtcdError) -> Result<(), ClusterError> {
        let copy = MembersCopy { file: &self.store.copy, path: &self.list_path(), key: &self.key };
        match copy.read().filter(|list| list.has(&self.name)) {
            Some(list) => {
                tracing::warn!("the store cannot be reached ({why}): the members are those of {copy}");
                self.list = list;
                Ok(())
            }
            None => Err(ClusterError::Store(format!(
                "the members are not known: {why}, and {copy} has no copy of them in which this node is one"
            ))),
        }
    }

    fn save_copy(&self) {
        MembersCopy { file: &self.store.copy, path: &self.list_path(), key: &self.key }.write(&self.list);
    }

    fn list_path(&self) -> String {
        format!("{}members", self.store.prefix)
    }

    fn own_path(&self) -> String {
        format!("{}nodes/{}", self.store.prefix, self.name)
    }

    async fn set_list(&mut self, list: &MemberList) -> Result<bool, EtcdError> {
        let path = self.list_path();
        let text = list.to_text(&path, &self.key);
        self.client.put_if(&path, &text, None, self.revision).await
    }

    /// Reads the list and all registrations.
    async fn read(&mut self) -> Result<Range, ReadError> {
        let range = self.client.range(&self.store.prefix).await?;
        let path = self.list_path();
        (self.registered, self.revision) = (Vec::new(), 0);
        let of_nodes = format!("{}nodes/", self.store.prefix);
        let mut other_key = Vec::new();
        for entry in &range.entries {
            if entry.key == path {
                let list = MemberList::from_text(&path, &entry.value, &self.key);
                self.list = list.ok_or_else(|| {
                    ReadError::Key(format!(
                        "the members in the store, {path}, are authenticated with another key: all nodes need the same `key_file`"
                    ))
                })?;
                self.revision = entry.revision;
            } else if let Some(name) = entry.key.strip_prefix(&of_nodes) {
                match Registration::from_text(&entry.key, &entry.value, &self.key) {
                    Some(registration) => self.registered.push(registration),
                    None => other_key.push(name.to_string()),
                }
            }
        }
        let mut view = self.view.lock();
        view.registered = self.registered.clone();
        view.other_key = other_key;
        drop(view);
        Ok(range)
    }

    async fn follow(&mut self, cluster: &Mutex<Cluster>, requests: &mut mpsc::UnboundedReceiver<Remove>) {
        loop {
            let Err(why) = self.connected(cluster, requests).await else { return };
            let why = match why {
                ReadError::Etcd(why) => format!("{why}; the members stay as they are"),
                ReadError::Key(why) => why,
            };
            self.written.clear();
            if self.note(false, Some(why.clone())) {
                tracing::warn!("the store of the cluster: {why}");
            }
            let retry = sleep(RETRY);
            tokio::pin!(retry);
            loop {
                tokio::select! {
                    () = &mut retry => break,
                    request = requests.recv() => match request {
                        Some(Remove { answer, .. }) => drop(answer.send(Err(why.clone()))),
                        None => return,
                    },
                }
            }
        }
    }

    async fn connected(
        &mut self,
        cluster: &Mutex<Cluster>,
        requests: &mut mpsc::UnboundedReceiver<Remove>,
    ) -> Result<(), ReadError> {
        self.renew().await?;
        let revision = self.synchronize(cluster).await?;
        let mut watch = self.client.watch(&self.store.prefix, revision + 1).await?;
        let mut tick = tokio::time::interval(TICK);
        let mut ticks = 0;
        loop {
            tokio::select! {
                changed = watch.changed() => {
                    changed?;
                    self.synchronize(cluster).await?;
                }
                _ = tick.tick() => {
                    ticks += 1;
                    if ticks % TICKS_OF_LEASE == 0 {
                        self.renew().await?;
                        self.synchronize(cluster).await?;
                    } else {
                        self.register(cluster).await?;
                    }
                }
                request = requests.recv() => match request {
                    Some(Remove { name, answer }) => {
                        let removed = self.remove(&name, cluster).await?;
                        let _nobody_waits = answer.send(removed.map_err(|why| why.to_string()));
                    }
                    None => return Ok(()),
                },
            }
        }
    }

    /// Applies the list in the store to the cluster. Returns the revision of the store.
    async fn synchronize(&mut self, cluster: &Mutex<Cluster>) -> Result<i64, ReadError> {
        let before = self.list.clone();
        let revision = self.read().await?.revision;
        if self.revision == 0 {
            // The store is new, or was emptied.
            tracing::warn!("the store has no list of the members; it gets this node's");
            self.set_list(&before).await?;
            return Ok(revision);
        }
        if self.list != before {
            self.save_copy();
        }
        let (members, epoch) = (self.list.members.clone(), self.list.epoch);
        let trouble = if self.list.has(&self.name) {
            // Not only after a change: it may have failed before.
            let changed = cluster.lock().change_members(members, epoch, now_ns());
            changed.err().map(|why| format!("the members cannot be changed to those in the store: {why}"))
        } else {
            Some("this node was removed from the cluster; a restart of its daemon adds it again".into())
        };
        let registered = self.register(cluster).await?;
        self.report(trouble.or(registered));
        Ok(revision)
    }

    fn report(&self, trouble: Option<String>) {
        let text = trouble.clone();
        if self.note(true, trouble) {
            match text {
                Some(text) => tracing::warn!("the store of the cluster: {text}"),
                None => tracing::info!("the store of the cluster, {}, is followed", self.client.endpoint()),
            }
        }
    }

    /// Returns whether that is different from before.
    fn note(&self, is_connected: bool, trouble: Option<String>) -> bool {
        let mut view = self.view.lock();
        view.endpoint = self.client.endpoint();
        let same = view.is_connected == is_connected && view.trouble == trouble;
        (view.is_connected, view.trouble) = (is_connected, trouble);
        !same
    }

    /// Writes the registration if it has changed; returns what keeps this node from being registered.
    async fn register(&mut self, cluster: &Mutex<Cluster>) -> Result<Option<String>, EtcdError> {
        let (path, now) = (self.own_path(), now_ns());
        let Some(node) = self.own_number() else { return Ok(None) };
        let other =
            self.registered.iter().find(|other| other.name == self.name && other.instance != self.instance);
        if other.is_some() {
            return Ok(Some(format!(
                "another daemon is registered as {}: an earlier one of this node, for up to {LEASE_S} s, or that of a machine with the same `name`",
                self.name
            )));
        }
        let (epoch, behind, ports) = {
            let cluster = cluster.lock();
            (cluster.settings().epoch, cluster.behind(now), cluster.settings().ports.clone())
        };
        let (name, instance) = (self.name.clone(), self.instance);
        let text = Registration { name, node, instance, epoch, behind, ports }.to_text(&path, &self.key);
        let is_there = self.registered.iter().any(|own| own.instance == self.instance);
        if self.lease.is_some() && is_there && text == self.written {
            return Ok(None);
        }
        let lease = match self.lease {
            Some(lease) => lease,
            None => self.client.grant(LEASE_S).await?,
        };
        self.lease = Some(lease);
        self.client.put(&path, &text, Some(lease)).await?;
        self.written = text;
        Ok(None)
    }

    fn own_number(&self) -> Option<Node> {
        self.list.members.iter().find(|member| member.name == self.name).map(|member| member.node)
    }

    async fn renew(&mut self) -> Result<(), EtcdError> {
        if let Some(lease) = self.lease
            && !self.client.keep_alive(lease).await?
        {
            // It expired while etcd could not be reached.
            self.lease = None;
        }
        Ok(())
    }

    async fn remove(
        &mut self,
        name: &str,
        cluster: &Mutex<Cluster>,
    ) -> Result<Result<(), NoChange>, ReadError> {
        let began = Instant::now();
        loop {
            self.renew().await?;
            self.synchronize(cluster).await?;
            let next = match self.list.without(name) {
                Ok(next) => next,
                Err(why) => return Ok(Err(why)),
            };
            match self.list.may_change(&self.registered, name) {
                Ok(()) if self.set_list(&next).await? => {
                    self.synchronize(cluster).await?;
                    return Ok(Ok(()));
                }
                Err(why) if began.elapsed() > CHANGE_MAX => return Ok(Err(why)),
                // Another node has changed the list, or a node does not have the epoch yet.
                _ => sleep(RETRY / 2).await,
            }
        }
    }

    /// Ends the registration.
    async fn leave(&mut self) {
        if let Some(lease) = self.lease.take() {
            // Without an answer it ends by itself.
            let _late = timeout(REVOKE_MAX, self.client.revoke(lease)).await;
        }
    }
}

/// Why the store could not be read.
enum ReadError {
    Etcd(EtcdError),
    /// It was written with another key.
    Key(String),
}

impl From<EtcdError> for ReadError {
    fn from(why: EtcdError) -> Self {
        Self::Etcd(why)
    }
}

fn runtime() -> Result<Runtime, bm_bpf::Error> {
    let failed = bm_bpf::Error::system("starting the thread of the cluster's store");
    Builder::new_current_thread().enable_all().build().map_err(failed)
}
