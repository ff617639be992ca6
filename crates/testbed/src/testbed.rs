//! Three network namespaces in a row: a source of traffic, a router, a sink. All are removed again.
//!
//! ```text
//! PREFIX-src               PREFIX-rtr                PREFIX-snk
//!   s0 ──────────────────── r0    r1 ──────────────────── k0      (veth pairs)
//!   10.0.1.2, fd00:1::2   .1, ::1  10.0.16.1, fd00:2::1   next hop n at 10.0.16.1 + n and fd00:2::1 + n,
//!                                                         MAC 02:00:00:01 and n in two bytes
//! ```
//!
//! The neighbors are static, so nothing is resolved during a measurement. What an earlier run left under
//! the same prefix is removed first; dropping the `Testbed` removes this one.

pub mod busy;
pub mod cores;
pub mod kernel;
pub mod namespace;
pub mod napi;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::interrupt::Interrupted;
use crate::tables::NEXT_HOPS_MAX;
use namespace::Namespace;

/// Options of the test bed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestbedOptions {
    /// Prefix of the names of the namespaces.
    pub prefix: String,
    /// Prefix of the names of the interfaces; tests that run at the same time need different ones.
    pub tag: String,
    /// Next hops on the sink's side, 1 to 1023.
    pub next_hops: u16,
}

impl Default for TestbedOptions {
    fn default() -> Self {
        Self { prefix: "bm-demo".into(), tag: String::new(), next_hops: 16 }
    }
}

/// Why the test bed cannot be created.
#[derive(Debug)]
pub enum TestbedError {
    /// Namespaces, routes and BPF programs need root.
    NotRoot,
    /// The addresses of the test bed have no room for this number of next hops.
    NextHops(u16),
    /// A command failed.
    Command {
        /// The command line.
        command: String,
        /// Its standard error.
        output: String,
    },
    /// A system call failed.
    System {
        /// What was attempted, such as `make a folder`.
        what: String,
        /// Why it failed.
        error: io::Error,
    },
    /// A signal arrived.
    Interrupted,
}

impl fmt::Display for TestbedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRoot => f.write_str("network namespaces and XDP need root: run it with sudo"),
            Self::NextHops(wanted) => {
                write!(f, "{wanted} next hops are not possible: use 1 to {NEXT_HOPS_MAX}")
            }
            Self::Command { command, output } => write!(f, "{command}: {}", output.trim()),
            Self::System { what, error } => write!(f, "cannot {what}: {error}"),
            Self::Interrupted => Interrupted.fmt(f),
        }
    }
}

impl std::error::Error for TestbedError {}

impl From<Interrupted> for TestbedError {
    fn from(_: Interrupted) -> Self {
        Self::Interrupted
    }
}

impl TestbedError {
    /// The error of the last system call, and what was attempted.
    pub fn last_os(what: impl Into<String>) -> Self {
        Self::System { what: what.into(), error: io::Error::last_os_error() }
    }

    /// A system error with what was attempted, for `map_err`.
    pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::System { what, error }
    }
}

/// MAC addresses of both ends of the first veth pair, and of the router's end of the second.
pub mod mac {
    /// Of the source's interface.
    pub const SOURCE: [u8; 6] = [2, 0, 0, 0, 1, 2];
    /// Of the router's interface towards the source.
    pub const ROUTER_IN: [u8; 6] = [2, 0, 0, 0, 1, 1];
    /// Of the router's interface towards the sink.
    pub const ROUTER_OUT: [u8; 6] = [2, 0, 0, 0, 2, 1];
    /// The first four bytes of every next hop's MAC; the last two are its number.
    pub const NEXT_HOP: [u8; 4] = [2, 0, 0, 1];

    /// The MAC of one next hop. The first one is the sink's own interface.
    pub fn next_hop(number: u16) -> [u8; 6] {
        let ([a, b, c, d], [high, low]) = (NEXT_HOP, number.to_be_bytes());
        [a, b, c, d, high, low]
    }

    pub(super) fn text(mac: [u8; 6]) -> String {
        mac.map(|byte| format!("{byte:02x}")).join(":")
    }
}

/// The IPv4 address of the source, from which all traffic comes.
pub const SOURCE_IPV4: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
/// The IPv6 address of the source.
pub const SOURCE_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 2);
/// The router's IPv4 address towards the sink.
pub const ROUTER_OUT_IPV4: Ipv4Addr = Ipv4Addr::new(10, 0, 16, 1);
const ROUTER_OUT_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 1);

/// The IPv4 address of a next hop.
pub fn next_hop_ipv4(number: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(ROUTER_OUT_IPV4) + u32::from(number))
}

/// The IPv6 address of a next hop.
pub fn next_hop_ipv6(number: u16) -> Ipv6Addr {
    Ipv6Addr::from(u128::from(ROUTER_OUT_IPV6) + u128::from(number))
}

/// One end of a veth pair.
struct VethEnd<'a> {
    namespace: &'a Namespace,
    name: &'a str,
    mac: [u8; 6],
}

impl VethEnd<'_> {
    /// Makes the pair, with both ends down.
    fn join(&self, peer: &VethEnd<'_>) -> Result<(), TestbedError> {
        self.namespace.ip_batch(&format!(
            "link add {} address {} numrxqueues 1 numtxqueues 1 type veth \
             peer name {} address {} netns {} numrxqueues 1 numtxqueues 1\n",
            self.name,
            mac::text(self.mac),
            peer.name,
            mac::text(peer.mac),
            peer.namespace.name()
        ))
    }
}

/// Names of the four interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interfaces {
    /// The source's.
    pub source: String,
    /// The router's towards the source.
    pub router_in: String,
    /// The router's towards the sink.
    pub router_out: String,
    /// The sink's.
    pub sink: String,
}

/// The namespaces, as long as they exist.
pub struct Testbed {
    /// Where traffic comes from.
    pub source: Namespace,
    /// Where it is forwarded.
    pub router: Namespace,
    /// Where it ends.
    pub sink: Namespace,
    /// Names of the interfaces.
    pub interfaces: Interfaces,
    /// Next hops on the sink's side.
    pub next_hops: u16,
}

impl Testbed {
    /// Removes what an earlier run left, and sets everything up.
    pub fn up(options: &TestbedOptions) -> Result<Self, TestbedError> {
        require_root()?;
        if !(1..=NEXT_HOPS_MAX).contains(&options.next_hops) {
            return Err(TestbedError::NextHops(options.next_hops));
        }
        clear(&options.prefix);
        let tag = &options.tag;
        // From here on each namespace is removed by itself if a later step fails.
        let testbed = Self {
            source: Namespace::create(&format!("{}-src", options.prefix))?,
            router: Namespace::create(&format!("{}-rtr", options.prefix))?,
            sink: Namespace::create(&format!("{}-snk", options.prefix))?,
            interfaces: Interfaces {
                source: format!("{tag}s0"),
                router_in: format!("{tag}r0"),
                router_out: format!("{tag}r1"),
                sink: format!("{tag}k0"),
            },
            next_hops: options.next_hops,
        };
        testbed.join()?;
        testbed.settings()?;
        testbed.addresses()?;
        testbed.neighbors()?;
        Ok(testbed)
    }

    /// Both veth pairs, with both ends down.
    fn join(&self) -> Result<(), TestbedError> {
        let Interfaces { source, router_in, router_out, sink } = &self.interfaces;
        let sender = VethEnd { namespace: &self.source, name: source, mac: mac::SOURCE };
        let inner = VethEnd { namespace: &self.router, name: router_in, mac: mac::ROUTER_IN };
        let outer = VethEnd { namespace: &self.router, name: router_out, mac: mac::ROUTER_OUT };
        let receiver = VethEnd { namespace: &self.sink, name: sink, mac: mac::next_hop(1) };
        sender.join(&inner)?;
        outer.join(&receiver)
    }

    fn settings(&self) -> Result<(), TestbedError> {
        for (namespace, name) in self.ends() {
            let ipv6 = format!("net/ipv6/conf/{name}");
            namespace.sysctl(&[
                (&format!("{ipv6}/accept_dad"), "0"),
                (&format!("{ipv6}/accept_ra"), "0"),
                (&format!("{ipv6}/router_solicitations"), "0"),
                (&format!("net/ipv4/conf/{name}/rp_filter"), "0"),
            ])?;
            // A frame whose checksum is left to the hardware would pass XDP and AF_XDP with a wrong checksum.
            namespace.ethtool(name, namespace::Feature::TxChecksum, false)?;
            // With GRO the peer's NAPI stays enabled; without that no frame can be redirected into a veth pair.
            namespace.ethtool(name, namespace::Feature::Gro, true)?;
        }
        self.router.sysctl(&[
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
        ])?;
        // Older kernels limit the number of IPv6 routes; newer ones ignore the setting or do not have it.
        let _ = self.router.sysctl(&[("net/ipv6/route/max_size", "2147483647")]);
        Ok(())
    }

    fn addresses(&self) -> Result<(), TestbedError> {
        let Interfaces { source, router_in, router_out, sink } = &self.interfaces;
        self.source.ip_batch(&format!(
            "link set lo up\nlink set {source} up\n\
             addr add {SOURCE_IPV4}/24 dev {source}\naddr add {SOURCE_IPV6}/64 dev {source} nodad\n\
             route add default via 10.0.1.1\nroute add ::/0 via fd00:1::1\n"
        ))?;
        self.router.ip_batch(&format!(
            "link set lo up\nlink set {router_in} up\nlink set {router_out} up\n\
             addr add 10.0.1.1/24 dev {router_in}\naddr add fd00:1::1/64 dev {router_in} nodad\n\
             addr add {ROUTER_OUT_IPV4}/20 dev {router_out}\naddr add {ROUTER_OUT_IPV6}/64 dev {router_out} nodad\n"
        ))?;
        self.sink.ip_batch(&format!(
            "link set lo up\nlink set {sink} up\n\
             addr add {}/20 dev {sink}\naddr add {}/64 dev {sink} nodad\n\
             route add default via {ROUTER_OUT_IPV4}\nroute add ::/0 via {ROUTER_OUT_IPV6}\n",
            next_hop_ipv4(1),
            next_hop_ipv6(1),
        ))
    }

    /// Every destination has a neighbor that never becomes stale.
    fn neighbors(&self) -> Result<(), TestbedError> {
        let Interfaces { source, router_in, router_out, sink } = &self.interfaces;
        let line = |address: &dyn fmt::Display, mac, interface| {
            format!("neigh replace {address} lladdr {} dev {interface} nud permanent\n", mac::text(mac))
        };
        let mut router = line(&SOURCE_IPV4, mac::SOURCE, router_in);
        router += &line(&SOURCE_IPV6, mac::SOURCE, router_in);
        for number in 1..=self.next_hops {
            router += &line(&next_hop_ipv4(number), mac::next_hop(number), router_out);
            router += &line(&next_hop_ipv6(number), mac::next_hop(number), router_out);
        }
        self.router.ip_batch(&router)?;
        self.source.ip_batch(
            &(line(&"10.0.1.1", mac::ROUTER_IN, source) + &line(&"fd00:1::1", mac::ROUTER_IN, source)),
        )?;
        self.sink.ip_batch(
            &(line(&ROUTER_OUT_IPV4, mac::ROUTER_OUT, sink) + &line(&ROUTER_OUT_IPV6, mac::ROUTER_OUT, sink)),
        )
    }

    /// Every interface with its namespace.
    fn ends(&self) -> [(&Namespace, &str); 4] {
        [
            (&self.source, &self.interfaces.source),
            (&self.router, &self.interfaces.router_in),
            (&self.router, &self.interfaces.router_out),
            (&self.sink, &self.interfaces.sink),
        ]
    }
}

/// An error that says what to do if the user is not root.
pub fn require_root() -> Result<(), TestbedError> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(TestbedError::NotRoot) }
}

/// Ends all processes in the namespaces with a prefix, and deletes the namespaces. If there are none, does nothing.
pub fn clear(prefix: &str) {
    for end in ["src", "rtr", "snk"] {
        namespace::delete(&format!("{prefix}-{end}"));
    }
}

#[cfg(test)]
mod tests;
