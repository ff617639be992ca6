//! What differs between the address families in `bench lookup`.

use std::collections::HashSet;

use bm_fib::structure::{self, Structure};
use bm_testbed::tables::{Route, Space, Table};
use bm_wire::prefix::Prefix;

use super::dxr::Dxr;
use super::variant::{self, Variant};

/// An address family with its structures.
pub trait Family: Space {
    /// Its name in cases.
    const NAME: &'static str;
    /// Our structures that can be configured for a router, the default first.
    const CONFIGURABLE: &'static [Structure<Self>];
    /// Others, which only this bench builds.
    const FURTHER: &'static [Structure<Self>];
    /// DPDK's.
    const PEERS: &'static [Variant];
    /// Updates create no prefix longer than this: what networks announce.
    const LONGEST: u8;
    /// An address in DPDK's format.
    type Wire: Copy;

    /// All of our structures.
    fn structures() -> impl Iterator<Item = &'static Structure<Self>> {
        Self::CONFIGURABLE.iter().chain(Self::FURTHER)
    }

    /// The address after this one, unless it is the last.
    fn after(self) -> Option<Self>;
    /// The address before this one, unless it is the first.
    fn before(self) -> Option<Self>;

    /// The address in DPDK's format.
    fn wire(self) -> Self::Wire;
    /// The routes of this family.
    fn routes(table: &Table) -> &[Route<Self>];

    /// Blocks of 8 bits below the first 24 that DPDK needs for these routes.
    fn blocks(routes: &[Route<Self>]) -> usize;
}

impl Family for u32 {
    const NAME: &'static str = "ipv4";
    const CONFIGURABLE: &'static [Structure<Self>] = structure::IPV4;
    const FURTHER: &'static [Structure<Self>] = &[
        Structure::new::<Dxr<18, 0>>("dxr18", "DXR, 18-bit root, then ranges: 3 MiB"),
        Structure::new::<Dxr<16, 0>>("dxr16", "DXR, 16-bit root, then ranges: 2 MiB"),
        Structure::new::<Dxr<20, 0>>("dxr20", "DXR, 20-bit root, then ranges: 6 MiB"),
        Structure::new::<Dxr<16, 4>>("dxr16x4", "DXR, 16-bit root, 4-bit extension, then ranges: 3 MiB"),
    ];
    const PEERS: &'static [Variant] = variant::IPV4;
    const LONGEST: u8 = 24;
    type Wire = Self;

    fn after(self) -> Option<Self> {
        self.checked_add(1)
    }

    fn before(self) -> Option<Self> {
        self.checked_sub(1)
    }

    fn wire(self) -> Self {
        self
    }

    fn routes(table: &Table) -> &[Route<Self>] {
        &table.ipv4
    }

    /// One for each /24 with longer routes.
    fn blocks(routes: &[Route<Self>]) -> usize {
        let longer = routes.iter().filter(|route| route.prefix.length() > 24);
        longer.map(|route| route.prefix.first() >> 8).collect::<HashSet<_>>().len()
    }
}

impl Family for u128 {
    const NAME: &'static str = "ipv6";
    const CONFIGURABLE: &'static [Structure<Self>] = structure::IPV6;
    const FURTHER: &'static [Structure<Self>] = &[];
    const PEERS: &'static [Variant] = variant::IPV6;
    const LONGEST: u8 = 48;
    type Wire = [u8; 16];

    fn after(self) -> Option<Self> {
        self.checked_add(1)
    }

    fn before(self) -> Option<Self> {
        self.checked_sub(1)
    }

    fn wire(self) -> [u8; 16] {
        self.to_be_bytes()
    }

    fn routes(table: &Table) -> &[Route<Self>] {
        &table.ipv6
    }

    /// `rte_fib6` shares blocks, but reserves them separately for each route, from the covering route down.
    fn blocks(routes: &[Route<Self>]) -> usize {
        let level = |prefix: &Prefix<Self>| usize::from(prefix.length().div_ceil(8).max(3));
        let (mut around, mut blocks) = (Vec::<Prefix<Self>>::new(), 0);
        for Route { prefix, .. } in routes {
            while around.pop_if(|outer| !outer.covers(prefix)).is_some() {}
            blocks += level(prefix) - around.last().map_or(3, level);
            around.push(*prefix);
        }
        blocks
    }
}
