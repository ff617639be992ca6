//! The differences between IPv4 and IPv6 in the router's stages, which are written once for both.

use bm_fib::Fib;

use super::Work;
use super::rewriting::Rewrite;
use crate::compiled::{MacKey, PortView};
use crate::lookup::FamilyBatch;
use crate::plain::{Chunk, PlainFamily, Reverse};
use crate::stages::rewrite::{self, fast};
use crate::tables::{ReversePath, Tables, Vrf};
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

/// Columns of the plain path: of those frames that are looked up, and of the next ones.
pub(super) type Chunks<A> = [Chunk<A>; 2];

/// Those of both families.
pub(super) struct PlainChunks {
    pub ipv4: Chunks<u32>,
    pub ipv6: Chunks<u128>,
}

impl PlainChunks {
    pub fn new() -> Self {
        Self { ipv4: [Chunk::new(), Chunk::new()], ipv6: [Chunk::new(), Chunk::new()] }
    }
}

/// What the router's stages need to know of an address family.
pub(super) trait RoutedFamily: PlainFamily {
    /// The IP version that hooks see.
    const VERSION: u8;

    fn batch(batches: &mut FamilyBatches) -> &mut FamilyBatch<Self>;

    fn fib(vrf: &Vrf) -> &dyn Fib<Address = Self>;

    fn chunks(chunks: &mut PlainChunks) -> &mut Chunks<Self>;

    /// The MAC address of frames that may take the plain path.
    fn plain_mac(view: &PortView) -> MacKey;

    /// The reverse path filter of untagged frames, if it is on.
    fn reverse_path(tables: &Tables, view: &PortView) -> Option<Reverse>;

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
    fn chunks(chunks: &mut PlainChunks) -> &mut Chunks<Self> {
        &mut chunks.ipv4
    }

    #[inline(always)]
    fn plain_mac(view: &PortView) -> MacKey {
        view.fast_ipv4
    }

    #[inline(always)]
    fn reverse_path(tables: &Tables, view: &PortView) -> Option<Reverse> {
        if !view.filters {
            return None;
        }
        let interface = view.untagged?;
        let filter = tables.compiled.ingress.get(usize::from(interface))?.reverse_path;
        (filter != ReversePath::Off).then_some(Reverse { filter, interface })
    }

    #[inline(always)]
    fn check_sources(work: &mut Work, tables: &Tables, view: &PortView) {
        work.check_ipv4_sources(tables, view);
    }

    #[inline(always)]
    fn rewrite(batch: Rewrite<'_, Self>, fast: bool, refused: &mut Refused) {
        batch.all::<{ rewrite::IPV4_HEAD }, { fast::IPV4_SPENT }>(fast, rewrite::rewrite::<Self>, refused);
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

    #[inline(always)]
    fn chunks(chunks: &mut PlainChunks) -> &mut Chunks<Self> {
        &mut chunks.ipv6
    }

    #[inline(always)]
    fn plain_mac(view: &PortView) -> MacKey {
        view.fast_ipv6
    }

    /// Linux has no reverse path filter for IPv6.
    #[inline(always)]
    fn reverse_path(_tables: &Tables, _view: &PortView) -> Option<Reverse> {
        None
    }

    /// There is none, see above.
    #[inline(always)]
    fn check_sources(_work: &mut Work, _tables: &Tables, _view: &PortView) {}

    #[inline(always)]
    fn rewrite(batch: Rewrite<'_, Self>, fast: bool, refused: &mut Refused) {
        batch.all::<{ rewrite::IPV6_HEAD }, { fast::IPV6_SPENT }>(fast, rewrite::rewrite::<Self>, refused);
    }
}
