//! The correct answer: longest-prefix match in a simple way, with which everything else is compared.
//!
//! The table is flattened once into ranges of addresses with one answer each, and a lookup is a binary
//! search among them: slow, short, and easy to check.

use bm_wire::prefix::{Address, Prefix};

use crate::tables::Route;

/// A table with the next hop of every address.
pub struct Oracle<A: Address> {
    /// First address of each range; the first range begins at 0.
    starts: Vec<A>,
    /// The next hop of each range, 0 where no route matches.
    next_hops: Vec<u16>,
}

impl<A: Address> Oracle<A> {
    /// Flattens routes that are sorted by address, shorter prefixes first, and have no duplicates.
    pub fn new(routes: &[Route<A>]) -> Self {
        debug_assert!(routes.windows(2).all(|pair| pair[0].prefix < pair[1].prefix));
        let mut oracle = Self { starts: vec![A::default()], next_hops: vec![0] };
        let mut around: Vec<Route<A>> = Vec::new();
        for route in routes {
            while let Some(outer) = around.pop_if(|outer| !outer.prefix.covers(&route.prefix)) {
                oracle.end(&outer.prefix, &around);
            }
            oracle.begin(route.prefix.first(), route.next_hop);
            around.push(*route);
        }
        while let Some(outer) = around.pop() {
            oracle.end(&outer.prefix, &around);
        }
        oracle
    }

    /// The next hop for an address, 0 where no route matches.
    pub fn next_hop(&self, address: A) -> u16 {
        self.next_hops[self.starts.partition_point(|&start| start <= address) - 1]
    }

    fn begin(&mut self, start: A, next_hop: u16) {
        if self.starts.last() == Some(&start) {
            self.starts.pop();
            self.next_hops.pop();
        }
        self.starts.push(start);
        self.next_hops.push(next_hop);
    }

    /// After the last address of a prefix, the covering prefix applies again.
    fn end(&mut self, prefix: &Prefix<A>, around: &[Route<A>]) {
        let next_hop = around.last().map_or(0, |outer| outer.next_hop);
        if let Some(start) = prefix.last().next() {
            self.begin(start, next_hop);
        }
    }
}

/// The number after this one.
trait Next: Sized {
    fn next(self) -> Option<Self>;
}

impl<A: Address> Next for A {
    /// By bits, since `Address` has no addition: the trailing ones become zero, and the zero before them one.
    fn next(self) -> Option<Self> {
        let zero = (0..A::WIDTH).rev().find(|&index| !self.bit(index))?;
        let one = A::mask(zero + 1).and(A::mask(zero).not());
        Some(self.and(A::mask(zero)).or(one))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::{Pattern, destinations};
    use crate::random::Seed;
    use crate::tables::{Space, TableOptions, generate};

    /// Compares prefix by prefix, from the longest.
    fn slowly<A: Address>(routes: &[Route<A>], address: A) -> u16 {
        let hits = routes.iter().filter(|route| route.prefix.contains(address));
        hits.max_by_key(|route| route.prefix.length()).map_or(0, |route| route.next_hop)
    }

    fn agrees<A: Space>(routes: &[Route<A>]) {
        let oracle = Oracle::new(routes);
        let mut asked: Vec<A> = destinations(Pattern::Prefix, Seed(1), 300, routes);
        asked.extend(destinations::<A>(Pattern::Uniform, Seed(2), 100, routes));
        asked.extend(routes.iter().take(100).flat_map(|route| [route.prefix.first(), route.prefix.last()]));
        asked.extend([A::default(), A::mask(A::WIDTH)]);
        for address in asked {
            assert_eq!(oracle.next_hop(address), slowly(routes, address), "{}", address.show());
        }
    }

    #[test]
    fn agrees_with_a_linear_search() {
        let options = TableOptions { ipv4: 5_000, ipv6: 2_000, ..TableOptions::default() };
        let table = generate(&options).unwrap();
        agrees(&table.ipv4);
        agrees(&table.ipv6);
    }

    #[test]
    fn finds_both_ends_of_the_address_space() {
        let route = |text: &str, next_hop| Route { prefix: text.parse().unwrap(), next_hop };
        let routes: [Route<u32>; 4] = [
            route("0.0.0.0/0", 1),
            route("0.0.0.0/8", 2),
            route("255.0.0.0/8", 3),
            route("255.255.255.255/32", 4),
        ];
        agrees(&routes);
        agrees::<u32>(&[]);
    }
}
