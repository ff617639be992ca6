//! The routing table of one address family.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bm_fib::published::Readers;
use bm_fib::{Fib, NextHop, Structure};
use bm_testbed::oracle::Oracle;
use bm_testbed::tables::Route;

use crate::bench::BenchError;
use crate::bench::forward::packet::Packet;

/// One family's table of a router.
pub(in crate::bench::forward) struct FamilyTable<A: Packet> {
    pub structure: &'static str,
    pub fib: Arc<dyn Fib<Address = A>>,
    pub routes: Vec<Route<A>>,
    pub oracle: Oracle<A>,
    pub bytes: usize,
    pub built: Duration,
    pub pages: String,
}

impl<A: Packet> FamilyTable<A> {
    pub fn new(
        structure: Structure<A>,
        mut routes: Vec<Route<A>>,
        hops: &[NextHop],
        readers: &Readers,
    ) -> Result<Self, BenchError> {
        let everything = A::everything();
        if routes.first().is_none_or(|first| first.prefix != everything) {
            routes.insert(0, Route { prefix: everything, next_hop: 1 });
        }
        let pairs = routes.iter().map(|route| (route.prefix, hops[usize::from(route.next_hop)]));
        let begin = Instant::now();
        let builder =
            structure.build(pairs, readers).map_err(|full| BenchError::build("routes")(full.to_string()))?;
        let built = begin.elapsed();
        let (fib, oracle) = (builder.reader(), Oracle::new(&routes));
        let (name, pages) = (structure.name, fib.pages().to_string());
        Ok(Self { structure: name, pages, fib, oracle, bytes: builder.memory_bytes(), built, routes })
    }
}
