//! Structures by name: the one list that configuration, benches and tests choose from.
//!
//! A new structure implements [`Fib`](crate::Fib) and [`BuildFib`], and gets a line in [`IPV4`] or
//! [`IPV6`]; nothing else has to know it.

use crate::memory::Source;
use crate::published::Readers;
use crate::{BuildFib, Chunk17, Dir18, Dir24_8, NextHop, Range6, TableFull};
use bm_wire::prefix::{Address, Prefix};
use std::fmt;

/// For IPv4, the default first.
pub const IPV4: &[Structure<u32>] = &[
    Structure::new::<Dir18>("dir18", "18-bit root, then packed blocks of 6 and 8 bits: 3 MiB"),
    Structure::new::<Dir24_8>("dir24_8", "24-bit root, then blocks of 8 bits: 33 MiB, for comparison"),
    Structure::new::<Chunk17>(
        "chunk17",
        "17-bit root, then a bitmap of ranges, equal blocks shared: under 2 MiB, for cold or shared caches",
    ),
];

/// For IPv6, the default first.
pub const IPV6: &[Structure<u128>] =
    &[Structure::new::<Range6>("range6", "16-bit root, then trees of range ends, one cache line per step")];

/// A table of any structure.
pub type Builder<A> = Box<dyn BuildFib<Address = A> + Send>;

/// A structure: its name, and how a table of it is built.
#[derive(Clone, Copy)]
pub struct Structure<A: Address> {
    /// As configuration and benches name it.
    pub name: &'static str,
    /// A short description.
    pub about: &'static str,
    build: Build<A>,
}

type Routes<'r, A> = &'r mut dyn Iterator<Item = (Prefix<A>, NextHop)>;
type Build<A> = fn(Routes<'_, A>, &Readers, &Source) -> Result<Builder<A>, TableFull<A>>;

impl<A: Address> Structure<A> {
    /// The structure that `B` builds.
    pub const fn new<B: BuildFib<Address = A> + Send + 'static>(
        name: &'static str,
        about: &'static str,
    ) -> Self {
        Self {
            name,
            about,
            build: |routes, readers, source| Ok(Box::new(B::build_in(routes, readers, source)?)),
        }
    }

    /// A table of all `routes`, as [`BuildFib::build`] makes one.
    ///
    /// # Errors
    /// The first route without room.
    pub fn build(
        &self,
        routes: impl IntoIterator<Item = (Prefix<A>, NextHop)>,
        readers: &Readers,
    ) -> Result<Builder<A>, TableFull<A>> {
        self.build_in(routes, readers, &Source::anonymous())
    }

    /// A table of all `routes` in memory from `source`.
    ///
    /// # Errors
    /// The first route without room.
    pub fn build_in(
        &self,
        routes: impl IntoIterator<Item = (Prefix<A>, NextHop)>,
        readers: &Readers,
        source: &Source,
    ) -> Result<Builder<A>, TableFull<A>> {
        (self.build)(&mut routes.into_iter(), readers, source)
    }
}

impl<A: Address> PartialEq for Structure<A> {
    /// By name: there is one structure of a name.
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl<A: Address> Eq for Structure<A> {}

impl<A: Address> fmt::Debug for Structure<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.name)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::{Change, Fib, Form};

    fn builds_all<A: Address>(structures: &[Structure<A>]) {
        let readers = Readers::new();
        for (index, structure) in structures.iter().enumerate() {
            assert!(!structures[..index].contains(structure), "{structure:?} is there twice");
            let everything = Prefix::default();
            let table = structure.build([(everything, NextHop(7))], &readers).unwrap();
            assert_eq!(table.rib().get(everything), Some(NextHop(7)), "{structure:?}");
            assert_eq!(table.reader().lookup(A::mask(A::WIDTH)), NextHop(7), "{structure:?}");
            assert!(Form::all().contains(&table.reader().form()), "{structure:?}");
        }
    }

    #[test]
    fn nested_routes_and_what_they_fall_back_to() {
        let p = |text: &str| -> Prefix<u32> { text.parse().unwrap() };
        let routes = [
            ("0.0.0.0/0", 1),
            ("192.0.0.0/8", 2),
            ("192.0.0.0/16", 3),
            ("192.0.2.0/24", 4),
            ("192.0.2.128/25", 5),
            ("192.0.2.200/32", 6),
        ];
        let addresses =
            ["203.0.113.1", "192.1.0.0", "192.0.3.0", "192.0.2.127", "192.0.2.201", "192.0.2.200"];
        for structure in IPV4 {
            let hops = routes.map(|(prefix, hop)| (p(prefix), NextHop(hop)));
            let mut table = structure.build(hops, &Readers::new()).unwrap();
            let seen =
                |table: &Builder<u32>| addresses.map(|address| at(&*table.reader(), p(address).first()));
            assert_eq!(seen(&table), [1, 2, 3, 4, 5, 6], "{structure:?}");
            let expected = [[1, 2, 3, 4, 5, 5], [1, 2, 3, 4, 4, 4], [1, 2, 3, 3, 3, 3], [1, 2, 2, 2, 2, 2]];
            for ((prefix, _), expected) in routes.iter().rev().zip(expected) {
                table.apply(&[Change::Remove(p(prefix))]).unwrap();
                assert_eq!(seen(&table), expected, "{structure:?}");
            }
            table.apply(&[Change::Remove(p("0.0.0.0/0")), Change::Remove(p("0.0.0.0/0"))]).unwrap();
            assert_eq!(seen(&table), [0, 2, 2, 2, 2, 2], "{structure:?}");
        }
    }

    /// What every form says, alone and in a burst.
    fn at(fib: &dyn Fib<Address = u32>, address: u32) -> u32 {
        for form in Form::all() {
            let mut hops = [NextHop(u32::MAX); 16];
            fib.lookup_burst_by(form, &[address; 16], &mut hops);
            assert_eq!(hops, [fib.lookup(address); 16], "{form}");
        }
        let mut one = [NextHop(u32::MAX)];
        fib.lookup_burst(&[address], &mut one);
        assert_eq!(one, [fib.lookup(address)]);
        fib.lookup(address).0
    }

    #[test]
    fn every_name_builds_a_table() {
        builds_all(IPV4);
        builds_all(IPV6);
    }
}
