//! Which links there are between the servers, and which one leads towards a node.
//!
//! ```text
//! mesh: each server linked        2-ary 2-fly:  0 ─┐      ┌─ 0     0..3 are the same servers left and right; s are
//! to each other, maybe twice                    1 ─┴ s0 ╳ s2 ┴─ 1     relays: servers without external ports
//!                                               2 ─┬ s1 ╳ s3 ┬─ 2
//!                                               3 ─┘      └─ 3
//! ```
//!
//! In a k-ary n-fly the k^n servers with external ports are joined by n stages of k^(n-1) relays with k links in and k
//! out. Stage i sets the i-th digit of the line that a frame is on, in base k from the highest, to that of its
//! target: after n stages it is on the target's line. So each pair has exactly one path, and VLB over a random
//! intermediate makes two of them.

use crate::address::Node;

/// A link in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The node that sends.
    pub from: Node,
    /// The node that receives.
    pub to: Node,
    /// Its rate; 0 while it is down.
    pub bps: u64,
}

/// The place of a link among all links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u32);

impl LinkId {
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Why there is no such topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    #[error("a link leads from node {0} to itself")]
    Loop(u16),
    #[error("a link names node {0}, which does not exist")]
    NoNode(u16),
    #[error("{nodes} nodes are more than the {} that a frame can name", Node::COUNT, nodes = .0)]
    TooMany(u64),
    #[error("a k-ary n-fly needs k of at least 2 and n of at least 1")]
    NoFly,
}

/// The links from one node to another: consecutive places.
#[derive(Clone, Copy, Debug, Default)]
struct Parallel {
    first: u32,
    count: u32,
}

enum Shape {
    /// By sender and receiver.
    Mesh(Vec<Parallel>),
    Fly {
        k: u32,
        n: u32,
        lines: u32,
    },
}

/// Nodes and links. Nodes with external ports come first.
pub struct Topology {
    shape: Shape,
    terminals: u16,
    nodes: u16,
    links: Vec<Link>,
}

impl Topology {
    /// Each node linked to each other, in both directions.
    pub fn mesh(nodes: u16, bps: u64) -> Result<Self, Impossible> {
        let mut links = Vec::new();
        for from in (0..nodes).filter_map(Node::new) {
            let others = (0..nodes).filter_map(Node::new).filter(|to| *to != from);
            links.extend(others.map(|to| Link { from, to, bps }));
        }
        Self::from_links(nodes, links)
    }

    /// Nodes with any links between them. Frames go from one node to another by the links between both.
    pub(crate) fn from_links(nodes: u16, mut links: Vec<Link>) -> Result<Self, Impossible> {
        if nodes > Node::COUNT {
            return Err(Impossible::TooMany(nodes.into()));
        }
        for link in &links {
            if link.from == link.to {
                return Err(Impossible::Loop(link.from.number()));
            }
            if let Some(node) = [link.from, link.to].into_iter().find(|node| node.number() >= nodes) {
                return Err(Impossible::NoNode(node.number()));
            }
        }
        links.sort_by_key(|link| (link.from, link.to));
        let mut between = vec![Parallel::default(); usize::from(nodes) * usize::from(nodes)];
        for (at, link) in links.iter().enumerate() {
            let parallel = &mut between[link.from.index() * usize::from(nodes) + link.to.index()];
            if parallel.count == 0 {
                parallel.first = at as u32;
            }
            parallel.count += 1;
        }
        Ok(Self { shape: Shape::Mesh(between), terminals: nodes, nodes, links })
    }

    /// A k-ary n-fly: k^n servers with external ports and n * k^(n-1) relays.
    pub fn fly(k: u32, n: u32, bps: u64) -> Result<Self, Impossible> {
        if k < 2 || n < 1 {
            return Err(Impossible::NoFly);
        }
        let lines = u64::from(k).saturating_pow(n);
        let nodes = lines.saturating_add((lines / u64::from(k)).saturating_mul(n.into()));
        if nodes > Node::COUNT.into() {
            return Err(Impossible::TooMany(nodes));
        }
        let lines = lines as u32;
        let at = |node: u32| Node::new(node as u16).ok_or(Impossible::TooMany(nodes));
        let mut links = Vec::new();
        for line in 0..lines {
            links.push(Link { from: at(line)?, to: at(relay(k, n, lines, 0, line))?, bps });
        }
        for stage in 0..n {
            for line in 0..lines {
                let next = if stage + 1 == n { line } else { relay(k, n, lines, stage + 1, line) };
                links.push(Link { from: at(relay(k, n, lines, stage, line))?, to: at(next)?, bps });
            }
        }
        Ok(Self { shape: Shape::Fly { k, n, lines }, terminals: lines as u16, nodes: nodes as u16, links })
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> u16 {
        self.nodes
    }

    /// How many of them have external ports: those with the lowest numbers.
    pub fn terminals(&self) -> u16 {
        self.terminals
    }

    /// Whether the node only connects others.
    #[inline]
    pub fn is_relay(&self, node: Node) -> bool {
        node.number() >= self.terminals
    }

    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Sets the rate of a link; 0: it is down.
    pub fn set_rate(&mut self, link: LinkId, bps: u64) {
        self.links[link.index()].bps = bps;
    }

    /// The link by which a node sends frames for another one, if there is one that is up. Among several, each gets flows in
    /// proportion to its rate.
    #[inline]
    pub fn next_link(&self, node: Node, target: Node, flow: u32) -> Option<LinkId> {
        let first = match &self.shape {
            Shape::Mesh(between) => {
                let parallel = between[node.index() * usize::from(self.nodes) + target.index()];
                if parallel.count != 1 {
                    return self.one_of(parallel, flow);
                }
                parallel.first
            }
            Shape::Fly { k, n, lines } => {
                fly_link(*k, *n, *lines, node.number().into(), target.number().into())
            }
        };
        (self.links[first as usize].bps > 0).then_some(LinkId(first))
    }

    fn one_of(&self, parallel: Parallel, flow: u32) -> Option<LinkId> {
        let all = parallel.first..parallel.first + parallel.count;
        let total: u64 = all.clone().map(|at| self.links[at as usize].bps).sum();
        let mut share = ((u128::from(flow) * u128::from(total)) >> 32) as u64;
        for at in all {
            let bps = self.links[at as usize].bps;
            if share < bps {
                return Some(LinkId(at));
            }
            share -= bps;
        }
        None
    }

    /// What the live links towards another node carry together: in an n-fly, the slowest on the path.
    pub fn capacity(&self, node: Node, target: Node) -> u64 {
        match &self.shape {
            Shape::Mesh(between) => {
                let Parallel { first, count } =
                    between[node.index() * usize::from(self.nodes) + target.index()];
                (first..first + count).map(|at| self.links[at as usize].bps).sum()
            }
            Shape::Fly { n, .. } => {
                let (mut at, mut least) = (node, u64::MAX);
                for _ in 0..=*n {
                    let Some(link) = self.next_link(at, target, 0) else { return 0 };
                    least = least.min(self.links[link.index()].bps);
                    at = self.links[link.index()].to;
                }
                least
            }
        }
    }
}

/// The number of the relay of a stage that a line passes.
fn relay(k: u32, n: u32, lines: u32, stage: u32, line: u32) -> u32 {
    let digit = k.pow(n - 1 - stage);
    // The line without the digit that the stage sets.
    let within = line / (digit * k) * digit + line % digit;
    lines + stage * (lines / k) + within
}

/// The link of a node towards a target: stage by stage there are as many links as lines.
fn fly_link(k: u32, n: u32, lines: u32, node: u32, target: u32) -> u32 {
    let Some(relay) = node.checked_sub(lines) else { return node };
    let (stage, within) = (relay / (lines / k), relay % (lines / k));
    let digit = k.pow(n - 1 - stage);
    let line = within / digit * (digit * k) + target / digit % k * digit + within % digit;
    lines * (stage + 1) + line
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(number: u16) -> Node {
        Node::new(number).expect("a node")
    }

    /// The nodes that a frame visits from one node to another.
    fn path(topology: &Topology, from: u16, to: u16) -> Vec<u16> {
        let mut visited = vec![from];
        while visited.last() != Some(&to) || visited.len() == 1 {
            let at = node(*visited.last().expect("a node"));
            let link = topology.next_link(at, node(to), 0).expect("a link");
            assert_eq!(topology.links()[link.index()].from, at);
            visited.push(topology.links()[link.index()].to.number());
            assert!(visited.len() < 20, "a loop: {visited:?}");
        }
        visited
    }

    #[test]
    fn a_mesh_has_a_link_for_each_pair() {
        let mesh = Topology::mesh(5, 7).expect("a mesh");
        assert_eq!((mesh.links().len(), mesh.nodes(), mesh.terminals()), (20, 5, 5));
        assert_eq!(path(&mesh, 1, 4), [1, 4]);
        assert_eq!((mesh.capacity(node(0), node(1)), mesh.capacity(node(0), node(0))), (7, 0));
        assert_eq!(mesh.next_link(node(2), node(2), 0), None);
    }

    #[test]
    fn parallel_links_carry_flows_by_their_rates() {
        let link = |bps| Link { from: node(0), to: node(1), bps };
        let mut pair = Topology::from_links(2, vec![link(10), link(30)]).expect("links");
        let count = |pair: &Topology, id| {
            let flows = (0..=255u32).map(|flow| flow << 24);
            flows.filter(|&flow| pair.next_link(node(0), node(1), flow) == Some(LinkId(id))).count()
        };
        assert_eq!((count(&pair, 0), count(&pair, 1), pair.capacity(node(0), node(1))), (64, 192, 40));
        pair.set_rate(LinkId(1), 0);
        assert_eq!((count(&pair, 0), count(&pair, 1), pair.capacity(node(0), node(1))), (256, 0, 10));
        pair.set_rate(LinkId(0), 0);
        assert_eq!((pair.next_link(node(0), node(1), 5), pair.capacity(node(0), node(1))), (None, 0));
        assert_eq!(pair.next_link(node(1), node(0), 5), None);
    }

    #[test]
    fn the_fly_of_eight_ports() {
        let fly = Topology::fly(2, 3, 1).expect("a fly");
        assert_eq!((fly.terminals(), fly.nodes(), fly.links().len()), (8, 20, 32));
        for (from, to) in (0..8).flat_map(|from| (0..8).map(move |to| (from, to))) {
            let visited = path(&fly, from, to);
            assert_eq!(visited.len(), 5, "{visited:?}");
            assert!(visited[1..4].iter().all(|&at| fly.is_relay(node(at))));
        }
    }

    #[test]
    fn refuses_what_cannot_be() {
        let link = |from, to| Link { from: node(from), to: node(to), bps: 1 };
        let refused = |nodes, links| Topology::from_links(nodes, links).err();
        assert_eq!(refused(2, vec![link(1, 1)]), Some(Impossible::Loop(1)));
        assert_eq!(refused(2, vec![link(0, 2)]), Some(Impossible::NoNode(2)));
        assert_eq!(refused(2048, Vec::new()), Some(Impossible::TooMany(2048)));
        assert_eq!(Topology::fly(1, 3, 1).err(), Some(Impossible::NoFly));
        assert_eq!(Topology::fly(2, 10, 1).err(), Some(Impossible::TooMany(1024 + 5120)));
        assert!(matches!(Topology::fly(1000, 1000, 1).err(), Some(Impossible::TooMany(_))));
    }

    proptest! {
        /// Each link of a fly is used by as many pairs as each other one: uniform traffic loads all alike.
        #[test]
        fn a_fly_is_even((k, n) in prop_oneof![(2..8u32, 1..3u32), (2..4u32, 3..5u32)]) {
            let fly = Topology::fly(k, n, 1).expect("small");
            let mut used = vec![0u32; fly.links().len()];
            let lines = fly.terminals();
            for (from, to) in (0..lines).flat_map(|from| (0..lines).map(move |to| (from, to))) {
                let mut at = node(from);
                for _ in 0..=n {
                    let link = fly.next_link(at, node(to), 0).expect("a link");
                    used[link.index()] += 1;
                    at = fly.links()[link.index()].to;
                }
                prop_assert_eq!(at, node(to));
            }
            prop_assert!(used.iter().all(|&pairs| pairs == u32::from(lines)));
        }
    }
}
