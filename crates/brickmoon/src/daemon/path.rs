//! Which path packets take where the configuration leaves that open.
//!
//! In the kernel, unless something in use needs workers: a device that is no interface of Linux, workers or cores
//! that somebody asked for, an interface that XDP cannot send through, one in a VRF.

use bm_control::config::{Config, Device, IdleChoice, PathChoice};

/// The path, and why it is that one where there was a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// `Kernel` or `User`.
    pub path: PathChoice,
    /// A few words for `status`; none where the configuration says it.
    pub reason: Option<String>,
}

impl Chosen {
    /// Whether packets are forwarded in the kernel.
    pub fn in_kernel(&self) -> bool {
        self.path == PathChoice::Kernel
    }

    /// Workers after all, since the kernel path could not be had.
    pub fn instead(why: &str) -> Self {
        Self { path: PathChoice::User, reason: Some(why.into()) }
    }
}

/// What keeps the kernel path from an interface, if anything does.
pub fn obstacle(interface: &str) -> Option<String> {
    // A master that is neither of these is a VRF, or one whose members are no ports of ours on any path.
    let master = std::path::Path::new("/sys/class/net").join(interface).join("master");
    if master.exists() && !["bridge", "bonding"].iter().any(|kind| master.join(kind).exists()) {
        return Some(format!("{interface} is in a VRF, for which the kernel path has no tables"));
    }
    (!bm_fastpath::sends_through(interface)).then(|| {
        format!(
            "{interface} takes no frames from XDP; `ethtool -K {interface} gro on` at its far end, if it is a veth, lets it"
        )
    })
}

/// Chooses; `obstacle` says what keeps the kernel path from an interface.
pub fn choose(config: &Config, obstacle: impl Fn(&str) -> Option<String>) -> Chosen {
    if config.daemon.path != PathChoice::Auto {
        return Chosen { path: config.daemon.path, reason: None };
    }
    match needs_workers(config, obstacle) {
        Some(why) => Chosen::instead(&why),
        None => Chosen { path: PathChoice::Kernel, reason: Some("nothing in use needs workers".into()) },
    }
}

/// What in use needs the user path.
fn needs_workers(config: &Config, obstacle: impl Fn(&str) -> Option<String>) -> Option<String> {
    let daemon = &config.daemon;
    for port in &config.ports {
        let Device::Xdp(name) = &port.device else {
            return Some(format!("{} is no interface of Linux", port.device));
        };
        if let Some(why) = obstacle(name) {
            return Some(why);
        }
    }
    if !config.hooks.is_empty() {
        return Some("hooks run on workers".into());
    }
    if daemon.workers.is_some() || !daemon.cores.is_empty() {
        return Some("workers or cores are named".into());
    }
    (daemon.idle == IdleChoice::Busy).then(|| "workers shall be busy".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(text: &str, sends: bool) -> (PathChoice, String) {
        let config = Config::parse(std::path::Path::new("test.toml"), text).expect("a right configuration");
        let Chosen { path, reason } =
            choose(&config, |name| (!sends).then(|| format!("{name} takes no frames from XDP")));
        (path, reason.unwrap_or_default())
    }

    #[test]
    fn the_kernel_unless_something_needs_workers() {
        let eth0 = "[[port]]\ndevice = 'eth0'\n";
        assert_eq!(chosen(eth0, true).0, PathChoice::Kernel);
        for (more, sends, why) in [
            ("", false, "eth0 takes no frames from XDP"),
            ("[[port]]\ndevice = 'tap:vm0'\n", true, "tap:vm0 is no interface of Linux"),
            ("[[hook]]\nfile = 'acl.lua'\n", true, "hooks run on workers"),
            ("[daemon]\nworkers = 2\n", true, "workers or cores are named"),
            ("[daemon]\ncores = [1]\n", true, "workers or cores are named"),
            ("[daemon]\nidle = 'busy'\n", true, "workers shall be busy"),
        ] {
            let (path, reason) = chosen(&format!("{eth0}{more}"), sends);
            assert_eq!(path, PathChoice::User, "{more}");
            assert!(reason.starts_with(why), "{reason}");
        }
    }

    #[test]
    fn what_is_said_holds() {
        for (word, path) in [("user", PathChoice::User), ("kernel", PathChoice::Kernel)] {
            let text = format!("[daemon]\npath = '{word}'\nworkers = 2\n");
            assert_eq!(chosen(&text, false), (path, String::new()));
        }
    }
}
