//! FRR in the namespaces: each node has its own zebra and bgpd, each host a bgpd that announces a prefix.
//!
//! ```text
//! host 2, AS 65102 ── eBGP ── node 2 ══ iBGP, AS 65000, over the fabric ══ nodes 0, 1, 3
//! 10.100.2.0/24                                        next hop 10.0.2.2, by the host route of brickmoon
//! ```
//!
//! FRR knows nothing of the cluster: it finds the next hops behind other nodes in the routes that brickmoon has added.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bm_testbed::interrupt;
use bm_testbed::testbed::TestbedError;
use bm_testbed::testbed::namespace::{Namespace, command};

use super::DemoError;

/// Where Debian puts the daemons.
const FOLDER: &str = "/usr/lib/frr";
/// Autonomous system of the cluster, and of the first host.
const CLUSTER_AS: usize = 65_000;
const HOST_AS: usize = 65_100;
/// How long a daemon may take to listen, and all of them to exchange their routes.
const LISTENS: Duration = Duration::from_secs(15);
const LEARNED: Duration = Duration::from_secs(60);

/// FRR of all nodes and hosts. Dropping it ends it.
pub struct Frr {
    // Before zebra, which would report that it is gone.
    bgpd: Vec<Process>,
    zebra: Vec<Process>,
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Whether FRR is installed.
pub fn is_installed() -> bool {
    ["zebra", "bgpd"].iter().all(|name| Path::new(FOLDER).join(name).is_file())
}

/// The prefix that a host announces, without its last octet.
pub fn prefix(host: usize) -> String {
    format!("10.100.{host}.")
}

impl Frr {
    /// Starts it in all namespaces, and waits until each node has the prefixes of all hosts. Returns how long that took.
    ///
    /// # Errors
    /// A daemon does not start, or prefixes are missing.
    pub fn up(
        nodes: &[Namespace],
        hosts: &[Namespace],
        folder: &Path,
    ) -> Result<(Self, Duration), DemoError> {
        let mut frr = Self { bgpd: Vec::new(), zebra: Vec::new() };
        for (n, host) in hosts.iter().enumerate() {
            host.ip_batch(&format!("addr add {}1/32 dev lo\n", prefix(n)))?;
            let folder = own_folder(folder, &format!("frr-h{n}"))?;
            // Alone, since its routes need not be in the host's Linux.
            frr.bgpd.push(start(host, &folder, "bgpd", &host_config(n), &["-n", "-Z"])?);
        }
        for (n, node) in nodes.iter().enumerate() {
            let folder = own_folder(folder, &format!("frr-n{n}"))?;
            frr.zebra.push(start(node, &folder, "zebra", "", &[])?);
            frr.bgpd.push(start(node, &folder, "bgpd", &node_config(n, nodes.len()), &[])?);
        }
        let (began, all) = (Instant::now(), nodes.len() * hosts.len());
        while nodes.iter().try_fold(0, |sum, node| Ok::<_, DemoError>(sum + learned(node)?))? < all {
            if began.elapsed() > LEARNED {
                return Err(DemoError::NotReady("FRR has not learned all prefixes".into()));
            }
            interrupt::sleep(Duration::from_millis(50))?;
        }
        Ok((frr, began.elapsed()))
    }
}

/// How many prefixes of hosts a node's Linux has from FRR.
fn learned(node: &Namespace) -> Result<usize, DemoError> {
    let words = ["-n", node.name(), "route", "show", "proto", "bgp"];
    let routes = command(&mut Command::new("ip"), &words, "")?;
    Ok(routes.lines().filter(|line| line.starts_with("10.100.")).count())
}

/// Pings from the prefix of each host to that of each other. Returns how many were answered, and how many of those crossed
/// the cluster as one hop.
///
/// # Errors
/// `ping` cannot be run.
pub fn ping(hosts: &[Namespace]) -> Result<[usize; 3], DemoError> {
    let mut counts = [0; 3];
    for (from, host) in hosts.iter().enumerate() {
        for to in (0..hosts.len()).filter(|to| *to != from) {
            let [from, to] = [from, to].map(|n| format!("{}1", prefix(n)));
            let answer =
                host.run(&["ping", "-n", "-c", "1", "-W", "2", "-I", &from, &to]).unwrap_or_default();
            counts[0] += 1;
            counts[1] += usize::from(answer.contains(" 1 received"));
            // Hosts send with 64.
            counts[2] += usize::from(answer.contains(" ttl=63 "));
        }
    }
    interrupt::check().map_err(TestbedError::from)?;
    Ok(counts)
}

/// Timers for machines with few cores: sessions last, and begin soon.
fn neighbor(address: &str, autonomous_system: usize) -> String {
    format!(
        " neighbor {address} remote-as {autonomous_system}\n neighbor {address} timers 10 30\n \
         neighbor {address} timers connect 1\n neighbor {address} advertisement-interval 0\n"
    )
}

fn host_config(n: usize) -> String {
    format!(
        "router bgp {}\n bgp router-id 10.0.{n}.2\n no bgp ebgp-requires-policy\n no bgp network import-check\n{} \
         network {}0/24\n",
        HOST_AS + n,
        neighbor(&format!("10.0.{n}.1"), CLUSTER_AS),
        prefix(n),
    )
}

fn node_config(n: usize, nodes: usize) -> String {
    let host = neighbor(&format!("10.0.{n}.2"), HOST_AS + n);
    let mut text =
        format!("router bgp {CLUSTER_AS}\n bgp router-id 10.0.{n}.1\n no bgp ebgp-requires-policy\n{host}");
    for m in (0..nodes).filter(|m| *m != n) {
        text += &neighbor(&format!("10.0.{m}.1"), CLUSTER_AS);
        text += &format!(" neighbor 10.0.{m}.1 update-source 10.0.{n}.1\n");
    }
    text
}

/// A folder in which FRR's daemons, which have a user of their own, can write.
fn own_folder(folder: &Path, name: &str) -> Result<PathBuf, DemoError> {
    let own = folder.join(name);
    let all = std::fs::Permissions::from_mode(0o777);
    let made = std::fs::create_dir_all(&own).and_then(|()| std::fs::set_permissions(&own, all));
    made.map_err(TestbedError::system("make a folder for FRR"))?;
    Ok(own)
}

/// Starts a daemon, and waits until it listens.
fn start(
    space: &Namespace,
    folder: &Path,
    name: &str,
    config: &str,
    more: &[&str],
) -> Result<Process, DemoError> {
    let file = folder.join(format!("{name}.conf"));
    std::fs::write(&file, config).map_err(TestbedError::system("write a configuration of FRR"))?;
    let mut daemon = Command::new(Path::new(FOLDER).join(name));
    daemon.arg("-f").arg(file).arg("-i").arg(folder.join(format!("{name}.pid")));
    daemon.arg("-z").arg(folder.join("zserv.api")).arg("--vty_socket").arg(folder);
    daemon.args(["-P", "0", "--log"]).arg(format!("file:{}", folder.join(format!("{name}.log")).display()));
    daemon.args(more).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    space.confine(&mut daemon)?;
    let process = Process(daemon.spawn().map_err(TestbedError::system(format!("start {name}")))?);
    let began = Instant::now();
    while !folder.join(format!("{name}.vty")).exists() {
        if began.elapsed() > LISTENS {
            return Err(DemoError::NotReady(format!("FRR's {name} does not listen")));
        }
        interrupt::sleep(Duration::from_millis(20))?;
    }
    Ok(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_its_host_and_all_others_as_peers() {
        let config = node_config(2, 4);
        for peer in ["10.0.2.2 remote-as 65102", "10.0.0.1 remote-as 65000", "10.0.3.1 remote-as 65000"] {
            assert!(config.contains(&format!(" neighbor {peer}\n")), "{config}");
        }
        assert_eq!(config.matches("remote-as").count(), 4);
        assert!(host_config(3).contains("\n network 10.100.3.0/24\n"), "{}", host_config(3));
    }
}
