//! Which ways to other nodes exist, and how far apart their delays are: what the balancers of workers go by.

use std::sync::Arc;

use bm_vlb::address::Node;
use bm_vlb::balancer::Peer;
use bm_vlb::published::PublishedPeers;

/// The shortest gap after which a flow may take another way.
const GAP_MIN_NS: u64 = 1_000_000;

/// The link to another node, and what that says of its own links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstHop {
    pub node: Node,
    /// Capacity of the link; 0 while it cannot be used.
    pub capacity_bps: u64,
    /// Whether it may be an intermediate.
    pub transit: bool,
    /// The nodes to which it has no link.
    pub without: Vec<Node>,
}

/// The intermediate over which a node can be reached without the link to it; the first of several.
pub fn detour(ways: &[FirstHop], to: Node) -> Option<Node> {
    let way = ways
        .iter()
        .find(|way| way.node != to && way.capacity_bps > 0 && way.transit && !way.without.contains(&to));
    way.map(|way| way.node)
}

/// Tells the balancers of workers.
pub(crate) struct Ways {
    published: Arc<PublishedPeers>,
    last: Vec<FirstHop>,
    /// By how much delays differ, and a half more.
    measured_ns: u64,
    gap_ns: Option<u64>,
}

impl Ways {
    /// For nodes with numbers below `nodes`; `gap_ns` is the configured gap between flowlets.
    pub fn new(nodes: usize, gap_ns: Option<u64>) -> Self {
        let published = Arc::new(PublishedPeers::new(nodes));
        Self { published, last: Vec::new(), measured_ns: 0, gap_ns }
    }

    /// What workers read.
    pub fn published(&self) -> &Arc<PublishedPeers> {
        &self.published
    }

    /// Notes by how much delays differ, and a half more.
    pub fn measured(&mut self, gap_ns: u64) {
        self.measured_ns = gap_ns;
    }

    /// The gap after which a flow may take another way.
    pub fn gap_ns(&self) -> u64 {
        self.gap_ns.unwrap_or_else(|| self.measured_ns.max(GAP_MIN_NS))
    }

    /// Tells workers what has changed.
    pub fn publish(&mut self, ways: Vec<FirstHop>) {
        self.published.set_delta(self.gap_ns());
        if ways == self.last {
            return;
        }
        let mut peers = vec![Peer::default(); self.published.nodes()];
        for way in &ways {
            if let Some(peer) = peers.get_mut(way.node.index()) {
                *peer = Peer { capacity_bps: way.capacity_bps, transit: way.transit };
            }
        }
        let lost = ways.iter().flat_map(|way| way.without.iter().map(|to| (way.node, *to)));
        self.published.publish(&peers, &lost.collect::<Vec<_>>());
        self.last = ways;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u16) -> Node {
        Node::new(number).expect("small")
    }

    fn way(number: u16, capacity_bps: u64, without: &[u16]) -> FirstHop {
        FirstHop {
            node: node(number),
            capacity_bps,
            transit: true,
            without: without.iter().copied().map(node).collect(),
        }
    }

    #[test]
    fn a_detour_leads_over_links_that_are_up() {
        let mut ways = [way(1, 0, &[]), way(2, 9, &[1]), way(3, 9, &[2]), way(4, 9, &[])];
        assert_eq!(detour(&ways, node(1)), Some(node(3)));
        assert_eq!(detour(&ways, node(2)), Some(node(4)));
        assert_eq!(detour(&ways[..2], node(1)), None);
        ways[2].transit = false;
        assert_eq!(detour(&ways, node(1)), Some(node(4)), "a drained node is no intermediate");
    }

    #[test]
    fn the_gap_follows_delays_unless_it_is_configured() {
        let mut ways = Ways::new(4, None);
        assert_eq!(ways.gap_ns(), GAP_MIN_NS);
        ways.measured(6_000_000);
        assert_eq!(ways.gap_ns(), 6_000_000);
        assert_eq!(Ways::new(4, Some(7)).gap_ns(), 7);
    }
}
