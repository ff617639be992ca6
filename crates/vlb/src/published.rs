//! What is known about the other nodes, handed from the thread that learns it to the balancers of all workers without
//! locks: a sequence lock, whose readers copy and look whether anything was changed meanwhile.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering, fence};

use crate::address::Node;
use crate::balancer::{Balancer, Peer};

/// Bits of a word.
const WORD: usize = 64;

/// What is known about all nodes, by number.
pub struct PublishedPeers {
    /// Odd while it is being changed.
    version: AtomicU64,
    delta_ns: AtomicU64,
    /// By node: capacity in bit/s, doubled; the lowest bit is set for those that forward for others.
    peers: Box<[AtomicU64]>,
    /// By intermediate: a bit for each output node to which it has no link.
    broken: Box<[AtomicU64]>,
    /// By node: the index of the link to it; [`NO_LINK`] if it was never set.
    links: Box<[AtomicU16]>,
}

/// For a node whose link was never set.
pub const NO_LINK: u16 = u16::MAX;

fn zeros(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl PublishedPeers {
    /// For nodes with numbers below `nodes`, to none of which there is a link yet.
    pub fn new(nodes: usize) -> Self {
        Self {
            version: AtomicU64::new(0),
            delta_ns: AtomicU64::new(0),
            peers: zeros(nodes),
            broken: zeros(nodes * nodes.div_ceil(WORD)),
            links: (0..nodes).map(|_| AtomicU16::new(NO_LINK)).collect(),
        }
    }

    /// How many nodes there can be.
    pub fn nodes(&self) -> usize {
        self.peers.len()
    }

    /// Sets what is known: the nodes by number, and the links that others have lost: (intermediate, output). One thread
    /// at a time may do this.
    pub fn publish(&self, peers: &[Peer], broken: &[(Node, Node)]) {
        let version = self.begin_change();
        for (at, place) in self.peers.iter().enumerate() {
            let peer = peers.get(at).copied().unwrap_or_default();
            place.store(peer.capacity_bps << 1 | u64::from(peer.transit), Ordering::Relaxed);
        }
        self.broken.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let row = self.nodes().div_ceil(WORD);
        for (from, to) in broken.iter().filter(|(from, to)| from.index().max(to.index()) < self.nodes()) {
            let word = &self.broken[from.index() * row + to.index() / WORD];
            word.store(word.load(Ordering::Relaxed) | 1 << (to.index() % WORD), Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }

    /// Sets the index of the link that leads to a node. The same thread as that of [`Self::publish`] does this.
    pub fn set_links(&self, links: &[(Node, u16)]) {
        let version = self.begin_change();
        for (node, link) in links {
            if let Some(place) = self.links.get(node.index()) {
                place.store(*link, Ordering::Relaxed);
            }
        }
        self.version.store(version + 2, Ordering::Release);
    }

    fn begin_change(&self) -> u64 {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        version
    }

    /// Sets the gap after which a flow may take another path.
    pub fn set_delta(&self, ns: u64) {
        self.delta_ns.store(ns, Ordering::Relaxed);
    }
}

/// A balancer's copy; all its memory is allocated at the start.
pub struct PeersCopy {
    version: u64,
    delta_ns: u64,
    peers: Vec<Peer>,
    broken: Vec<(Node, Node)>,
    links: Vec<u16>,
}

impl PeersCopy {
    /// An empty copy, with room for everything.
    pub fn new(published: &PublishedPeers) -> Self {
        let nodes = published.nodes();
        let (peers, broken) = (Vec::with_capacity(nodes), Vec::with_capacity(nodes * nodes));
        Self { version: 0, delta_ns: 0, peers, broken, links: Vec::with_capacity(nodes) }
    }

    /// For each node the index of the link to it, or [`NO_LINK`].
    pub fn links(&self) -> &[u16] {
        &self.links
    }

    /// Hands a balancer what has changed; returns whether anything but the gap has. What is being changed right now comes
    /// with the next call.
    #[inline]
    pub fn bring(&mut self, published: &PublishedPeers, balancer: &mut Balancer, now_ns: u64) -> bool {
        let delta_ns = published.delta_ns.load(Ordering::Relaxed);
        if delta_ns != self.delta_ns {
            self.delta_ns = delta_ns;
            balancer.set_delta(delta_ns);
        }
        let version = published.version.load(Ordering::Acquire);
        if version == self.version || !version.is_multiple_of(2) || !self.copy(published, version) {
            return false;
        }
        self.version = version;
        balancer.set_peers(&self.peers, now_ns);
        balancer.set_broken(&self.broken);
        true
    }

    #[cold]
    fn copy(&mut self, published: &PublishedPeers, version: u64) -> bool {
        self.peers.clear();
        self.peers.extend(published.peers.iter().map(|place| {
            let word = place.load(Ordering::Relaxed);
            Peer { capacity_bps: word >> 1, transit: word & 1 == 1 }
        }));
        self.links.clear();
        self.links.extend(published.links.iter().map(|place| place.load(Ordering::Relaxed)));
        self.broken.clear();
        let row = published.nodes().div_ceil(WORD).max(1);
        for (from, words) in (0..).zip(published.broken.chunks(row)) {
            for (first, word) in (0..).step_by(WORD).zip(words) {
                let mut bits = word.load(Ordering::Relaxed);
                while bits != 0 {
                    let to = first + bits.trailing_zeros() as u16;
                    self.broken.extend(Node::new(from).zip(Node::new(to)));
                    bits &= bits - 1;
                }
            }
        }
        fence(Ordering::Acquire);
        published.version.load(Ordering::Relaxed) == version
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balancer::{Choice, Packet, Settings};

    fn node(number: u16) -> Node {
        Node::new(number).expect("small")
    }

    fn choices(balancer: &mut Balancer, output: u16, now_ns: u64) -> Vec<Choice> {
        let packet = |flow| Packet { flow, output: node(output), bytes: 1500 };
        let mut all: Vec<_> = (0..100).map(|flow| balancer.choose(&packet(flow), now_ns)).collect();
        all.sort_by_key(|choice| format!("{choice:?}"));
        all.dedup();
        all
    }

    #[test]
    fn balancers_get_what_was_published_last() {
        let published = PublishedPeers::new(70);
        let mut balancer = Balancer::new(Settings::new(node(0), 1_000_000));
        let mut copy = PeersCopy::new(&published);
        copy.bring(&published, &mut balancer, 1);
        assert_eq!(choices(&mut balancer, 1, 1), [Choice::Unreachable]);
        let mut peers = vec![Peer::default(); 70];
        for at in [1, 2, 69] {
            peers[at] = Peer { capacity_bps: 1_000_000, transit: true };
        }
        published.publish(&peers, &[]);
        published.set_delta(5);
        published.set_links(&[(node(2), 7)]);
        assert!(copy.bring(&published, &mut balancer, 2) && !copy.bring(&published, &mut balancer, 2));
        assert_eq!((copy.links()[1], copy.links()[2]), (NO_LINK, 7));
        let expected = [Choice::Direct, Choice::Via(node(2)), Choice::Via(node(69))];
        assert_eq!(choices(&mut balancer, 1, 2_000_000_000), expected);
        // The link from 69 to 1 is lost, and this node's own one to 1; 2 drains.
        peers[1].capacity_bps = 0;
        published.publish(&peers, &[(node(69), node(1))]);
        copy.bring(&published, &mut balancer, 3);
        assert_eq!(choices(&mut balancer, 1, 4_000_000_000), [Choice::Via(node(2))]);
        peers[2].transit = false;
        published.publish(&peers, &[(node(69), node(1))]);
        copy.bring(&published, &mut balancer, 4);
        assert_eq!(choices(&mut balancer, 1, 6_000_000_000), [Choice::Unreachable]);
    }

    #[test]
    fn a_copy_allocates_nothing() {
        let published = PublishedPeers::new(66);
        let mut copy = PeersCopy::new(&published);
        let mut balancer = Balancer::new(Settings::new(node(0), 1_000_000));
        let places = (copy.peers.as_ptr(), copy.broken.as_ptr());
        let all: Vec<_> = (0..66u16).flat_map(|from| (0..66).map(move |to| (node(from), node(to)))).collect();
        published.publish(&[Peer { capacity_bps: u64::MAX >> 1, transit: true }; 66], &all);
        copy.bring(&published, &mut balancer, 1);
        assert_eq!((copy.peers.as_ptr(), copy.broken.as_ptr()), places);
        assert_eq!(copy.broken, all);
        assert_eq!(copy.peers[65], Peer { capacity_bps: u64::MAX >> 1, transit: true });
    }

    #[test]
    fn readers_never_see_half_of_a_change() {
        let published = PublishedPeers::new(8);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0..20_000u64 {
                    published.publish(&[Peer { capacity_bps: round, transit: round % 2 == 1 }; 8], &[]);
                }
            });
            let mut copy = PeersCopy::new(&published);
            while !writer.is_finished() {
                let version = published.version.load(Ordering::Acquire);
                if version.is_multiple_of(2) && copy.copy(&published, version) {
                    assert!(copy.peers.windows(2).all(|pair| pair[0] == pair[1]), "{:?}", copy.peers);
                }
            }
        });
    }
}
