//! Which path each port's packets take.
//!
//! ```text
//! [[port]] path, --path PORT=..  ─► else [daemon] path, --path ─► else: kernel, unless something needs workers
//! ```
//!
//! What needs workers for all ports that are not told their path: workers or cores that somebody asked for, hooks and
//! apps (unless claims say which packets they are for, or a port is told to take the user path). What needs them for
//! one port and leaves the others in the kernel: a device that is no interface of Linux, an interface that XDP cannot
//! send through, one in a VRF.
//!
//! An interface that is not there, or has no Ethernet header, needs no workers. The first is looked at again when it
//! appears; the packets of the second are Linux's on any path.

use bm_control::config::{Config, Device, IdleChoice, PathChoice, Port};
use bm_netlink::{Kind, Link};

use crate::Failure;

/// The path of one port, and why it is that one where there was a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPath {
    /// Whether its packets are forwarded in the kernel.
    pub in_kernel: bool,
    /// A few words for `show ports`; none where the configuration says it.
    pub reason: Option<String>,
}

/// The paths of all ports, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths(pub Vec<PortPath>);

impl Paths {
    /// Whether the kernel forwards for some port.
    pub fn any_kernel(&self) -> bool {
        self.0.iter().any(|port| port.in_kernel)
    }

    /// Whether workers forward for some port.
    pub fn any_user(&self) -> bool {
        self.0.iter().any(|port| !port.in_kernel)
    }

    /// `kernel`, `user` or `mixed`.
    pub fn name(&self) -> &'static str {
        match (self.any_kernel(), self.any_user()) {
            (true, false) => "kernel",
            (true, true) => "mixed",
            (false, _) => "user",
        }
    }

    /// Whether workers are needed: for ports, or for what is claimed from the kernel's.
    pub fn needs_workers(&self, config: &Config) -> bool {
        self.any_user() || self.claims(config)
    }

    /// Whether packets are claimed from the kernel's ports.
    pub fn claims(&self, config: &Config) -> bool {
        self.any_kernel() && !config.claims.is_empty()
    }

    /// Why it is that, where all ports have the same reason.
    pub fn reason(&self) -> Option<String> {
        let first = self.0.first()?.reason.clone();
        self.0.iter().all(|port| port.reason == first).then_some(first).flatten()
    }

    /// Whether workers may forward for all ports that the kernel does not take after all.
    pub fn may_do_without(&self) -> bool {
        self.0.iter().filter(|port| port.in_kernel).all(|port| port.reason.is_some())
    }

    /// The same in a daemon without the kernel path, which it can only be started with.
    pub fn on_workers(&self) -> Self {
        self.instead("the daemon was started with workers for all ports")
    }

    /// Workers for all, since the kernel path could not be loaded.
    pub fn instead(&self, why: &str) -> Self {
        let port = |port: &PortPath| match port.in_kernel {
            true => PortPath { in_kernel: false, reason: Some(why.into()) },
            false => port.clone(),
        };
        Self(self.0.iter().map(port).collect())
    }
}

/// What keeps the kernel path from an interface, if anything does that workers could do better.
pub fn obstacle(interface: &str) -> Option<String> {
    if !bm_fastpath::is_ethernet(interface) {
        return None;
    }
    match Link::list() {
        Ok(links) => {
            if let Some(name) = in_vrf(&links, interface) {
                return Some(format!("{name} is in a VRF, for which the kernel path has no tables"));
            }
        }
        Err(error) => tracing::warn!(%error, interface, "whether it is in a VRF is not known"),
    }
    bm_fastpath::why_no_frames(interface)
}

/// The interface, or a VLAN on it, that is in a VRF.
fn in_vrf(links: &[Link], interface: &str) -> Option<String> {
    let own = links.iter().find(|link| &*link.name == interface)?;
    let on_top = |link: &&Link| link.lower == Some(own.ifindex) && link.lower_namespace.is_none();
    let is_in_one = |link: &&Link| {
        let master = links.iter().find(|other| Some(other.ifindex) == link.master);
        // A master that is neither of these is a VRF, or one whose members are no ports of ours on any path.
        master.is_some_and(|master| master.kind != Kind::Bridge && master.kind != Kind::Other("bond".into()))
    };
    let all = std::iter::once(own).chain(links.iter().filter(on_top));
    all.filter(is_in_one).map(|link| String::from(&*link.name)).next()
}

/// Chooses; `obstacle` says what keeps the kernel path from an interface.
///
/// # Errors
/// If a port shall take the kernel path and is no interface.
pub fn choose(config: &Config, obstacle: impl Fn(&str) -> Option<String>) -> Result<Paths, Failure> {
    let said = |port: &Port| match port.path {
        PathChoice::Auto => config.daemon.path,
        path => path,
    };
    let why = needs_workers(config);
    let of_port = |port: &Port| match said(port) {
        PathChoice::User => PortPath { in_kernel: false, reason: None },
        PathChoice::Kernel => PortPath { in_kernel: true, reason: None },
        PathChoice::Auto => {
            let own = match &port.device {
                Device::Xdp(name) => obstacle(name),
                device => Some(format!("{device} is no interface of Linux")),
            };
            match own.or_else(|| why.map(Into::into)) {
                Some(why) => PortPath { in_kernel: false, reason: Some(why) },
                None => PortPath { in_kernel: true, reason: Some(in_kernel_since(config).into()) },
            }
        }
    };
    let paths = Paths(config.ports.iter().map(of_port).collect());
    for (port, path) in config.ports.iter().zip(&paths.0) {
        if path.in_kernel && !matches!(port.device, Device::Xdp(_)) {
            return Err(Failure::Usage(format!(
                "{}: the kernel path forwards between interfaces of Linux only: use --path user, or path = \"user\" for this port",
                port.device
            )));
        }
    }
    Ok(paths)
}

/// Why ports that are not told their path take the kernel's.
fn in_kernel_since(config: &Config) -> &'static str {
    if config.claims.is_empty() { "nothing in use needs workers" } else { "workers get claimed packets only" }
}

/// What in use needs the user path for all ports that are not told theirs.
fn needs_workers(config: &Config) -> Option<&'static str> {
    let daemon = &config.daemon;
    // Where some port is told to take the user path, apps, hooks and workers have that; where packets are claimed,
    // they have those.
    if config.ports.iter().any(|port| port.path == PathChoice::User) || !config.claims.is_empty() {
        return None;
    }
    if !config.apps.is_empty() {
        return Some("apps run on workers");
    }
    if !config.hooks.is_empty() {
        return Some("hooks run on workers");
    }
    if daemon.workers.is_some() || !daemon.cores.is_empty() {
        return Some("workers or cores are named");
    }
    (daemon.idle == IdleChoice::Busy).then_some("workers shall be busy")
}

/// Whether the kernel path is to be there although no port takes it yet: ports may come that do.
pub fn may_come_to_kernel(config: &Config) -> bool {
    config.ports.is_empty() && config.daemon.path != PathChoice::User && needs_workers(config).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str, sends: bool) -> Result<Paths, Failure> {
        let config = Config::parse(std::path::Path::new("test.toml"), text).expect("a right configuration");
        choose(&config, |name| (!sends).then(|| format!("{name} takes no frames from XDP")))
    }

    fn chosen(text: &str, sends: bool) -> (String, String) {
        let paths = paths(text, sends).unwrap_or_else(|_| panic!("{text}"));
        (paths.name().into(), paths.reason().unwrap_or_default())
    }

    #[test]
    fn the_kernel_unless_something_needs_workers() {
        let eth0 = "[[port]]\ndevice = 'eth0'\n";
        assert_eq!(chosen(eth0, true).0, "kernel");
        for (more, sends, why) in [
            ("", false, "eth0 takes no frames from XDP"),
            ("[[hook]]\nfile = 'acl.lua'\n", true, "hooks run on workers"),
            ("[[app]]\nname = 'guard'\nmodule = 'guard.lua'\n", true, "apps run on workers"),
            ("[daemon]\nworkers = 2\n", true, "workers or cores are named"),
            ("[daemon]\ncores = [1]\n", true, "workers or cores are named"),
            ("[daemon]\nidle = 'busy'\n", true, "workers shall be busy"),
        ] {
            let (path, reason) = chosen(&format!("{eth0}{more}"), sends);
            assert_eq!(path, "user", "{more}");
            assert!(reason.starts_with(why), "{reason}");
        }
    }

    #[test]
    fn what_one_port_needs_is_no_matter_of_others() {
        let port = |name: &str| format!("[[port]]\ndevice = '{name}'\n");
        let paths = |more: &str| {
            let text = port("eth0") + &port("tap:vm0") + &port("vx0") + &port("eth1") + more;
            let config =
                Config::parse(std::path::Path::new("test.toml"), &text).expect("a right configuration");
            let obstacle = |name: &str| (name == "vx0").then(|| "vx0 takes no frames from XDP".to_string());
            choose(&config, obstacle).unwrap_or_else(|_| panic!("{text}"))
        };
        let chosen = paths("");
        assert_eq!(
            chosen.0.iter().map(|port| port.in_kernel).collect::<Vec<_>>(),
            [true, false, false, true]
        );
        let why: Vec<_> = chosen.0.iter().filter_map(|port| port.reason.as_deref()).collect();
        let kernel = "nothing in use needs workers";
        assert_eq!(why, [kernel, "tap:vm0 is no interface of Linux", "vx0 takes no frames from XDP", kernel]);
        // Hooks are for the packets of all ports, with such a port or without.
        assert_eq!(paths("[[hook]]\nfile = 'acl.lua'\n").name(), "user");
    }

    #[test]
    fn without_ports_the_kernel_path_waits_for_some() {
        let may_come = |text: &str| {
            may_come_to_kernel(&Config::parse(std::path::Path::new("test.toml"), text).expect("a right file"))
        };
        assert!(may_come(""));
        assert!(!may_come("[daemon]\npath = 'user'\n") && !may_come("[daemon]\nworkers = 2\n"));
    }

    #[test]
    fn vlans_in_a_vrf_are_seen() {
        let link = |ifindex, name: &str, kind| Link { ifindex, name: name.into(), kind, ..Link::default() };
        let vlan = |ifindex, name, lower| Link {
            lower: Some(lower),
            ..link(ifindex, name, Kind::Vlan { id: 7, protocol: 0x8100 })
        };
        let of = |master, link| Link { master: Some(master), ..link };
        let links = [
            link(1, "eth0", Kind::Device),
            vlan(5, "eth0.7", 1),
            link(2, "eth1", Kind::Veth),
            of(9, vlan(6, "eth1.7", 2)),
            of(10, link(3, "eth2", Kind::Device)),
            of(9, link(4, "eth3", Kind::Device)),
            of(11, link(7, "eth4", Kind::Device)),
            // On an interface of that number in another namespace.
            Link { lower_namespace: Some(0), ..of(9, vlan(8, "far.7", 1)) },
            link(9, "red", Kind::Vrf { table: 10 }),
            link(10, "br0", Kind::Bridge),
            link(11, "bond0", Kind::Other("bond".into())),
        ];
        let found = ["eth0", "eth1", "eth2", "eth3", "eth4", "gone"].map(|name| in_vrf(&links, name));
        assert_eq!(found, [None, Some("eth1.7".into()), None, Some("eth3".into()), None, None]);
    }

    #[test]
    fn claims_give_hooks_and_apps_their_packets() {
        for of in ["[[hook]]\nfile = 'acl.lua'\n", "[[app]]\nname = 'guard'\nmodule = 'guard.lua'\n"] {
            let text = format!("[[port]]\ndevice = 'eth0'\n{of}[[claim]]\nprotocol = 'udp'\n");
            assert_eq!(chosen(&text, true).0, "kernel");
            assert_eq!(chosen(&text, false).0, "user");
        }
    }

    #[test]
    fn what_is_said_holds() {
        for word in ["user", "kernel"] {
            let text = format!("[daemon]\npath = '{word}'\nworkers = 2\n[[port]]\ndevice = 'eth0'\n");
            assert_eq!(chosen(&text, false), (word.into(), String::new()));
        }
    }

    #[test]
    fn workers_take_all_ports_where_the_kernel_path_is_not_there() {
        let text =
            "[daemon]\nworkers = 1\n[[port]]\ndevice = 'eth0'\n[[port]]\ndevice = 'eth1'\npath = 'kernel'\n";
        let paths = paths(text, true).unwrap_or_else(|_| panic!("{text}")).on_workers();
        assert_eq!(paths.name(), "user");
        let reasons = paths.0.into_iter().map(|path| path.reason.unwrap_or_default());
        assert_eq!(
            reasons.collect::<Vec<_>>(),
            ["workers or cores are named", "the daemon was started with workers for all ports"]
        );
    }

    #[test]
    fn each_port_may_be_told_its_path() {
        let port = |name: &str, path: &str| format!("[[port]]\ndevice = '{name}'\npath = '{path}'\n");
        let three = |hook: &str| {
            let text = port("eth0", "auto") + &port("tap:vm0", "user") + &port("eth1", "kernel") + hook;
            let paths = paths(&text, true).unwrap_or_else(|_| panic!("{text}"));
            assert_eq!(paths.name(), "mixed");
            paths.0.iter().map(|port| port.in_kernel).collect::<Vec<_>>()
        };
        // The port that is told to take the user path is no reason for the others to do so.
        assert_eq!(three(""), [true, false, true]);
        assert_eq!(three("[[hook]]\nfile = 'acl.lua'\n"), [true, false, true]);
        assert!(paths(&port("tap:vm0", "kernel"), true).is_err());
        // What is said of one goes before what is said of all.
        let text = format!("[daemon]\npath = 'user'\n{}{}", port("eth0", "auto"), port("eth1", "kernel"));
        assert_eq!(chosen(&text, true).0, "mixed");
        let text = port("eth0", "auto") + &port("eth1", "user");
        assert_eq!(chosen(&text, false).0, "user", "an obstacle is one whatever others do");
    }
}
