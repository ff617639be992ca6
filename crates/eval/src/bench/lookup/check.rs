//! Compares every structure with a simple oracle before its figures count.

use bm_testbed::addresses::{Pattern, destinations};
use bm_testbed::oracle::Oracle;
use bm_testbed::random::{Random, Seed};
use bm_testbed::tables::Route;

use super::contender::{Contender, Queries};
use super::family::Family;
use crate::bench::BenchError;

/// Addresses of each pattern.
const DRAWN: usize = 1 << 16;
/// Number of routes whose first and last addresses, and those next to them, are looked up.
const EDGES: usize = 1 << 15;
/// Addresses per call: the usual number, one that fills no vector, one, and a burst of the router.
const BATCHES: [usize; 4] = [64, 7, 1, 256];

/// Addresses with the correct answers.
pub struct Probes<A: Family> {
    queries: Queries<A>,
    right: Vec<u32>,
}

impl<A: Family> Probes<A> {
    /// Addresses of all patterns, and the edges of routes.
    pub fn new(routes: &[Route<A>], seed: Seed, peers: bool) -> Self {
        let oracle = Oracle::new(routes);
        let mut asked = vec![A::default(), A::mask(A::WIDTH)];
        for pattern in Pattern::ALL {
            asked.extend(destinations::<A>(pattern, seed, DRAWN, routes));
        }
        let mut random = Random::new(seed);
        for _ in 0..EDGES.min(routes.len()) {
            let prefix = routes[random.below(routes.len())].prefix;
            let (first, last) = (prefix.first(), prefix.last());
            asked.extend([Some(first), Some(last), first.before(), last.after()].into_iter().flatten());
        }
        let right = asked.iter().map(|address| oracle.next_hop(*address).into()).collect();
        Self { queries: Queries::new(asked, peers), right }
    }

    /// Compares every answer of every structure with the correct one.
    ///
    /// # Errors
    /// The first wrong answer, and how many there are.
    pub fn check(&self, family: &str, contenders: &[Contender<A>]) -> Result<(), BenchError> {
        for (contender, batch) in contenders.iter().flat_map(|of| BATCHES.map(|batch| (of, batch))) {
            let answers = contender.answers(&self.queries, batch);
            let all: Vec<usize> =
                (0..self.right.len()).filter(|&index| answers[index] != self.right[index]).collect();
            if let Some(&first) = all.first() {
                return Err(BenchError::Differs {
                    case: format!("{family}-full, {batch} a call"),
                    subject: contender.name.clone(),
                    address: self.queries.addresses[first].show(),
                    expected: self.right[first],
                    found: answers[first],
                    count: all.len(),
                });
            }
        }
        Ok(())
    }
}
