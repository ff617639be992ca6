//! What each counter belongs to. In the file, the name of a counter is the path of its scope, followed by its own name:
//!
//! ```text
//! port/eth0/0/receive/received      router/0/eth0/drop/no_route      worker/0/breaths
//! '---- scope -----' '-name-'       '-- scope ---' '-- name --'      '-scope-' '-name'
//! ```
//!
//! Only this module writes and parses these paths.

use std::fmt;

/// What a counter belongs to. Names of ports, switches and hooks contain no `/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope<'a> {
    /// Frames received from a queue of a port.
    PortReceive {
        port: &'a str,
        /// The queue's number.
        queue: usize,
    },
    /// Frames sent to a queue of a port.
    PortTransmit {
        port: &'a str,
        /// The queue's number.
        queue: usize,
    },
    /// The device's own counters of a queue.
    PortDevice {
        port: &'a str,
        /// The queue's number.
        queue: usize,
    },
    /// A worker's router, for frames received on one port.
    Router {
        worker: usize,
        /// The port on which they were received.
        port: &'a str,
    },
    /// Frames that the slow path sends through a worker.
    Return { worker: usize },
    /// A worker's choice of fabric links, in a cluster.
    Balancer { worker: usize },
    /// The slow path.
    Slow,
    /// The slow path, for frames received on one port.
    SlowPort {
        /// The port on which they were received.
        port: &'a str,
    },
    /// A link between two apps of a worker.
    Link {
        worker: usize,
        /// Its name, as in `eth0.output -> router.eth0`.
        link: &'a str,
    },
    /// A worker itself.
    Worker { worker: usize },
    /// The time that a worker spends in one of its apps.
    Time {
        worker: usize,
        /// The app's name, as in `router`.
        app: &'a str,
    },
    /// A hook in one thread.
    Hook {
        /// The hook's name.
        hook: &'a str,
        /// The worker; the slow path's thread if `None`.
        worker: Option<usize>,
    },
    /// A port of a switch.
    Switch { switch: &'a str, port: &'a str },
    /// A port of the kernel path.
    Kernel { port: &'a str },
    /// The program that decides which frames of a port come to workers.
    Steering { port: &'a str },
    /// What Linux was left of a port's packets, and what it dropped.
    Linux { port: &'a str },
    /// A filter rule.
    Filter {
        /// Its name, which may contain any character.
        rule: &'a str,
    },
    /// Any other scope, such as an app of a Lua program, by its path.
    Other(&'a str),
}

impl<'a> Scope<'a> {
    /// Splits the full name of a counter into its scope and its own name.
    pub fn parse(name: &'a str) -> (Self, &'a str) {
        Self::known(name).unwrap_or_else(|| {
            let (path, own) = name.rsplit_once('/').unwrap_or(("", name));
            match path.strip_suffix("/drop") {
                Some(path) => (Self::Other(path), &name[path.len() + 1..]),
                None => (Self::Other(path), own),
            }
        })
    }

    fn known(name: &'a str) -> Option<(Self, &'a str)> {
        let (kind, rest) = name.split_once('/')?;
        let worker_and_rest = || {
            let (worker, rest) = rest.split_once('/')?;
            Some((worker.parse().ok()?, rest))
        };
        Some(match kind {
            "port" => {
                let (port, rest) = rest.split_once('/')?;
                let (queue, rest) = rest.split_once('/')?;
                let (queue, (side, own)) = (queue.parse().ok()?, rest.split_once('/')?);
                match side {
                    "receive" => (Self::PortReceive { port, queue }, own),
                    "transmit" => (Self::PortTransmit { port, queue }, own),
                    "device" => (Self::PortDevice { port, queue }, own),
                    _ => return None,
                }
            }
            "router" => {
                let (worker, rest) = worker_and_rest()?;
                let (port, own) = rest.split_once('/')?;
                (Self::Router { worker, port }, own)
            }
            "return" => worker_and_rest().map(|(worker, own)| (Self::Return { worker }, own))?,
            "balancer" => worker_and_rest().map(|(worker, own)| (Self::Balancer { worker }, own))?,
            "worker" => worker_and_rest().map(|(worker, own)| (Self::Worker { worker }, own))?,
            "slow" => match rest.split_once('/') {
                Some((port, own)) => (Self::SlowPort { port }, own),
                None => (Self::Slow, rest),
            },
            "link" => {
                let (worker, rest) = worker_and_rest()?;
                let (link, own) = rest.rsplit_once('/')?;
                (Self::Link { worker, link }, own)
            }
            "time" => {
                let (worker, rest) = worker_and_rest()?;
                let (app, own) = rest.rsplit_once('/')?;
                (Self::Time { worker, app }, own)
            }
            "hook" => {
                let (hook, rest) = rest.split_once('/')?;
                let (worker, own) = rest.split_once('/')?;
                let worker = if worker == SLOW { None } else { Some(worker.parse().ok()?) };
                (Self::Hook { hook, worker }, own)
            }
            "switch" => {
                let (switch, rest) = rest.split_once('/')?;
                let (port, own) = rest.split_once('/')?;
                (Self::Switch { switch, port }, own)
            }
            "kernel" => rest.split_once('/').map(|(port, own)| (Self::Kernel { port }, own))?,
            "steering" => rest.split_once('/').map(|(port, own)| (Self::Steering { port }, own))?,
            "linux" => rest.split_once('/').map(|(port, own)| (Self::Linux { port }, own))?,
            "filter" => rest.rsplit_once('/').map(|(rule, own)| (Self::Filter { rule }, own))?,
            _ => return None,
        })
    }
}

/// The slow path's thread in a path; other threads have the worker's number there.
const SLOW: &str = "slow";

impl fmt::Display for Scope<'_> {
    /// Its path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortReceive { port, queue } => write!(f, "port/{port}/{queue}/receive"),
            Self::PortTransmit { port, queue } => write!(f, "port/{port}/{queue}/transmit"),
            Self::PortDevice { port, queue } => write!(f, "port/{port}/{queue}/device"),
            Self::Router { worker, port } => write!(f, "router/{worker}/{port}"),
            Self::Return { worker } => write!(f, "return/{worker}"),
            Self::Balancer { worker } => write!(f, "balancer/{worker}"),
            Self::Slow => f.write_str("slow"),
            Self::SlowPort { port } => write!(f, "slow/{port}"),
            Self::Link { worker, link } => write!(f, "link/{worker}/{link}"),
            Self::Worker { worker } => write!(f, "worker/{worker}"),
            Self::Time { worker, app } => write!(f, "time/{worker}/{app}"),
            Self::Hook { hook, worker: Some(worker) } => write!(f, "hook/{hook}/{worker}"),
            Self::Hook { hook, worker: None } => write!(f, "hook/{hook}/{SLOW}"),
            Self::Switch { switch, port } => write!(f, "switch/{switch}/{port}"),
            Self::Kernel { port } => write!(f, "kernel/{port}"),
            Self::Steering { port } => write!(f, "steering/{port}"),
            Self::Linux { port } => write!(f, "linux/{port}"),
            Self::Filter { rule } => write!(f, "filter/{rule}"),
            Self::Other(path) => f.write_str(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_paths_that_it_writes() {
        let (port, worker) = ("eth0.7", 12);
        for scope in [
            Scope::PortReceive { port, queue: 0 },
            Scope::PortTransmit { port, queue: 31 },
            Scope::PortDevice { port, queue: 1 },
            Scope::Router { worker, port },
            Scope::Return { worker },
            Scope::Balancer { worker },
            Scope::SlowPort { port },
            Scope::Link { worker, link: "eth0.output -> router.eth0" },
            Scope::Worker { worker },
            Scope::Time { worker, app: "eth0/0" },
            Scope::Hook { hook: "acl", worker: Some(3) },
            Scope::Hook { hook: "acl", worker: None },
            Scope::Switch { switch: "lan", port },
            Scope::Kernel { port },
            Scope::Steering { port },
            Scope::Linux { port },
            Scope::Filter { rule: "no telnet/ssh" },
            Scope::Other("app/counter/source"),
        ] {
            let name = format!("{scope}/received");
            assert_eq!(Scope::parse(&name), (scope, "received"), "{name}");
            if !matches!(scope, Scope::Link { .. } | Scope::Filter { .. } | Scope::Time { .. }) {
                let name = format!("{scope}/drop/no_route");
                assert_eq!(Scope::parse(&name), (scope, "drop/no_route"), "{name}");
            }
        }
        assert_eq!(Scope::parse("slow/resolve_asked"), (Scope::Slow, "resolve_asked"));
        assert_eq!(Scope::parse("hook/acl/0/count/seen").1, "count/seen");
    }

    #[test]
    fn other_names_belong_to_other_scopes() {
        for (name, path, own) in [
            ("lines", "", "lines"),
            ("lines/read", "lines", "read"),
            ("port/eth0/receive/received", "port/eth0/receive", "received"),
            ("port/eth0/x/receive/received", "port/eth0/x/receive", "received"),
            ("worker/one/breaths", "worker/one", "breaths"),
            ("a/drop/b", "a", "drop/b"),
            ("/drop/b", "", "drop/b"),
            ("", "", ""),
        ] {
            assert_eq!(Scope::parse(name), (Scope::Other(path), own), "{name:?}");
        }
    }
}
