//! A structure with the full table in it, ours or DPDK's, as the bench uses it.

use std::hint::black_box;
use std::sync::Arc;

use bm_fib::published::Readers;
use bm_fib::structure::Builder;
use bm_fib::{Change, Fib, Form, NextHop, Structure};
use bm_testbed::tables::Route;
use bm_wire::prefix::Prefix;
use serde_json::{Map, Value};

use super::BATCH_MAX;
use super::family::Family;
use super::peers::Peer;
use crate::alternate::{spread, thread_time};
use crate::bench::BenchError;

/// Addresses, in our format and in DPDK's.
pub struct Queries<A: Family> {
    pub addresses: Vec<A>,
    wire: Vec<A::Wire>,
}

impl<A: Family> Queries<A> {
    /// `peers`: whether they are needed for DPDK as well.
    pub fn new(addresses: Vec<A>, peers: bool) -> Self {
        let wire = if peers { addresses.iter().map(|address| address.wire()).collect() } else { Vec::new() };
        Self { addresses, wire }
    }
}

/// A subject of the bench.
pub struct Contender<A: Family> {
    /// The subject's name.
    pub name: String,
    table: Table<A>,
    /// Seconds that each build took.
    pub builds: Vec<f64>,
    /// A change that one of DPDK's had no room for: from then on its table is wrong.
    pub refused: Option<String>,
}

enum Table<A: Family> {
    Ours { builder: Builder<A>, fib: Arc<dyn Fib<Address = A>>, form: Option<Form> },
    Peer(Peer),
}

impl<A: Family> Contender<A> {
    /// Builds one of ours. If a form is given, lookups use only that.
    ///
    /// # Errors
    /// If there is no room for a route.
    pub fn ours(
        structure: &Structure<A>,
        form: Option<Form>,
        routes: &[Route<A>],
    ) -> Result<Self, BenchError> {
        let pairs = routes.iter().map(|route| (route.prefix, hop_of(route)));
        let begin = thread_time();
        let built = structure.build(pairs, &Readers::new());
        let builds = vec![(thread_time() - begin).as_secs_f64()];
        let builder = built.map_err(|full| BenchError::build(structure.name)(full.to_string()))?;
        let fib = builder.reader();
        let name = match form {
            Some(form) => format!("{}-{form}", structure.name),
            None => structure.name.into(),
        };
        Ok(Self { name, table: Table::Ours { builder, fib, form }, builds, refused: None })
    }

    /// One of DPDK's, which was built in this many seconds.
    pub fn peer(peer: Peer, seconds: f64) -> Self {
        Self { name: peer.name(), table: Table::Peer(peer), builds: vec![seconds], refused: None }
    }

    /// Takes over a later build of the same structure.
    pub fn built_again(&mut self, built: Self) {
        self.table = built.table;
        self.builds.extend(built.builds);
    }

    /// Whether it is ours and uses vector instructions.
    pub fn is_wide(&self) -> bool {
        match &self.table {
            Table::Ours { fib, form: None, .. } => fib.form() != Form::SCALAR,
            _ => false,
        }
    }

    /// Looks up the `count` addresses from `from` on, `batch` at a time. Returns how many.
    pub fn look_up(&self, queries: &Queries<A>, from: usize, count: usize, batch: usize) -> u64 {
        match &self.table {
            Table::Ours { fib, form, .. } => {
                let mut hops = [NextHop::NONE; BATCH_MAX];
                for burst in queries.addresses[from..from + count].chunks_exact(batch) {
                    match form {
                        Some(form) => fib.lookup_burst_by(*form, burst, &mut hops),
                        None => fib.lookup_burst(burst, &mut hops),
                    }
                    black_box(&hops);
                }
            }
            Table::Peer(peer) => {
                let mut hops = [0; BATCH_MAX];
                for burst in queries.wire[from..from + count].chunks_exact(batch) {
                    peer.look_up::<A>(burst, &mut hops);
                    black_box(&hops);
                }
            }
        }
        (count / batch * batch) as u64
    }

    /// The answers to all addresses, looked up `batch` at a time.
    pub fn answers(&self, queries: &Queries<A>, batch: usize) -> Vec<u32> {
        let mut answers = Vec::with_capacity(queries.addresses.len());
        match &self.table {
            Table::Ours { fib, form, .. } => {
                let mut hops = [NextHop::NONE; BATCH_MAX];
                for burst in queries.addresses.chunks(batch) {
                    match form {
                        Some(form) => fib.lookup_burst_by(*form, burst, &mut hops),
                        None => fib.lookup_burst(burst, &mut hops),
                    }
                    answers.extend(hops[..burst.len()].iter().map(|hop| hop.0));
                }
            }
            Table::Peer(peer) => {
                let mut hops = [0; BATCH_MAX];
                for burst in queries.wire.chunks(batch) {
                    peer.look_up::<A>(burst, &mut hops);
                    answers.extend((0..burst.len()).map(|index| peer.hop(&hops, index)));
                }
            }
        }
        answers
    }

    /// Whether its routes can be changed here.
    pub fn has_updates(&self) -> bool {
        match &self.table {
            Table::Ours { form, .. } => form.is_none(),
            Table::Peer(peer) => peer.has_updates(),
        }
    }

    /// Whether its own build was used, and its tables were not filled by us.
    pub fn builds_itself(&self) -> bool {
        !matches!(&self.table, Table::Peer(peer) if !peer.has_updates())
    }

    /// Applies changes, in one call if the structure has one for many, or one by one. One of DPDK's that refuses a
    /// change applies no further ones.
    ///
    /// # Errors
    /// If one of ours has no room.
    pub fn update(&mut self, changes: &[Change<A>], singly: bool) -> Result<u64, BenchError> {
        match &mut self.table {
            Table::Ours { builder, .. } => {
                let full = BenchError::build("updates");
                for part in changes.chunks(if singly { 1 } else { changes.len().max(1) }) {
                    builder.apply(part).map_err(|why| full(why.to_string()))?;
                }
            }
            Table::Peer(_) if self.refused.is_some() => return Ok(0),
            Table::Peer(peer) => {
                for change in changes {
                    let done = match *change {
                        Change::Set(prefix, hop) => peer.set(&route(prefix, hop)),
                        Change::Remove(prefix) => peer.remove(prefix),
                    };
                    if !done {
                        self.refused = Some(change.prefix().to_string());
                        return Ok(0);
                    }
                }
            }
        }
        Ok(changes.len() as u64)
    }

    /// Further details for the results.
    pub fn detail(&self) -> Map<String, Value> {
        let (bytes, pages, form) = match &self.table {
            Table::Ours { builder, fib, form } => {
                let form = form.unwrap_or_else(|| fib.form());
                (builder.memory_bytes(), fib.pages(), form.to_string())
            }
            Table::Peer(peer) => (peer.bytes, peer.pages(), peer.form.into()),
        };
        let mut detail = vec![
            ("version", Value::from(form)),
            ("memory_mib", to_three_digits(bytes as f64 / f64::from(1 << 20)).into()),
            ("pages", pages.to_string().into()),
        ];
        if self.builds_itself() {
            let median = spread(self.builds.iter().copied()).median;
            detail.push(("build_s", to_three_digits(median).into()));
        }
        detail.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
    }
}

/// The next hop of a route: its number.
pub fn hop_of<A: Family>(route: &Route<A>) -> NextHop {
    NextHop(route.next_hop.into())
}

fn route<A: Family>(prefix: Prefix<A>, hop: NextHop) -> Route<A> {
    Route { prefix, next_hop: hop.0 as u16 }
}

fn to_three_digits(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
