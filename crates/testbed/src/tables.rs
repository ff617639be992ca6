//! Routing tables from a seed: as long, as nested and as uneven as real ones, and the same each time.
//!
//! A table grows from the shortest prefixes to the longest. Of each length some are *roots*, which are in no other
//! prefix, and some are *more-specifics*, which are within an existing prefix. Both come in runs
//! of neighbors with one next hop, since networks announce their space that way, and since the
//! size of a lookup structure depends on it. The counts are exactly those of `histogram`.

pub mod histogram;
mod roots;
mod space;

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use bm_wire::prefix::{Address, Prefix};

use crate::random::{Random, Seed, mix};
use histogram::Share;
use roots::Roots;
pub use space::{Space, is_reserved};

/// A prefix and the number of its next hop, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route<A: Address> {
    /// The destination prefix.
    pub prefix: Prefix<A>,
    /// The next hop's number, from 1.
    pub next_hop: u16,
}

/// The routes of both families, each list sorted by address, shorter prefixes first, without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// IPv4 routes.
    pub ipv4: Vec<Route<u32>>,
    /// IPv6 routes.
    pub ipv6: Vec<Route<u128>>,
}

impl Table {
    /// The largest next-hop number in use, 0 in an empty table.
    pub fn next_hop_max(&self) -> u16 {
        let ipv4 = self.ipv4.iter().map(|route| route.next_hop).max();
        ipv4.max(self.ipv6.iter().map(|route| route.next_hop).max()).unwrap_or(0)
    }

    /// Maps its next hops to the numbers 1 to `next_hops`.
    pub fn folded(mut self, next_hops: u16) -> Self {
        let of_ipv4 = self.ipv4.iter_mut().map(|route| &mut route.next_hop);
        let of_ipv6 = self.ipv6.iter_mut().map(|route| &mut route.next_hop);
        for number in of_ipv4.chain(of_ipv6) {
            *number = number.saturating_sub(1) % next_hops.max(1) + 1;
        }
        self
    }

    /// Reduces it to about `ipv4` and `ipv6` routes, taken evenly from the whole table.
    pub fn thinned(mut self, ipv4: usize, ipv6: usize) -> Self {
        thin(&mut self.ipv4, ipv4);
        thin(&mut self.ipv6, ipv6);
        self
    }
}

fn thin<A: Address>(routes: &mut Vec<Route<A>>, wanted: usize) {
    let had = routes.len();
    if wanted < had {
        *routes = (0..wanted).map(|i| routes[i * had / wanted]).collect();
    }
}

/// Size and seed of a generated table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// Determines every bit of the table.
    pub seed: Seed,
    /// IPv4 routes.
    pub ipv4: usize,
    /// IPv6 routes.
    pub ipv6: usize,
    /// Next hops, numbered from 1; at most 1023.
    pub next_hops: u16,
}

/// Maximum number of next hops: what entries of two bytes can hold beside flags, and what one
/// neighbor table of Linux holds with default settings.
pub const NEXT_HOPS_MAX: u16 = 1023;

impl Default for TableOptions {
    /// A full table as of 2026, with 16 next hops.
    fn default() -> Self {
        Self { seed: Seed(1), ipv4: 1_050_000, ipv6: 230_000, next_hops: 16 }
    }
}

/// Why there is no such table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    #[error("{wanted} next hops are not possible: use 1 to {NEXT_HOPS_MAX}")]
    NextHops {
        /// As given.
        wanted: u16,
    },
    #[error("there is room for only {placed} of {wanted} routes: use fewer routes")]
    Full {
        /// Number of routes wanted.
        wanted: usize,
        /// Number of routes for which there was room.
        placed: usize,
    },
}

/// The table that `options` describes.
pub fn generate(options: &TableOptions) -> Result<Table, TableError> {
    if !(1..=NEXT_HOPS_MAX).contains(&options.next_hops) {
        return Err(TableError::NextHops { wanted: options.next_hops });
    }
    std::thread::scope(|scope| {
        // The families share nothing, so each has its own thread and its own sequence of random numbers.
        let ipv6 = scope.spawn(|| grown::<u128>(Seed(options.seed.0 ^ 6), options.ipv6, options.next_hops));
        let ipv4 = grown::<u32>(Seed(options.seed.0 ^ 4), options.ipv4, options.next_hops)?;
        Ok(Table { ipv4, ipv6: ipv6.join().expect("the generator has no panic to pass on")? })
    })
}

fn grown<A: Space>(seed: Seed, wanted: usize, next_hops: u16) -> Result<Vec<Route<A>>, TableError> {
    let mut table = Growing::<A>::new(seed, wanted, next_hops);
    let mut late = 0;
    for mut share in histogram::scaled(A::HISTOGRAM, wanted) {
        share.count += late;
        late = table.grow(&share);
    }
    match late {
        0 => Ok(table.sorted()),
        _ => Err(TableError::Full { wanted, placed: wanted - late }),
    }
}

/// Share of runs of more-specifics that keep the next hop of their parent: with the strays this makes three in
/// four, as in real tables.
const KEEPS_PARENTS_HOP: f64 = 0.9;
/// Share of more-specifics within a run that have a different next hop.
const STRAYS: f64 = 0.1;
/// Share of more-specifics that are put under a prefix that already has some.
const FAVOURED: f64 = 0.5;
/// Number of attempts without a free place after which a length counts as full.
const MISSES_MAX: usize = 4096;

type PrefixSet<A> = HashSet<Prefix<A>, BuildHasherDefault<Mixer>>;

/// A table in the making.
struct Growing<A: Address> {
    random: Random,
    salt: u64,
    next_hops: u16,
    routes: Vec<Route<A>>,
    /// Every prefix there is.
    known: PrefixSet<A>,
    /// Those that are in no other prefix.
    roots: Roots<A>,
    /// Routes, by index, that have had more-specifics: they are likely to get more.
    favoured: Vec<u32>,
}

impl<A: Space> Growing<A> {
    fn new(seed: Seed, wanted: usize, next_hops: u16) -> Self {
        let mut random = Random::new(seed);
        Self {
            salt: random.next_u64(),
            random,
            next_hops,
            routes: Vec::with_capacity(wanted),
            known: PrefixSet::with_capacity_and_hasher(wanted, BuildHasherDefault::new()),
            roots: Roots::new(),
            favoured: Vec::new(),
        }
    }

    /// Adds the prefixes of one length; returns how many found no room.
    fn grow(&mut self, share: &Share) -> usize {
        let parents = self.routes.len();
        let nested = if parents == 0 { 0 } else { share.nested };
        let want = share.count - nested;
        let placed = self.add_runs(want, |table, room| table.root_run(share.length, room));
        if parents == 0 {
            return want - placed;
        }
        let want = share.count - placed;
        want - self.add_runs(want, |table, room| table.nested_run(share.length, parents, room))
    }

    fn add_runs(&mut self, wanted: usize, mut run: impl FnMut(&mut Self, usize) -> usize) -> usize {
        let (mut placed, mut misses) = (0, 0);
        while placed < wanted && misses < MISSES_MAX {
            let added = run(self, wanted - placed);
            placed += added;
            misses = if added == 0 { misses + 1 } else { 0 };
        }
        placed
    }

    /// A run of neighbors where nothing is yet; returns its length, 0 if the place was taken.
    fn root_run(&mut self, length: u8, room: usize) -> usize {
        let Some(start) = A::fresh(&mut self.random, self.salt, length) else { return 0 };
        let next_hop = self.any_next_hop();
        let run = self.run_length().min(room);
        let mut added = 0;
        while added < run {
            let Some(address) = start.plus(length, added as u64) else { break };
            let Some(prefix) = Prefix::containing(address, length) else { break };
            if space::is_reserved(&prefix) || self.roots.cover(address) || !self.known.insert(prefix) {
                break;
            }
            self.roots.insert(prefix);
            self.routes.push(Route { prefix, next_hop });
            added += 1;
        }
        added
    }

    /// A run of neighbors within one of the first `parents` routes.
    fn nested_run(&mut self, length: u8, parents: usize, room: usize) -> usize {
        let parent = self.any_parent(parents);
        let keeps = self.random.unit() < KEEPS_PARENTS_HOP;
        let common = if keeps { parent.next_hop } else { self.any_next_hop() };
        let slots = 1u64 << (length - parent.prefix.length()).min(63);
        let first = self.random.below(slots as usize) as u64;
        let run = (self.run_length().min(room) as u64).min(slots - first);
        let mut added = 0;
        for slot in first..first + run {
            let address = parent.prefix.first().plus(length, slot);
            let Some(prefix) = address.and_then(|address| Prefix::containing(address, length)) else { break };
            if !self.known.insert(prefix) {
                break;
            }
            let strays = self.random.unit() < STRAYS;
            let next_hop = if strays { self.any_next_hop() } else { common };
            self.routes.push(Route { prefix, next_hop });
            added += 1;
        }
        added
    }

    /// One of the first `parents` routes, often one that was chosen before: a few networks announce most
    /// of the more-specifics.
    fn any_parent(&mut self, parents: usize) -> Route<A> {
        let again = !self.favoured.is_empty() && self.random.unit() < FAVOURED;
        let index = match again {
            true => self.favoured[self.random.below(self.favoured.len())],
            false => self.random.below(parents) as u32,
        };
        self.favoured.push(index);
        self.routes[index as usize]
    }

    /// Mostly one to three, sometimes a hundred: the mean is about three.
    fn run_length(&mut self) -> usize {
        let root = (1.0 - self.random.unit()).sqrt();
        (1.0 / (root * root.sqrt())).min(256.0) as usize
    }

    /// Some next hops serve many prefixes and most serve few.
    fn any_next_hop(&mut self) -> u16 {
        let unit = self.random.unit();
        1 + (f64::from(self.next_hops) * unit * unit.sqrt()) as u16
    }

    fn sorted(mut self) -> Vec<Route<A>> {
        self.routes.sort_unstable_by_key(|route| route.prefix);
        self.routes
    }
}

/// A hash that is quick for a few words; its input is our own, so nobody can aim at collisions.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u8(byte));
    }
    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    fn write_u128(&mut self, word: u128) {
        self.write_u64((word >> 64) as u64);
        self.write_u64(word as u64);
    }
    fn finish(&self) -> u64 {
        mix(self.0)
    }
}

#[cfg(test)]
mod tests;
