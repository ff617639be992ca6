//! The fast path: forwards ordinary packets, 32 at a time in columns, and reads each byte of a frame once.
//!
//! ```text
//! gather:   frame -> pointer to its bytes, their number                    (a column each)
//! check:    headers -> plain or not, destination, length, word with the TTL as it leaves
//! filter:   filter rules and the reverse path filter, where there are such
//! look up:  the destinations (any FIB structure)
//! rewrite:  one of several next hops by the flow; next hop cached, packet within the MTU -> three stores
//!           tag, or anything else -> the rewriting of the stages
//! ```
//!
//! A frame is plain if it is untagged, for the port's MAC address, and without options, fragments or special addresses.
//! One that is not plain, or that cannot leave, is unchanged afterwards: [`crate::stages`] then handle it. They are what
//! this path is tested against. A frame may be left to them without need, which only costs time, but a frame that is
//! plain must pass all their checks.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
mod burst;
mod by_family;
mod chunk;
mod filter;
mod filter_first;
mod hooked;
mod hop_cache;
mod lanes;
mod link_to_link;
mod portable;
mod rewrite;
#[cfg(test)]
mod tests;

use bm_fib::{Fib, Form};
use bm_filter::{Key, VectorsOn};
use bm_frame::BURST;
use bm_wire::ethernet;
use bm_wire::prefix::Address;

use crate::compiled::{LocalFilter, MacKey, NO_MAC, PortView};
use crate::filter::PlainFilter;
use crate::stages::NextHeaders;
use crate::stages::rewrite::RewriteFamily;
use crate::tables::{ReversePath, Tables, Vrf};
use chunk::{CheckResult, Chunk};
use filter::ReverseFilter;

pub(crate) use burst::FastPath;
pub(crate) use link_to_link::LinkResult;

/// Frames that go through the columns together.
const CHUNK: usize = 32;
/// Frames that a vector form checks at once.
const LANES: usize = 8;

/// What frames are compared with.
#[derive(Clone, Copy)]
struct Criteria<'a> {
    /// The MAC address that frames of the family must be for.
    mac: MacKey,
    /// Sources that packets must not have, for IPv4.
    local: &'a LocalFilter,
    /// Next headers that packets must not have, for IPv6.
    excluded: NextHeaders,
}

impl<'a> Criteria<'a> {
    /// `None` if no frame of the family is plain on this port.
    #[inline(always)]
    fn of<A: FastFamily>(tables: &'a Tables, view: &PortView) -> Option<Self> {
        let mac = A::plain_mac(view);
        (mac != NO_MAC).then_some(Self { mac, local: &tables.compiled.local, excluded: view.excluded })
    }
}

/// The columns of a family, for a whole burst where a hook sees it behind the lookup. Others use two of them: one for the
/// frames that are looked up, and one for the next ones.
type Chunks<A> = [Chunk<A>; BURST / CHUNK];

/// The columns of both families.
struct BothChunks {
    ipv4: Chunks<u32>,
    ipv6: Chunks<u128>,
}

impl BothChunks {
    fn new() -> Self {
        Self { ipv4: std::array::from_fn(|_| Chunk::new()), ipv6: std::array::from_fn(|_| Chunk::new()) }
    }
}

/// The differences between IPv4 and IPv6 on the fast path.
trait FastFamily: Address + RewriteFamily {
    /// Bytes of the headers of an untagged frame.
    const HEAD: usize = ethernet::HEADER_LEN + Self::HEADER_LEN;
    /// Offset of the word with the TTL in an untagged frame.
    const TTL_WORD_IN_FRAME: usize = ethernet::HEADER_LEN + Self::TTL_WORD;

    /// As [`Chunk::check`], for this many groups of lanes.
    ///
    /// # Safety
    /// The heads of these groups refer to [`HEAD`](Self::HEAD) bytes each, which nobody changes meanwhile.
    unsafe fn check(
        chunk: &mut Chunk<Self>,
        form: Form,
        groups: usize,
        criteria: Criteria<'_>,
    ) -> CheckResult;

    /// Writes the key for filters of a plain frame, whose packet has `length` bytes, over that of another one; `false` if
    /// filters must look at the frame by itself.
    fn key(filter: &PlainFilter<'_>, frame: &[u8], length: u16, to: &mut Key) -> bool;

    /// The filter rules as bit vectors, where packets of the family can be compared with these.
    fn vectors<'a>(filter: &PlainFilter<'a>) -> Option<VectorsOn<'a>>;

    fn fib(vrf: &Vrf) -> &dyn Fib<Address = Self>;

    fn chunks(chunks: &mut BothChunks) -> &mut Chunks<Self>;

    /// The MAC address of plain frames.
    fn plain_mac(view: &PortView) -> MacKey;

    /// The reverse path filter of untagged frames, if it is on.
    fn reverse_path(tables: &Tables, view: &PortView) -> Option<ReverseFilter>;
}

impl FastFamily for u32 {
    #[inline(always)]
    unsafe fn check(
        chunk: &mut Chunk<Self>,
        form: Form,
        groups: usize,
        criteria: Criteria<'_>,
    ) -> CheckResult {
        // SAFETY: the caller's promise. Every form but the scalar one has AVX2.
        unsafe {
            match form {
                #[cfg(target_arch = "x86_64")]
                form if form != Form::SCALAR => avx2::ipv4(chunk, groups, criteria),
                _ => portable::ipv4(chunk, groups, criteria),
            }
        }
    }

    #[inline(always)]
    fn key(filter: &PlainFilter<'_>, frame: &[u8], length: u16, to: &mut Key) -> bool {
        filter.ipv4(frame, length, to)
    }

    #[inline(always)]
    fn vectors<'a>(filter: &PlainFilter<'a>) -> Option<VectorsOn<'a>> {
        filter.vectors()
    }

    #[inline(always)]
    fn fib(vrf: &Vrf) -> &dyn Fib<Address = Self> {
        &*vrf.ipv4
    }

    #[inline(always)]
    fn chunks(chunks: &mut BothChunks) -> &mut Chunks<Self> {
        &mut chunks.ipv4
    }

    #[inline(always)]
    fn plain_mac(view: &PortView) -> MacKey {
        view.plain_ipv4
    }

    #[inline(always)]
    fn reverse_path(tables: &Tables, view: &PortView) -> Option<ReverseFilter> {
        let interface = view.untagged?;
        let strictness = tables.compiled.ingress.get(usize::from(interface))?.reverse_path;
        (strictness != ReversePath::Off).then_some(ReverseFilter { strictness, interface })
    }
}

impl FastFamily for u128 {
    #[inline(always)]
    unsafe fn check(
        chunk: &mut Chunk<Self>,
        form: Form,
        groups: usize,
        criteria: Criteria<'_>,
    ) -> CheckResult {
        // SAFETY: the caller's promise. Every form but the scalar one has AVX2.
        unsafe {
            match form {
                #[cfg(target_arch = "x86_64")]
                form if form != Form::SCALAR => avx2::ipv6(chunk, groups, criteria),
                _ => portable::ipv6(chunk, groups, criteria),
            }
        }
    }

    #[inline(always)]
    fn key(filter: &PlainFilter<'_>, frame: &[u8], _length: u16, to: &mut Key) -> bool {
        filter.ipv6(frame, to)
    }

    #[inline(always)]
    fn vectors<'a>(_filter: &PlainFilter<'a>) -> Option<VectorsOn<'a>> {
        None
    }

    #[inline(always)]
    fn fib(vrf: &Vrf) -> &dyn Fib<Address = Self> {
        &*vrf.ipv6
    }

    #[inline(always)]
    fn chunks(chunks: &mut BothChunks) -> &mut Chunks<Self> {
        &mut chunks.ipv6
    }

    #[inline(always)]
    fn plain_mac(view: &PortView) -> MacKey {
        view.plain_ipv6
    }

    /// Linux has no reverse path filter for IPv6.
    #[inline(always)]
    fn reverse_path(_tables: &Tables, _view: &PortView) -> Option<ReverseFilter> {
        None
    }
}

/// Calls a function with the number of each bit that is set.
#[inline(always)]
fn each_bit(mut bits: u32, mut with: impl FnMut(usize)) {
    while bits != 0 {
        with(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

/// The bits of the first `count` lanes.
#[inline(always)]
fn every(count: usize) -> u32 {
    u32::MAX.unbounded_shr((CHUNK - count.min(CHUNK)) as u32)
}
