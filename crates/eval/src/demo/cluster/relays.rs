//! The relays of a 2-ary 3-fly, in namespaces of their own, and the cables between them and the nodes.
//!
//! ```text
//! host ── node 0 ══ o8 ─► relay 8 ─► relay 12 ─► relay 16 ─► i16 ══ node 0        eight nodes, three stages of four relays
//! ```
//!
//! Frames pass each cable in one direction only; answers to probes take another path. The cable from x to y is `oY` in the
//! namespace of x and `iX` in that of y. A node's fabric link `fabM` is one end of a pair, whose other end is `rM`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use bm_testbed::testbed::TestbedError;
use bm_testbed::testbed::namespace::{Namespace, command};
use bm_vlb::address::Node;
use bm_vlb::topology::{Link, Topology};

use super::DemoError;

/// k and n.
const FLY: (u32, u32) = (2, 3);
/// How many nodes have external ports.
pub const TERMINALS: usize = 8;
/// Relays in a stage.
pub const STAGE: usize = 4;
/// The cable that is cut for a while: from a relay of the first stage to one of the second.
pub const CUT: (usize, usize) = (8, 12);

/// What `brickmoon cluster relay show --json` says.
pub type Counts = BTreeMap<String, BTreeMap<String, u64>>;

/// Relays and cables. Dropping it removes them.
pub struct Relays {
    topology: Topology,
    spaces: Vec<Namespace>,
    program: PathBuf,
}

fn at(number: usize) -> Node {
    Node::new(number as u16).expect("an n-fly of 20 servers has small numbers")
}

impl Relays {
    /// Makes them, connects them with the nodes, and starts the program on all.
    ///
    /// # Errors
    /// What failed.
    pub fn up(prefix: &str, nodes: &[Namespace], program: &Path) -> Result<Self, DemoError> {
        let topology = Topology::fly(FLY.0, FLY.1, 1).expect("2 and 3 are allowed");
        let all = usize::from(topology.nodes());
        let spaces = (TERMINALS..all).map(|n| Namespace::create(&format!("{prefix}-r{n}")));
        let spaces = spaces.collect::<Result<Vec<_>, _>>()?;
        let relays = Self { topology, spaces, program: program.into() };
        for relay in &relays.spaces {
            relay.sysctl(&[("net/ipv6/conf/all/disable_ipv6", "1")])?;
        }
        (0..TERMINALS).try_for_each(|n| wire_ends(&nodes[n], n))?;
        for Link { from, to, .. } in relays.topology.links() {
            let (from, to) = (from.index(), to.index());
            let (near, far) = (relays.space(nodes, from), relays.space(nodes, to));
            near.ip_batch(&format!("link add o{to} up type veth peer name i{from} netns {}\n", far.name()))?;
            far.ip_batch(&format!("link set i{from} up\n"))?;
        }
        for n in 0..all {
            let arguments = relays.arguments(n);
            let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
            relays.call(relays.space(nodes, n), &arguments)?;
        }
        Ok(relays)
    }

    /// The namespace of a node or relay.
    fn space<'s>(&'s self, nodes: &'s [Namespace], n: usize) -> &'s Namespace {
        nodes.get(n).unwrap_or_else(|| &self.spaces[n - TERMINALS])
    }

    /// The namespaces of the relays.
    pub fn spaces(&self) -> &[Namespace] {
        &self.spaces
    }

    /// Runs `brickmoon cluster relay` in a namespace.
    fn call(&self, space: &Namespace, arguments: &[&str]) -> Result<String, DemoError> {
        let mut program = Command::new(&self.program);
        space.confine(&mut program)?;
        Ok(command(&mut program, &[&["cluster", "relay"], arguments].concat(), "")?)
    }

    /// The arguments that make a server the relay that it is to be.
    fn arguments(&self, n: usize) -> Vec<String> {
        let mut words = vec!["up".to_string()];
        let links = self.topology.links();
        for link in links.iter().filter(|link| link.from == at(n)) {
            let mut nodes = Vec::new();
            for to in (0..TERMINALS).filter(|&to| to != n && self.next(n, to) == Some(link.to.index())) {
                nodes.push(to.to_string());
            }
            words.extend(["--link".into(), format!("o{}={}", link.to.number(), nodes.join(","))]);
        }
        for link in links.iter().filter(|link| link.to == at(n)) {
            words.extend(["--link".into(), format!("i{}", link.from.number())]);
        }
        if n < TERMINALS {
            words.extend(["--own".into(), n.to_string()]);
            for m in (0..TERMINALS).filter(|m| *m != n) {
                words.extend(["--end".into(), format!("r{m}={m}")]);
            }
        }
        words
    }

    /// The server to which one sends frames for a node; `None` if that leads to another node.
    fn next(&self, n: usize, to: usize) -> Option<usize> {
        let mut path = Vec::new();
        let mut here = at(n);
        loop {
            let link = self.topology.next_link(here, at(to), 0)?;
            here = self.topology.links()[link.index()].to;
            path.push(here.index());
            if !self.topology.is_relay(here) {
                return (here == at(to)).then_some(path[0]);
            }
        }
    }

    /// Whether packets from one node to another pass the cable that is cut for a while, or answers to their probes do: they go
    /// over other nodes then.
    pub fn is_detoured(&self, from: usize, to: usize) -> bool {
        self.passes_cut(from, to) || self.passes_cut(to, from)
    }

    fn passes_cut(&self, from: usize, to: usize) -> bool {
        let relay = self.next(from, to).filter(|relay| *relay == CUT.0);
        relay.and_then(|relay| self.next(relay, to)) == Some(CUT.1)
    }

    /// What all servers have counted: the nodes first.
    ///
    /// # Errors
    /// A server is no relay any more.
    pub fn counts(&self, nodes: &[Namespace]) -> Result<Vec<Counts>, DemoError> {
        let mut counts = Vec::new();
        for n in 0..usize::from(self.topology.nodes()) {
            let said = self.call(self.space(nodes, n), &["show", "--json"])?;
            let of_one = serde_json::from_str(&said);
            counts.push(of_one.map_err(|error| DemoError::NotReady(format!("{error}: {said}")))?);
        }
        Ok(counts)
    }

    /// How many packets each cable has carried between two times.
    pub fn carried(&self, before: &[Counts], after: &[Counts]) -> Vec<(usize, usize, u64)> {
        let links = self.topology.links().iter().map(|link| {
            let (from, to) = (link.from.index(), link.to.index());
            (from, to, received(after, from, to).saturating_sub(received(before, from, to)))
        });
        links.collect()
    }

    /// Cuts a cable between relays, or mends it.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn set_cable(&self, up: bool) -> Result<(), DemoError> {
        let state = if up { "up" } else { "down" };
        Ok(self.spaces[CUT.0 - TERMINALS].ip_batch(&format!("link set o{} {state}\n", CUT.1))?)
    }
}

/// The fabric links of a node, and their other ends.
fn wire_ends(node: &Namespace, n: usize) -> Result<(), TestbedError> {
    let others = (0..TERMINALS).filter(|m| *m != n);
    let pairs = others.map(|m| format!("link add fab{m} up type veth peer name r{m}\nlink set r{m} up\n"));
    node.ip_batch(&pairs.collect::<String>())
}

/// Packets that a server has received over the cable from another one.
fn received(counts: &[Counts], from: usize, to: usize) -> u64 {
    let device = counts.get(to).and_then(|counts| counts.get(&format!("i{from}")));
    device.and_then(|device| device.get("packets")).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_know_where_their_links_lead() {
        let topology = Topology::fly(FLY.0, FLY.1, 1).unwrap();
        assert_eq!(usize::from(topology.terminals()), TERMINALS);
        let relays = Relays { topology, spaces: Vec::new(), program: PathBuf::new() };
        let words = |n| relays.arguments(n).join(" ");
        assert_eq!(words(8), "up --link o12=0,1,2,3 --link o14=4,5,6,7 --link i0 --link i4");
        assert!(
            words(5).starts_with("up --link o9=0,1,2,3,4,6,7 --link i18 --own 5 --end r0=0 "),
            "{}",
            words(5)
        );
        // The last stage: one node on each link.
        assert_eq!(words(16), "up --link o0=0 --link o1=1 --link i12 --link i13");
        assert_eq!(relays.next(CUT.0, 0), Some(CUT.1));
        let detoured = |from| {
            (0..TERMINALS).filter(|to| *to != from && relays.is_detoured(from, *to)).collect::<Vec<_>>()
        };
        assert_eq!((detoured(4), detoured(1), detoured(5)), (vec![0, 1, 2, 3], vec![0, 4], Vec::new()));
    }
}
