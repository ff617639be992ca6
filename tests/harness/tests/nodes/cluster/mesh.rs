//! Four routers in a full mesh, each with a host, and their counters.

use bm_tests::daemon::{Daemon, eventually, ping};
use bm_tests::netns::Namespace;
use bm_tests::{report, sys};
use bm_wire::Mac;
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

pub const NODES: usize = 4;
/// A frame that must not come has had at least this long.
pub const MOMENT: Duration = Duration::from_millis(100);

/// Routers `r0`.. with `ext0` to host `hN` and `fabM` to node M; hosts have 10.0.N.2 and fd00:N::2 on `e`.
pub struct Mesh {
    pub routers: Vec<Namespace>,
    pub hosts: Vec<Namespace>,
    pub folder: PathBuf,
    /// For nodes that balance on workers: the speed of their external port, in Mbit/s.
    pub balances: [Option<u32>; NODES],
    /// `[cluster.store]` of all nodes; without it the members are configured.
    pub store: Option<String>,
}

impl Mesh {
    pub fn new(test: &str) -> Option<Self> {
        if !sys::is_root() {
            report::skip(test, "needs root for network namespaces");
            return None;
        }
        let spaces = |role| (0..NODES).map(|n| Namespace::new(test, &format!("{role}{n}"))).collect();
        let (routers, hosts): (Vec<_>, Vec<_>) = (spaces("r"), spaces("h"));
        let folder = std::env::temp_dir().join(routers[0].name()).with_extension("cluster");
        std::fs::create_dir_all(&folder).unwrap();
        let mesh = Self { routers, hosts, folder, balances: [None; NODES], store: None };
        (0..NODES).for_each(|n| mesh.wire(n));
        mesh.key("key", "0123456789abcdef0123456789abcdef");
        Some(mesh)
    }

    fn wire(&self, n: usize) {
        let (router, host) = (&self.routers[n], &self.hosts[n]);
        router.ip(&format!(
            "link set lo up\nlink add ext0 up type veth peer name e netns {}\n\
             addr add 10.0.{n}.1/24 dev ext0\naddr add fd00:{n}::1/64 dev ext0 nodad\n",
            host.name()
        ));
        host.ip(&format!(
            "link set lo up\nlink set e up\naddr add 10.0.{n}.2/24 dev e\naddr add fd00:{n}::2/64 dev e nodad\n\
             route add default via 10.0.{n}.1\nroute add default via fd00:{n}::1\n"
        ));
        host.run("ethtool -K e gro on tx off");
        for m in n + 1..NODES {
            let far = self.routers[m].name();
            router.ip(&format!("link add fab{m} up type veth peer name fab{n} netns {far}\n"));
            self.routers[m].ip(&format!("link set fab{n} up\n"));
        }
        router.set(&[("net.ipv4.ip_forward", "1"), ("net.ipv6.conf.all.forwarding", "1")]);
    }

    pub fn key(&self, name: &str, key: &str) {
        use std::os::unix::fs::PermissionsExt;
        let file = self.folder.join(name);
        std::fs::write(&file, key).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// The configuration file of a node.
    pub fn configure(&self, n: usize, key: &str, epoch: u8) -> String {
        let key = self.folder.join(key);
        let (balancing, speed) = match self.balances[n] {
            None => ("balancing = 'direct'", String::new()),
            Some(speed) => ("balancing = 'vlb'", format!("speed = {speed}\n")),
        };
        let members = match &self.store {
            Some(store) => format!("{store}copy = '{}'\n", self.folder.join(format!("members{n}")).display()),
            None => (0..NODES).fold(format!("epoch = {epoch}\n"), |text, m| {
                text + &format!("[[cluster.member]]\nname = 'n{m}'\nnode = {m}\n")
            }),
        };
        let mut text = format!(
            "[[port]]\ndevice = 'ext0'\n[cluster]\nname = 'n{n}'\nkey_file = '{}'\n{balancing}\n\
             {members}[[cluster.port]]\ndevice = 'ext0'\nnumber = {n}\n{speed}",
            key.display()
        );
        for m in (0..NODES).filter(|m| *m != n) {
            text += &format!("[[cluster.fabric]]\ndevice = 'fab{m}'\npeer = 'n{m}'\n");
        }
        let file = self.folder.join(format!("n{n}.toml"));
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    }

    pub fn start(&self, n: usize, key: &str, epoch: u8) -> Option<Daemon<'_>> {
        Daemon::start_with(&self.routers[n], &["--config", &self.configure(n, key, epoch)])
    }

    /// What a daemon says that does not start.
    pub fn fails(&self, n: usize, key: &str) -> String {
        Daemon::fails(&self.routers[n], &["--config", &self.configure(n, key, 0)])
    }

    pub fn start_all(&self) -> Option<Vec<Daemon<'_>>> {
        (0..NODES).map(|n| self.start(n, "key", 7)).collect()
    }

    /// Waits until each node knows all addresses, prefixes and hosts of the others, so that no packet has to wait.
    pub fn until_known(&self, daemons: &[Daemon<'_>]) {
        for n in 0..NODES {
            // So that its router has it as a neighbor.
            ping(&self.hosts[n], &format!("10.0.{n}.1"), 56, 64);
            ping(&self.hosts[n], &format!("fd00:{n}::1"), 56, 64);
        }
        let all = (NODES - 1) as u64 * 6;
        for (n, daemon) in daemons.iter().enumerate() {
            eventually(&format!("n{n} does not know all others"), || {
                let node = daemon.ask(&["show", "cluster"]);
                node["routes"] == all && links(&node).iter().all(|link| link["state"] == "up")
            });
            eventually("the kernel path has the routes", || {
                daemon.ask(&["status"])["routes_ipv4"].as_u64().unwrap() >= all / 2
            });
        }
    }

    /// The MAC by which a node sends to an address of another one.
    pub fn mac_of(&self, n: usize, address: &str) -> Mac {
        let text = self.routers[n].run(&format!("ip neigh show {address}"));
        let mac = text.split("lladdr ").nth(1).unwrap_or_else(|| panic!("{address}: {text}"));
        let bytes: Vec<u8> = mac[..17].split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        Mac(bytes.try_into().unwrap())
    }

    /// Sends a frame into the fabric of a node, as another node would.
    pub fn inject(&self, n: usize, link: &str, frame: &[u8]) {
        let socket = self.routers[n].packet_socket(link);
        eventually("the frame is sent", || socket.send(frame).is_ok());
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

pub fn links(node: &Value) -> &[Value] {
    node["links"].as_array().map(Vec::as_slice).unwrap_or_default()
}

pub fn link<'v>(node: &'v Value, device: &str) -> &'v Value {
    links(node).iter().find(|link| link["device"] == device).unwrap_or_else(|| panic!("{device}: {node}"))
}

/// A counter of all links of a node.
pub fn total(daemon: &Daemon<'_>, name: &str) -> u64 {
    let node = daemon.ask(&["cluster", "status"]);
    links(&node).iter().map(|link| link["counters"][name].as_u64().unwrap()).sum()
}

/// Frames that have left through external ports of any node after they came over the fabric.
pub fn all_output(daemons: &[Daemon<'_>]) -> u64 {
    daemons.iter().map(|daemon| total(daemon, "output")).sum()
}

/// Packets whose headers were parsed in order to forward them, by any node.
pub fn parsed(daemons: &[Daemon<'_>]) -> u64 {
    let forwarded = |daemon: &Daemon<'_>| {
        let port = daemon.port("ext0");
        let by_kernel = port["kernel_counters"]["forwarded"].as_u64();
        by_kernel.unwrap_or_else(|| port["account"]["sent"].as_u64().unwrap())
    };
    let resolved: u64 = daemons.iter().map(|daemon| total(daemon, "linux_resolve")).sum();
    resolved + daemons.iter().map(forwarded).sum::<u64>()
}

/// Every account of a link adds up.
pub fn assert_closed(daemon: &Daemon<'_>) {
    for link in links(&daemon.ask(&["show", "cluster"])) {
        let account = &link["account"];
        let number = |key: &str| account[key].as_u64().unwrap();
        let went: u64 = ["passed", "host", "consumed", "dropped"].map(number).iter().sum();
        assert_eq!(number("received"), went, "{link}");
    }
}

/// A source address of node 0 that still has to visit node `via`.
pub fn source_via(via: u64) -> Mac {
    let bits = 0xb2u64 << 40 | via << 18;
    Mac(*bits.to_be_bytes().last_chunk().unwrap())
}

/// Waits for a frame, and for others like it.
pub fn expect(socket: &sys::PacketSocket, expected: &[u8], what: &str) {
    let mut came = Vec::new();
    eventually(what, || {
        sys::wait_readable(&[socket], MOMENT).unwrap();
        came.extend(std::iter::from_fn(|| socket.receive().unwrap()).map(|captured| captured.frame));
        came.iter().any(|frame| frame == expected)
    });
    std::thread::sleep(MOMENT);
    came.extend(std::iter::from_fn(|| socket.receive().unwrap()).map(|captured| captured.frame));
    assert_eq!(came.iter().filter(|frame| *frame == expected).count(), 1, "{what}: once");
}
