//! The namespaces of nodes and their hosts, the daemons in them, and what these count.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bm_bpf::Bpffs;
use bm_testbed::interrupt;
use bm_testbed::testbed::TestbedError;
use bm_testbed::testbed::namespace::{Feature, Namespace, command};
use serde::Deserialize;
use std::collections::BTreeMap;

use super::super::daemon::{Before, Daemon, DaemonError};
use super::frr::Frr;
use super::matrix::speed;
use super::relays::{self, Relays};
use super::store::{self, Store};
use super::{ClusterDemoOptions, DemoError, Shape};
use crate::program::router;

/// How long nodes may take to know each other.
const READY: Duration = Duration::from_secs(30);
/// What each node tells each other one: an address, a prefix, a neighbor.
const ENTRIES: u64 = 3;

/// Nodes with their hosts. Dropping it removes everything.
pub struct Mesh {
    daemons: Vec<Option<Daemon>>,
    frr: Option<Frr>,
    /// Between the nodes, in an n-fly.
    relays: Option<Relays>,
    /// The nodes, whose external port is `ext0`.
    pub nodes: Vec<Namespace>,
    /// The hosts, whose interface is `e`.
    pub hosts: Vec<Namespace>,
    /// Where the members come from, if etcd is installed.
    store: Option<Store>,
    program: PathBuf,
    folder: Folder,
}

/// A folder that goes away with all that is in it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// What `show cluster --json` says of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClusterCounters {
    /// Its routes to other nodes.
    pub routes: u64,
    /// What its balancers have done.
    pub balanced: BTreeMap<String, u64>,
    pub links: Vec<LinkCounters>,
}

/// What it says of a link.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LinkCounters {
    /// The node at the other end.
    pub node: usize,
    /// `up` if frames and messages pass.
    pub state: String,
    /// Received frames, by what happened to them.
    pub counters: BTreeMap<String, u64>,
}

/// On its interface `e`.
pub fn host_mac(n: usize) -> String {
    format!("02:00:00:00:0{n}:02")
}

fn folder(prefix: &str) -> PathBuf {
    Path::new("/run").join(prefix)
}

impl Mesh {
    /// Makes everything, and waits until all nodes know each other.
    ///
    /// # Errors
    /// What failed; what was made by then is removed.
    pub fn up(options: &ClusterDemoOptions) -> Result<Self, DemoError> {
        let folder = Folder(folder(&options.prefix));
        std::fs::create_dir_all(&folder.0).map_err(TestbedError::system("make a folder"))?;
        let mut mesh = Self {
            daemons: (0..options.shape.nodes()).map(|_| None).collect(),
            frr: None,
            relays: None,
            nodes: Vec::new(),
            hosts: Vec::new(),
            store: None,
            program: options.program.clone().unwrap_or_else(router),
            folder,
        };
        let all = 0..options.shape.nodes();
        for n in all.clone() {
            mesh.nodes.push(Namespace::create(&format!("{}-n{n}", options.prefix))?);
            mesh.hosts.push(Namespace::create(&format!("{}-h{n}", options.prefix))?);
        }
        all.clone().try_for_each(|n| mesh.wire(n))?;
        match options.shape {
            Shape::Mesh => all.clone().try_for_each(|n| mesh.link(n))?,
            Shape::Fly => mesh.relays = Some(Relays::up(&options.prefix, &mesh.nodes, &mesh.program)?),
        }
        mesh.write_key()?;
        if store::is_installed() {
            mesh.store = Some(Store::up(&options.prefix, &mesh.nodes, &mesh.folder.0)?);
        }
        all.clone().try_for_each(|n| mesh.start_daemon(options, n))?;
        mesh.until_ready()?;
        Ok(mesh)
    }

    /// Connects a node with its host.
    fn wire(&self, n: usize) -> Result<(), DemoError> {
        let (node, host) = (&self.nodes[n], &self.hosts[n]);
        let (near, far) = (format!("02:00:00:00:0{n}:01"), host_mac(n));
        node.ip_batch(&format!(
            "link set lo up\nlink add ext0 address {near} type veth peer name e address {far} netns {}\n\
             link set ext0 up\naddr add 10.0.{n}.1/24 dev ext0\nneigh add 10.0.{n}.2 lladdr {far} dev ext0\n",
            host.name()
        ))?;
        host.ip_batch(&format!(
            "link set lo up\nlink set e up\naddr add 10.0.{n}.2/24 dev e\n\
             neigh add 10.0.{n}.1 lladdr {near} dev e\nroute add default via 10.0.{n}.1\n"
        ))?;
        // XDP of the node at the other end can only send to an interface with GRO; and nothing completes checksums.
        host.ethtool("e", Feature::Gro, true)?;
        host.ethtool("e", Feature::TxChecksum, false)?;
        Ok(node.sysctl(&[("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/disable_ipv6", "1")])?)
    }

    /// Connects a node with those that come later.
    fn link(&self, n: usize) -> Result<(), DemoError> {
        let node = &self.nodes[n];
        for m in n + 1..self.nodes.len() {
            node.ip_batch(&format!(
                "link add fab{m} up type veth peer name fab{n} netns {}\n",
                self.nodes[m].name()
            ))?;
            self.nodes[m].ip_batch(&format!("link set fab{n} up\n"))?;
        }
        Ok(())
    }

    fn write_key(&self) -> Result<(), DemoError> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0u8);
        std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(self.folder.0.join("key"))
            .and_then(|mut file| writeln!(file, "demo-{random:016x}-of-a-cluster"))
            .map_err(|error| TestbedError::system("write a key")(error).into())
    }

    /// Starts the daemon of a node.
    ///
    /// # Errors
    /// It did not get ready.
    pub fn start_daemon(&mut self, options: &ClusterDemoOptions, n: usize) -> Result<(), DemoError> {
        let folder = self.folder.0.join(format!("n{n}"));
        std::fs::create_dir_all(&folder).map_err(TestbedError::system("make a folder"))?;
        let file = folder.join("config.toml");
        std::fs::write(&file, self.config(options, n))
            .map_err(TestbedError::system("write a configuration"))?;
        let arguments = ["--config".into(), file.into_os_string()];
        self.daemons[n] = Some(Daemon::start_in(&self.nodes[n], folder, &self.program, &arguments)?);
        Ok(())
    }

    fn config(&self, options: &ClusterDemoOptions, n: usize) -> String {
        let (key, speed) = (self.folder.0.join("key"), speed(options.rate));
        let members = match &self.store {
            Some(store) => store.section(n),
            None => (0..self.nodes.len())
                .map(|m| format!("[[cluster.member]]\nname = 'n{m}'\nnode = {m}\n"))
                .collect(),
        };
        let mut text = format!(
            "[[port]]\ndevice = 'ext0'\n[cluster]\nname = 'n{n}'\nkey_file = '{}'\nbalancing = 'vlb'\n\
             relays = '{}'\n{members}[[cluster.port]]\ndevice = 'ext0'\nnumber = 0\nspeed = {speed}\n",
            key.display(),
            if self.relays.is_some() { "on" } else { "off" },
        );
        for m in (0..self.nodes.len()).filter(|m| *m != n) {
            text += &format!("[[cluster.fabric]]\ndevice = 'fab{m}'\npeer = 'n{m}'\nspeed = {speed}\n");
        }
        text
    }

    /// Waits until all nodes know each other and all links are up.
    ///
    /// # Errors
    /// They do not in time, or a signal interrupts.
    pub fn until_ready(&self) -> Result<(), DemoError> {
        let (began, routes) = (Instant::now(), ENTRIES * (self.nodes.len() as u64 - 1));
        loop {
            let all = self.counters()?;
            if all
                .iter()
                .all(|node| node.routes == routes && node.links.iter().all(|link| link.state == "up"))
            {
                return Ok(interrupt::sleep(Duration::from_millis(200))?);
            }
            if began.elapsed() > READY {
                return Err(DemoError::NotReady(format!("{all:?}")));
            }
            interrupt::sleep(Duration::from_millis(100))?;
        }
    }

    /// What each node has counted.
    ///
    /// # Errors
    /// A daemon does not answer.
    pub fn counters(&self) -> Result<Vec<ClusterCounters>, DemoError> {
        self.daemons.iter().map(|daemon| self.counters_of(daemon.as_ref())).collect()
    }

    fn counters_of(&self, daemon: Option<&Daemon>) -> Result<ClusterCounters, DemoError> {
        let Some(daemon) = daemon else { return Ok(ClusterCounters::default()) };
        let socket = daemon.socket().display().to_string();
        let words = ["show", "cluster", "--json", "--socket", &socket];
        let said = command(&mut Command::new(&self.program), &words, "")?;
        serde_json::from_str(&said).map_err(|error| DemoError::NotReady(format!("{error}: {said}")))
    }

    /// Ends a daemon as a crash would.
    ///
    /// # Errors
    /// It cannot be killed.
    pub fn kill_daemon(&mut self, n: usize) -> Result<(), DemoError> {
        match self.daemons[n].take() {
            Some(mut daemon) => Ok(daemon.kill()?),
            None => Ok(()),
        }
    }

    /// Ends a daemon as a crash would, and takes its programs away. Its interfaces keep their carrier.
    ///
    /// # Errors
    /// It cannot be killed.
    pub fn silence(&mut self, n: usize) -> Result<(), DemoError> {
        remove_pins(&self.nodes[n], &PINS_OF_DAEMONS);
        self.kill_daemon(n)
    }

    /// Drains a node, and ends its daemon in order.
    ///
    /// # Errors
    /// It does not end as it should.
    pub fn drain(&mut self, n: usize) -> Result<(), DemoError> {
        let Some(mut daemon) = self.daemons[n].take() else { return Ok(()) };
        let socket = daemon.socket().display().to_string();
        command(&mut Command::new(&self.program), &["cluster", "drain", "--socket", &socket], "")?;
        Ok(daemon.stop()?)
    }

    /// Cuts the link between nodes 0 and 1, or a cable between relays, or mends it.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn set_link(&self, up: bool) -> Result<(), DemoError> {
        let state = if up { "up" } else { "down" };
        match &self.relays {
            Some(relays) => relays.set_cable(up),
            None => Ok(self.nodes[0].ip_batch(&format!("link set fab1 {state}\n"))?),
        }
    }

    /// Whether packets from one node to another go over others while that is cut.
    pub fn is_detoured(&self, from: usize, to: usize) -> bool {
        self.relays.as_ref().map_or(from + to == 1, |relays| relays.is_detoured(from, to))
    }

    /// Starts FRR on all nodes and hosts; returns how long it took to learn all prefixes.
    ///
    /// # Errors
    /// It does not start, or does not learn them.
    pub fn start_frr(&mut self) -> Result<Duration, DemoError> {
        let (frr, took) = Frr::up(&self.nodes, &self.hosts, &self.folder.0)?;
        self.frr = Some(frr);
        Ok(took)
    }

    /// The relays, in an n-fly.
    pub fn relays(&self) -> Option<&Relays> {
        self.relays.as_ref()
    }

    /// What they have counted, and the relays on the nodes.
    ///
    /// # Errors
    /// One does not answer.
    pub fn relay_counts(&self) -> Result<Vec<relays::Counts>, DemoError> {
        self.relays.as_ref().map_or(Ok(Vec::new()), |relays| relays.counts(&self.nodes))
    }

    /// Whether the members come from etcd.
    pub fn has_store(&self) -> bool {
        self.store.is_some()
    }

    /// Kills etcd, or starts it again.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn set_store(&mut self, up: bool) -> Result<(), DemoError> {
        match &mut self.store {
            Some(store) if up => store.start(),
            Some(store) => {
                store.stop();
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Takes all interfaces of a node down, or up again.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn set_node(&self, n: usize, up: bool) -> Result<(), DemoError> {
        let state = if up { "up" } else { "down" };
        let devices =
            (0..self.nodes.len()).filter(|m| *m != n).map(|m| format!("fab{m}")).chain(["ext0".into()]);
        let mut lines: String = devices.map(|device| format!("link set {device} {state}\n")).collect();
        if up {
            // Neighbors go with their interface.
            lines += &format!("neigh replace 10.0.{n}.2 lladdr {} dev ext0\n", host_mac(n));
        }
        Ok(self.nodes[n].ip_batch(&lines)?)
    }

    /// Ends all daemons in order.
    ///
    /// # Errors
    /// One does not end as it should.
    pub fn stop(&mut self) -> Result<(), DemoError> {
        // At the same time: each waits until the others know that it ends.
        let ended: Vec<_> = std::thread::scope(|scope| {
            let daemons = self.daemons.iter_mut().flatten();
            let threads: Vec<_> = daemons.map(|daemon| scope.spawn(|| daemon.stop())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(Err(DaemonError::StillRuns))).collect()
        });
        ended.into_iter().collect::<Result<(), _>>()?;
        self.daemons.fill_with(|| None);
        Ok(())
    }
}

impl Drop for Mesh {
    /// Ends daemons that still run, after an error, and removes what those have left that were killed.
    fn drop(&mut self) {
        self.daemons.iter_mut().flatten().for_each(Daemon::end);
        let relays = self.relays.iter().flat_map(|relays| relays.spaces());
        let all = [&PINS_OF_DAEMONS[..], &[PINS_OF_RELAYS]].concat();
        self.nodes.iter().chain(relays).for_each(|space| remove_pins(space, &all));
    }
}

/// Folders of bpffs.
const PINS_OF_DAEMONS: [&str; 2] = ["brickmoon", "brickmoon-cluster"];
const PINS_OF_RELAYS: &str = "brickmoon-relay";

/// Removes what is pinned in these folders of bpffs for a namespace.
fn remove_pins(space: &Namespace, folders: &[&str]) {
    use std::os::unix::fs::MetadataExt;
    let Some(bpffs) = Bpffs::find() else { return };
    let Ok(data) = std::fs::metadata(Path::new("/run/netns").join(space.name())) else { return };
    for folder in folders {
        let _none = std::fs::remove_dir_all(bpffs.path().join(folder).join(data.ino().to_string()));
    }
}

/// What is still there and should not be, in words.
pub fn left_behind(prefix: &str, before: &Before) -> Option<String> {
    let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let ours = format!("{prefix}-");
    let mut left: Vec<_> = names.map(|entry| entry.path()).collect();
    left.retain(|path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&ours))
    });
    left.extend(Some(folder(prefix)).filter(|folder| folder.exists()));
    left.extend(before.new_pins());
    let words = left.iter().map(|path| path.display().to_string());
    (!left.is_empty()).then(|| words.collect::<Vec<_>>().join(", "))
}
