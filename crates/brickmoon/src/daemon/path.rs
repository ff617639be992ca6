//! Chooses the path of each port's packets.
//!
//! ```text
//! [[port]] path, --path PORT=..  ─► else [daemon] path, --path ─► else: kernel, unless something needs workers
//! ```
//!
//! All ports without a path of their own need workers if the configuration sets workers or cores, or has hooks or apps
//! (unless claims select their packets, or some port is set to the user path). A single port needs workers if its
//! device is not a Linux interface, if XDP cannot send through its interface, or if that is in a VRF; the other ports
//! stay in the kernel.
//!
//! An interface that does not exist, or has no Ethernet header, needs no workers. The first is checked again when it
//! appears; packets of the second go to Linux on either path.

use bm_control::config::{Config, Device, IdleChoice, PathChoice, Port};
use bm_netlink::{Kind, Link};

use crate::failure::Failure;

/// The path of one port, and the reason if it was chosen automatically.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPath {
    /// Whether its packets take the kernel path.
    pub in_kernel: bool,
    /// Reason for `show ports`; `None` if the configuration sets the path.
    pub reason: Option<String>,
}

/// The paths of all ports, in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths(pub Vec<PortPath>);

impl Paths {
    /// Whether any port uses the kernel path.
    pub fn any_kernel(&self) -> bool {
        self.0.iter().any(|port| port.in_kernel)
    }

    /// Whether any port uses the user path.
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

    /// Whether workers are needed, for ports of the user path or for claimed packets.
    pub fn needs_workers(&self, config: &Config) -> bool {
        self.any_user() || self.claims(config)
    }

    /// Whether workers get claimed packets from ports of the kernel path.
    pub fn claims(&self, config: &Config) -> bool {
        self.any_kernel() && !config.claims.is_empty()
    }

    /// The reason of the paths, if all ports have the same.
    pub fn reason(&self) -> Option<String> {
        let first = self.0.first()?.reason.clone();
        self.0.iter().all(|port| port.reason == first).then_some(first).flatten()
    }

    /// Whether workers may replace the kernel path on all its ports: no path is set by the configuration.
    pub fn may_do_without(&self) -> bool {
        self.0.iter().filter(|port| port.in_kernel).all(|port| port.reason.is_some())
    }

    /// These paths in a daemon that was started without the kernel path, which cannot be added later.
    pub fn on_workers(&self) -> Self {
        self.instead("the daemon was started without the kernel path")
    }

    /// The user path for all ports, for this reason.
    pub fn instead(&self, why: &str) -> Self {
        let port = |port: &PortPath| match port.in_kernel {
            true => PortPath { in_kernel: false, reason: Some(why.into()) },
            false => port.clone(),
        };
        Self(self.0.iter().map(port).collect())
    }
}

/// Why an interface cannot use the kernel path although it could use the user path; `None` if it can.
pub fn obstacle(interface: &str) -> Option<String> {
    if !bm_fastpath::is_ethernet(interface) {
        return None;
    }
    match Link::list() {
        Ok(links) => {
            if let Some(name) = in_vrf(&links, interface) {
                return Some(format!("{name} is in a VRF, which the kernel path does not support"));
            }
        }
        Err(error) => tracing::warn!(%error, interface, "cannot tell whether the interface is in a VRF"),
    }
    bm_fastpath::why_no_frames(interface)
}

/// Name of the interface, or of a VLAN on it, if that is in a VRF.
fn in_vrf(links: &[Link], interface: &str) -> Option<String> {
    let own = links.iter().find(|link| &*link.name == interface)?;
    let on_top = |link: &&Link| link.lower == Some(own.ifindex) && link.lower_namespace.is_none();
    let is_in_one = |link: &&Link| {
        let master = links.iter().find(|other| Some(other.ifindex) == link.master);
        // A master that is neither of these is a VRF, or one whose members cannot be ports on any path.
        master.is_some_and(|master| master.kind != Kind::Bridge && master.kind != Kind::Other("bond".into()))
    };
    let all = std::iter::once(own).chain(links.iter().filter(on_top));
    all.filter(is_in_one).map(|link| String::from(&*link.name)).next()
}

/// Chooses the paths; `obstacle` returns why an interface cannot use the kernel path.
///
/// # Errors
/// If a port is set to the kernel path but is not a Linux interface.
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
                device => Some(format!("{device} is not a Linux interface")),
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
                "{}: the kernel path needs Linux interfaces: use --path user, or path = \"user\" for this port",
                port.device
            )));
        }
    }
    Ok(paths)
}

/// Reason for the kernel path on ports without a path of their own.
fn in_kernel_since(config: &Config) -> &'static str {
    if config.claims.is_empty() { "nothing in use needs workers" } else { "workers get only claimed packets" }
}

/// What in the configuration needs the user path on all ports without a path of their own.
fn needs_workers(config: &Config) -> Option<&'static str> {
    let daemon = &config.daemon;
    // Apps, hooks and workers get the packets of ports that are set to the user path, or the claimed packets.
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
        return Some("workers or cores are configured");
    }
    (daemon.idle == IdleChoice::Busy).then_some("busy polling needs workers")
}

/// Whether to load the kernel path although there are no ports yet, since ports may be added that use it.
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
            ("[daemon]\nworkers = 2\n", true, "workers or cores are configured"),
            ("[daemon]\ncores = [1]\n", true, "workers or cores are configured"),
            ("[daemon]\nidle = 'busy'\n", true, "busy polling needs workers"),
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
        assert_eq!(why, [kernel, "tap:vm0 is not a Linux interface", "vx0 takes no frames from XDP", kernel]);
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
            // On an interface with this index in another namespace.
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
            ["workers or cores are configured", "the daemon was started without the kernel path"]
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
        // One port on the user path does not move the others there.
        assert_eq!(three(""), [true, false, true]);
        assert_eq!(three("[[hook]]\nfile = 'acl.lua'\n"), [true, false, true]);
        assert!(paths(&port("tap:vm0", "kernel"), true).is_err());
        // The path of a port overrides that of [daemon].
        let text = format!("[daemon]\npath = 'user'\n{}{}", port("eth0", "auto"), port("eth1", "kernel"));
        assert_eq!(chosen(&text, true).0, "mixed");
        let text = port("eth0", "auto") + &port("eth1", "user");
        assert_eq!(chosen(&text, false).0, "user", "an obstacle is one whatever others do");
    }
}
