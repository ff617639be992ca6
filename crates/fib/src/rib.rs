//! All routes of a table, compact and in order: the writer's record of which route owns which addresses.
//!
//! ```text
//! 0/0 --0-- 10/8 --0-- 10.0/16          a node is a route, or a fork of two; one child each for
//!  |          `-1-- 10.128/9            the next bit. Bits on which all below agree take no node.
//!  `--1-- 192.0.2/24
//! ```
//!
//! Builders use it to find what a removed prefix falls back to and which more-specific routes keep their addresses.
//! Workers never see it. Nodes are in one array and link by index: 20 bytes per node for IPv4, 32 for IPv6, at most
//! two nodes per route.

mod bulk;

pub(crate) use bulk::Before;

use crate::NextHop;
use bm_wire::prefix::{Address, Prefix};
use std::fmt;

/// No child, and no next free node.
const NIL: u32 = u32::MAX;
/// In place of a next hop: the node is only a fork.
const FORK: u32 = u32::MAX;
/// The node of the empty prefix: always there.
const ROOT: u32 = 0;

#[derive(Clone, Copy)]
struct Node<A> {
    address: A,
    /// Children by their first bit after `length`. In a free node the first is the next free one.
    children: [u32; 2],
    hop: u32,
    length: u8,
}

impl<A: Address> Node<A> {
    fn leaf(prefix: Prefix<A>, hop: u32) -> Self {
        Self { address: prefix.first(), length: prefix.length(), children: [NIL; 2], hop }
    }

    fn route(&self) -> Option<NextHop> {
        (self.hop != FORK).then_some(NextHop(self.hop))
    }

    fn prefix(&self) -> Prefix<A> {
        Prefix::containing(self.address, self.length).expect("a node's length came from a prefix")
    }

    fn covers(&self, address: A) -> bool {
        self.address.common(address) >= self.length
    }
}

/// All routes of one table. A route replaces an earlier one to the same prefix.
#[derive(Clone)]
pub struct Rib<A> {
    nodes: Vec<Node<A>>,
    free: u32,
    len: usize,
}

impl<A: Address> Default for Rib<A> {
    fn default() -> Self {
        Self { nodes: vec![Node::leaf(Prefix::default(), FORK)], free: NIL, len: 0 }
    }
}

impl<A: Address> Rib<A> {
    /// Without routes.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many routes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no route.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Size of the nodes in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.nodes.len() * size_of::<Node<A>>()
    }

    /// The next hop of the route to exactly this prefix.
    pub fn get(&self, prefix: Prefix<A>) -> Option<NextHop> {
        let node = self.node(self.highest_within(prefix)?);
        if node.length == prefix.length() { node.route() } else { None }
    }

    /// Sets the route to `prefix`; returns the previous one.
    ///
    /// # Panics
    /// If `hop` is `u32::MAX`, which no next-hop table has.
    pub fn insert(&mut self, prefix: Prefix<A>, hop: NextHop) -> Option<NextHop> {
        assert_ne!(hop.0, FORK, "no next-hop table has so many");
        let mut at = ROOT;
        loop {
            let node = *self.node(at);
            if node.length == prefix.length() {
                self.nodes[at as usize].hop = hop.0;
                self.len += usize::from(node.hop == FORK);
                return node.route();
            }
            let side = usize::from(prefix.first().bit(node.length));
            let below = node.children[side];
            if below == NIL || !self.covers(below, prefix) {
                let fresh = self.put_above(below, prefix, hop);
                self.nodes[at as usize].children[side] = fresh;
                self.len += 1;
                return None;
            }
            at = below;
        }
    }

    /// Removes the route to `prefix`; returns it.
    pub fn remove(&mut self, prefix: Prefix<A>) -> Option<NextHop> {
        let mut above = [ROOT; 2];
        let mut at = ROOT;
        while self.node(at).length < prefix.length() {
            let below = self.child(at, prefix.first());
            if below == NIL || !self.covers(below, prefix) {
                return None;
            }
            above = [at, above[0]];
            at = below;
        }
        let removed = self.node(at).route()?;
        self.nodes[at as usize].hop = FORK;
        self.len -= 1;
        self.prune(at, above[0]);
        if at != ROOT {
            self.prune(above[0], above[1]);
        }
        Some(removed)
    }

    /// The longest route that contains `address`.
    pub fn longest_match(&self, address: A) -> Option<(Prefix<A>, NextHop)> {
        self.last_on_path(address, A::WIDTH)
    }

    /// The longest route shorter than `prefix` that covers it: what its addresses fall back to.
    pub fn covering(&self, prefix: Prefix<A>) -> Option<(Prefix<A>, NextHop)> {
        self.last_on_path(prefix.first(), prefix.length().checked_sub(1)?)
    }

    /// All routes, in order of address, the shorter of two that start together first.
    pub fn iter(&self) -> Iter<'_, A> {
        Iter { rib: self, stack: vec![ROOT], nested: true }
    }

    /// All routes within `prefix`, itself included, in the same order.
    pub fn within(&self, prefix: Prefix<A>) -> Iter<'_, A> {
        Iter { rib: self, stack: self.highest_within(prefix).into_iter().collect(), nested: true }
    }

    /// The routes strictly within `prefix` that no other route strictly within it covers. What is between them is
    /// owned by a route to `prefix` itself.
    pub(crate) fn nearest_within(&self, prefix: Prefix<A>) -> Iter<'_, A> {
        let mut stack = Vec::new();
        if let Some(top) = self.highest_within(prefix) {
            let node = self.node(top);
            if node.length == prefix.length() {
                stack.extend(node.children.iter().rev().filter(|child| **child != NIL));
            } else {
                stack.push(top);
            }
        }
        Iter { rib: self, stack, nested: false }
    }

    /// Whether a route within `prefix` is longer than `length`.
    pub(crate) fn has_longer_within(&self, prefix: Prefix<A>, length: u8) -> bool {
        self.within(prefix).any(|(route, _)| route.length() > length)
    }

    /// The routes that contain `address`, shortest first, and those that start after it, in order.
    pub fn around(&self, address: A) -> (Vec<(Prefix<A>, NextHop)>, Iter<'_, A>) {
        let (mut holding, mut stack, mut at) = (Vec::new(), Vec::new(), ROOT);
        while at != NIL {
            let node = self.node(at);
            if !node.covers(address) {
                stack.extend((node.address > address).then_some(at));
                break;
            }
            holding.extend(node.route().map(|hop| (node.prefix(), hop)));
            if node.length == A::WIDTH {
                break;
            }
            if !address.bit(node.length) && node.children[1] != NIL {
                stack.push(node.children[1]);
            }
            at = self.child(at, address);
        }
        (holding, Iter { rib: self, stack, nested: true })
    }

    fn node(&self, at: u32) -> &Node<A> {
        &self.nodes[at as usize]
    }

    /// The child on the way to `address`; the node at `at` is shorter than an address.
    fn child(&self, at: u32, address: A) -> u32 {
        let node = self.node(at);
        node.children[usize::from(address.bit(node.length))]
    }

    fn covers(&self, at: u32, prefix: Prefix<A>) -> bool {
        let node = self.node(at);
        node.length <= prefix.length() && node.covers(prefix.first())
    }

    /// The highest node that `prefix` covers.
    fn highest_within(&self, prefix: Prefix<A>) -> Option<u32> {
        let mut at = ROOT;
        while self.node(at).length < prefix.length() {
            at = self.child(at, prefix.first());
            if at == NIL
                || self.node(at).address.common(prefix.first()) < self.node(at).length.min(prefix.length())
            {
                return None;
            }
        }
        Some(at)
    }

    fn last_on_path(&self, address: A, longest: u8) -> Option<(Prefix<A>, NextHop)> {
        let (mut found, mut at) = (None, ROOT);
        while at != NIL {
            let node = self.node(at);
            if node.length > longest || !node.covers(address) {
                break;
            }
            if node.hop != FORK {
                found = Some(at);
            }
            if node.length == A::WIDTH {
                break;
            }
            at = self.child(at, address);
        }
        found.map(|at| (self.node(at).prefix(), NextHop(self.node(at).hop)))
    }

    /// A node for `prefix` that takes the place of `below`, which it covers, forks from, or is nothing.
    fn put_above(&mut self, below: u32, prefix: Prefix<A>, hop: NextHop) -> u32 {
        let fresh = self.allocate(Node::leaf(prefix, hop.0));
        if below == NIL {
            return fresh;
        }
        let other = self.node(below).address;
        let common = other.common(prefix.first());
        if common >= prefix.length() {
            self.nodes[fresh as usize].children[usize::from(other.bit(prefix.length()))] = below;
            return fresh;
        }
        let shared = Prefix::containing(other, common).expect("two that differ share less than a width");
        let fork = self.allocate(Node::leaf(shared, FORK));
        let side = usize::from(other.bit(common));
        self.nodes[fork as usize].children[side] = below;
        self.nodes[fork as usize].children[1 - side] = fresh;
        fork
    }

    /// Takes the node out if it is neither a route nor a fork of two any more.
    fn prune(&mut self, at: u32, above: u32) {
        let node = *self.node(at);
        let [left, right] = node.children;
        if at == ROOT || node.hop != FORK || (left != NIL && right != NIL) {
            return;
        }
        let side = usize::from(node.address.bit(self.node(above).length));
        self.nodes[above as usize].children[side] = if left == NIL { right } else { left };
        self.nodes[at as usize].children[0] = self.free;
        self.free = at;
    }

    fn allocate(&mut self, node: Node<A>) -> u32 {
        if self.free == NIL {
            self.nodes.push(node);
            return (self.nodes.len() - 1) as u32;
        }
        let at = self.free;
        self.free = self.node(at).children[0];
        self.nodes[at as usize] = node;
        at
    }
}

impl<A: Address> FromIterator<(Prefix<A>, NextHop)> for Rib<A> {
    fn from_iter<I: IntoIterator<Item = (Prefix<A>, NextHop)>>(routes: I) -> Self {
        let mut rib = Self::new();
        rib.extend(routes);
        rib
    }
}

impl<A: Address> fmt::Debug for Rib<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rib of {}", self.len)
    }
}

/// Routes in order.
#[derive(Clone)]
pub struct Iter<'a, A> {
    rib: &'a Rib<A>,
    stack: Vec<u32>,
    /// Whether to go below a route.
    nested: bool,
}

impl<A: Address> Iterator for Iter<'_, A> {
    type Item = (Prefix<A>, NextHop);

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(at) = self.stack.pop() {
            let node = self.rib.node(at);
            if self.nested || node.hop == FORK {
                self.stack.extend(node.children.iter().rev().filter(|child| **child != NIL));
            }
            if node.hop != FORK {
                return Some((node.prefix(), NextHop(node.hop)));
            }
        }
        None
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::Change;
    use bm_wire::prefix::Ipv4Prefix;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn p(text: &str) -> Ipv4Prefix {
        text.parse().unwrap()
    }

    fn shown(routes: impl Iterator<Item = (Ipv4Prefix, NextHop)>) -> Vec<String> {
        routes.map(|(prefix, hop)| format!("{prefix} {hop}")).collect()
    }

    fn nested() -> Rib<u32> {
        let routes =
            ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.128.0.0/9", "192.0.2.1/32"];
        routes.iter().zip(1..).map(|(text, hop)| (p(text), NextHop(hop))).collect()
    }

    #[test]
    fn walks_in_order() {
        let rib = nested();
        assert_eq!((rib.len(), rib.is_empty(), Rib::<u32>::default().is_empty()), (6, false, true));
        assert_eq!(shown(rib.within(p("10.0.0.0/8"))).len(), 4);
        assert_eq!(shown(rib.within(p("10.0.0.0/15"))), ["10.1.0.0/16 3", "10.1.2.0/24 4"]);
        assert_eq!(shown(rib.nearest_within(p("10.0.0.0/8"))), ["10.1.0.0/16 3", "10.128.0.0/9 5"]);
        assert_eq!(shown(rib.nearest_within(p("10.0.0.0/7"))), ["10.0.0.0/8 2"]);
        assert_eq!(shown(rib.within(p("11.0.0.0/8"))), Vec::<String>::new());
    }

    #[test]
    fn finds_what_covers_and_what_is_around() {
        let rib = nested();
        assert_eq!(rib.covering(p("10.1.2.0/24")), Some((p("10.1.0.0/16"), NextHop(3))));
        assert_eq!(rib.covering(p("10.1.2.3/32")), Some((p("10.1.2.0/24"), NextHop(4))));
        assert_eq!(rib.covering(p("0.0.0.0/0")), None);
        assert_eq!(rib.longest_match(0xc000_0201), Some((p("192.0.2.1/32"), NextHop(6))));
        let (holding, behind) = rib.around(0x0a01_0000);
        assert_eq!(shown(holding.into_iter()), ["0.0.0.0/0 1", "10.0.0.0/8 2", "10.1.0.0/16 3"]);
        assert_eq!(shown(behind), ["10.1.2.0/24 4", "10.128.0.0/9 5", "192.0.2.1/32 6"]);
        assert!(rib.has_longer_within(p("10.1.2.0/23"), 23) && !rib.has_longer_within(p("10.1.2.0/23"), 24));
    }

    #[test]
    fn leaves_no_node_behind() {
        let mut rib = nested();
        let routes: Vec<_> = rib.iter().collect();
        for turn in [routes.clone(), routes.iter().rev().copied().collect()] {
            for (prefix, hop) in &turn {
                assert_eq!(rib.remove(*prefix), Some(*hop));
                assert_eq!(rib.remove(*prefix), None);
            }
            let mut free = 0;
            let mut at = rib.free;
            while at != NIL {
                (free, at) = (free + 1, rib.node(at).children[0]);
            }
            assert_eq!((rib.len(), free + 1), (0, rib.nodes.len()));
            rib.extend(turn);
        }
    }

    fn prefixes<A: Address>(address: impl Strategy<Value = A>) -> impl Strategy<Value = Prefix<A>> {
        (address, 0..=A::WIDTH).prop_map(|(address, length)| Prefix::containing(address, length).unwrap())
    }

    fn agrees<A: Address>(changes: Vec<(Prefix<A>, Option<u32>)>, probes: Vec<Prefix<A>>) {
        let (mut rib, mut plain) = (Rib::new(), BTreeMap::new());
        let (first, rest) = changes.split_at(changes.len() / 3);
        let change = |(prefix, hop): &(Prefix<A>, Option<u32>)| match hop {
            Some(hop) => Change::Set(*prefix, NextHop(*hop)),
            None => Change::Remove(*prefix),
        };
        let mut bulk: Rib<A> =
            first.iter().filter_map(|(prefix, hop)| Some((*prefix, NextHop((*hop)?)))).collect();
        bulk.apply(&first.iter().map(change).collect::<Vec<_>>());
        let at_first: Vec<_> = bulk.iter().collect();
        let before = bulk.apply(&rest.iter().map(change).collect::<Vec<_>>());
        let at_last: Vec<_> = bulk.iter().collect();
        bulk.take_back(before);
        assert!(bulk.iter().eq(at_first));
        bulk.apply(&rest.iter().map(change).collect::<Vec<_>>());
        for (prefix, hop) in changes {
            match hop.map(NextHop) {
                Some(hop) => assert_eq!(rib.insert(prefix, hop), plain.insert(prefix, hop)),
                None => assert_eq!(rib.remove(prefix), plain.remove(&prefix)),
            }
        }
        assert!(rib.iter().eq(plain.iter().map(|(p, h)| (*p, *h))));
        assert!(rib.iter().eq(at_last) && rib.iter().eq(bulk.iter()));
        assert_eq!((rib.len(), bulk.len()), (plain.len(), plain.len()));
        for probe in probes.into_iter().chain(plain.keys().copied()) {
            let all = || plain.iter().map(|(p, h)| (*p, *h));
            let longest =
                |routes: Vec<(Prefix<A>, NextHop)>| routes.into_iter().max_by_key(|(p, _)| p.length());
            assert_eq!(rib.get(probe), plain.get(&probe).copied());
            assert_eq!(
                rib.covering(probe),
                longest(all().filter(|(p, _)| p.covers(&probe) && *p != probe).collect())
            );
            assert_eq!(
                rib.longest_match(probe.last()),
                longest(all().filter(|(p, _)| p.contains(probe.last())).collect())
            );
            let within: Vec<_> = all().filter(|(p, _)| probe.covers(p)).collect();
            let strictly: Vec<_> = within.iter().filter(|(p, _)| *p != probe).copied().collect();
            assert!(rib.within(probe).eq(within));
            let nearest =
                strictly.iter().filter(|(p, _)| !strictly.iter().any(|(q, _)| q != p && q.covers(p)));
            assert!(rib.nearest_within(probe).eq(nearest.copied()));
            let (holding, behind) = rib.around(probe.last());
            assert!(holding.into_iter().eq(all().filter(|(p, _)| p.contains(probe.last()))));
            assert!(behind.eq(all().filter(|(p, _)| p.first() > probe.last())));
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_list_ipv4(
            changes in prop::collection::vec((prefixes(0u32..64), prop::option::of(0u32..9)), 0..60),
            probes in prop::collection::vec(prefixes(any::<u32>()), 0..9),
        ) {
            // Addresses that differ in few bits at both ends, so that prefixes nest.
            let changes = changes.into_iter().map(|(p, hop)| {
                (Prefix::containing(p.first().reverse_bits() | p.first() & 7, p.length()).unwrap(), hop)
            });
            agrees(changes.collect(), probes);
        }

        #[test]
        fn agrees_with_a_plain_list_ipv6(
            changes in prop::collection::vec((prefixes(any::<u8>().prop_map(|a| u128::from(a) << 96)), prop::option::of(0u32..9)), 0..60),
            probes in prop::collection::vec(prefixes(any::<u128>()), 0..9),
        ) {
            agrees(changes, probes);
        }
    }
}
