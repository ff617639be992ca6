//! The differences between IPv4 and IPv6 in the router's stages, which are written once for both.

use bm_fib::Fib;
use bm_wire::prefix::Address;

use super::Work;
use super::rewriting::Rewrite;
use crate::compiled::PortView;
use crate::lookup::FamilyBatch;
use crate::rewrite::{self, fast};
use crate::tables::{Tables, Vrf};
use crate::verdict::Refused;

/// The packets of a burst, by family.
pub(super) struct FamilyBatches {
    pub ipv4: FamilyBatch<u32>,
    pub ipv6: FamilyBatch<u128>,
}

impl FamilyBatches {
    pub fn new() -> Self {
        Self { ipv4: FamilyBatch::new(), ipv6: FamilyBatch::new() }
    }
}

/// What the router's stages need to know of an address family.
pub(super) trait RoutedFamily: Address {
    /// The IP version that hooks see.
    const VERSION: u8;

    fn batch(batches: &mut FamilyBatches) -> &mut FamilyBatch<Self>;

    fn fib(vrf: &Vrf) -> &dyn Fib<Address = Self>;

    /// Checks the sources of packets that would be forwarded.
    fn check_sources(work: &mut Work, tables: &Tables, view: &PortView);

    /// Rewrites the frames of the batch. `fast` means that they are the whole burst and that none has a VLAN tag.
    fn rewrite(batch: Rewrite<'_, Self>, fast: bool, refused: &mut Refused);
}

impl RoutedFamily for u32 {
    const VERSION: u8 = 4;

    #[inline(always)]
    fn batch(batches: &mut FamilyBatches) -> &mut FamilyBatch<Self> {
        &mut batches.ipv4
    }

    #[inline(always)]
    fn fib(vrf: &Vrf) -> &dyn Fib<Address = Self> {
        &*vrf.ipv4
    }

    #[inline(always)]
    fn check_sources(work: &mut Work, tables: &Tables, view: &PortView) {
        work.check_ipv4_sources(tables, view);
    }

    #[inline(always)]
    fn rewrite(batch: Rewrite<'_, Self>, fast: bool, refused: &mut Refused) {
        batch.all::<{ rewrite::IPV4_HEAD }, { fast::IPV4_SPENT }>(fast, rewrite::ipv4, refused);
    }
}

impl RoutedFamily for u128 {
    const VERSION: u8 = 6;

    #[inline(always)]
    fn batch(batches: &mut FamilyBatches) -> &mut FamilyBatch<Self> {
        &mut batches.ipv6
    }

    #[inline(always)]
    fn fib(vrf: &Vrf) -> &dyn Fib<Address = Self> {
        &*vrf.ipv6
    }

    /// Linux has no reverse path filter for IPv6.
    #[inline(always)]
    fn check_sources(_work: &mut Work, _tables: &Tables, _view: &PortView) {}

    #[inline(always)]
    fn rewrite(batch: Rewrite<'_, Self>, fast: bool, refused: &mut Refused) {
        batch.all::<{ rewrite::IPV6_HEAD }, { fast::IPV6_SPENT }>(fast, rewrite::ipv6, refused);
    }
}
