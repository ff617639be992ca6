//! IPv4.
//!
//! ```text
//! frame 0:  mac | . | type | start | id | TTL | source | destination     one load a frame, from byte 2 on
//! frame 1:  ...
//!                 '-> turned round: mac of all sixteen, type of all sixteen, ...
//! ```

use std::arch::x86_64::*;

use bm_frame::Frame;
use bm_wire::{ethernet, ipv4};

use super::super::{ColumnsIpv4, Seen};
use super::{LANES, all, each, first_words, fours, heads, rows, second_words, store, store_words};
use crate::compiled::{LocalFilter, MacKey};

/// Where the load begins: it ends with the IPv4 header. The two bytes in front are asked for by themselves.
const LOAD: usize = HEAD - size_of::<__m256i>();
/// Bytes that are read of each frame: both headers.
const HEAD: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;

/// In the word that starts with the identification: the bits that a fragment has.
const FRAGMENT: u32 = u32::from_le_bytes([0, 0, 0x3f, 0xff]);

/// Like [`common_ipv4`](super::super::common_ipv4), for sixteen frames. `None` also if a frame is for a MAC address
/// that starts differently.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) fn common_ipv4(
    frames: &[Option<Frame>; LANES],
    mac: MacKey,
    local: &LocalFilter,
    (sources, to): &mut ColumnsIpv4<'_>,
) -> Option<Seen> {
    // A key starts with two zero bytes; otherwise it is not an address.
    let [0, 0, first, second, rest @ ..] = mac.to_le_bytes() else { return None };
    // One branch per frame, always the same way: collecting sixteen results in a vector would take longer.
    let (heads, lengths) = heads(frames, |head: &[u8; HEAD]| head[..2] == [first, second])?;
    let [to_mac, kind, start, id, ttl, source, destination] = fields(&heads);
    let length = _mm512_shuffle_epi8(start, each(0x8080_0203));
    let room = _mm512_sub_epi32(_mm512_cvtepu16_epi32(lengths), all(ethernet::HEADER_LEN as u32));
    // Differences to the expected values, in the bits that matter.
    let kind = _mm512_xor_si512(kind, all(u32::from(ethernet::ethertype::IPV4.to_be()) << 16));
    let begin = _mm512_and_si512(_mm512_xor_si512(start, all(0x45)), all(0xff));
    let differs = [
        _mm512_xor_si512(to_mac, all(u32::from_le_bytes(rest))),
        _mm512_or_si512(begin, _mm512_and_si512(kind, all(0xffff_0000))),
        _mm512_and_si512(id, all(FRAGMENT)),
        _mm512_xor_si512(sum([start, id, ttl, source, destination]), all(0xffff)),
    ];
    let [a, b, c, d] = differs;
    let differs = _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d));
    // In pairs: one after the other, they would wait for each other.
    let fits =
        _mm512_cmple_epu32_mask(length, room) & _mm512_cmpge_epu32_mask(length, all(ipv4::HEADER_LEN as u32));
    let alike = _mm512_testn_epi32_mask(differs, differs);
    let common = (fits & alike) & (may_be_hosts(source) & may_be_hosts(destination));

    store(to.lengths, _mm512_cvtepi32_epi16(length));
    store(to.ttl, _mm512_cvtepi32_epi16(_mm512_and_si512(ttl, all(0xff))));
    let swap = each(0x0001_0203);
    let source = _mm512_shuffle_epi8(source, swap);
    store_words(to.spent, spent(ttl));
    store_words(sources, source);
    store_words(to.destinations, _mm512_shuffle_epi8(destination, swap));
    Some(Seen { common, suspects: may_be_ours(common, source, local) })
}

/// The words of all frames from [`LOAD`] on except the second, one vector for each position.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fields(heads: &[&[u8; HEAD]; LANES]) -> [__m512i; 7] {
    let [near, far] = rows::<LOAD, HEAD>(heads);
    // Of four frames each: words 0 and 4, 1 and 5, 2 and 6, 3 and 7; then those of the next four.
    let [near0, near1, near2, near3] = fours(near);
    let [far0, far1, far2, far3] = fours(far);
    [
        first_words(near0, far0),
        first_words(near2, far2),
        first_words(near3, far3),
        second_words(near0, far0),
        second_words(near1, far1),
        second_words(near2, far2),
        second_words(near3, far3),
    ]
}

/// The sum of the half words of each header, folded (RFC 1071).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn sum([a, b, c, d, e]: [__m512i; 5]) -> __m512i {
    let halves = |word| _mm512_add_epi32(_mm512_and_si512(word, all(0xffff)), _mm512_srli_epi32::<16>(word));
    let sum =
        _mm512_add_epi32(_mm512_add_epi32(halves(a), halves(b)), _mm512_add_epi32(halves(c), halves(d)));
    halves(halves(_mm512_add_epi32(sum, halves(e))))
}

/// Lanes whose address, in network order, may belong to one host ([`ipv4::is_single_host`]).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn may_be_hosts(address: __m512i) -> __mmask16 {
    let first = _mm512_and_si512(address, all(0xff));
    // 0 wraps to the greatest.
    let is_routed = _mm512_cmplt_epu32_mask(_mm512_sub_epi32(first, all(1)), all(223));
    is_routed & _mm512_cmpneq_epi32_mask(first, all(127))
}

/// The words with TTL and checksum, with the TTL decremented and the checksum updated (RFC 1624).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn spent(words: __m512i) -> __m512i {
    // The sum's bytes are swapped here, and so is what is added: a one's-complement sum allows that.
    let risen = _mm512_add_epi32(_mm512_srli_epi32::<16>(words), all(1));
    let wraps = _mm512_cmpgt_epu32_mask(risen, all(0xfffe));
    let risen = _mm512_mask_add_epi32(risen, wraps, risen, all(1));
    // Byte by byte: a TTL of 0 must not borrow from the protocol next to it.
    let ttl = _mm512_sub_epi8(_mm512_and_si512(words, all(0xffff)), all(1));
    _mm512_or_si512(_mm512_slli_epi32::<16>(risen), ttl)
}

/// Those of `common` whose source, in host order, may be an address of this machine. All bits are in eight vectors,
/// and selected from there: a gather would take longer than all the rest.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn may_be_ours(common: __mmask16, source: __m512i, local: &LocalFilter) -> __mmask16 {
    const { assert!(LocalFilter::HASH_BITS == 12, "eight vectors of 512 bits") };
    let product = _mm512_mullo_epi32(source, all(LocalFilter::FACTOR));
    let hash = _mm512_srli_epi32::<{ 32 - LocalFilter::HASH_BITS }>(product);
    let word = _mm512_srli_epi32::<5>(hash);
    let vectors = local.bits().as_chunks::<8>().0;
    let pair =
        |at: usize| _mm512_permutex2var_epi32(load_bits(&vectors[at]), word, load_bits(&vectors[at + 1]));
    let (sixth, seventh) =
        (_mm512_test_epi32_mask(word, all(1 << 5)), _mm512_test_epi32_mask(word, all(1 << 6)));
    let low = _mm512_mask_blend_epi32(sixth, pair(0), pair(2));
    let high = _mm512_mask_blend_epi32(sixth, pair(4), pair(6));
    let bits = _mm512_mask_blend_epi32(seventh, low, high);
    let bit = _mm512_srlv_epi32(bits, _mm512_and_si512(hash, all(31)));
    _mm512_mask_test_epi32_mask(common, bit, all(1))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load_bits(bits: &[u64; 8]) -> __m512i {
    // SAFETY: the array is as many bytes as the vector, and this load asks for no alignment.
    unsafe { _mm512_loadu_si512(bits.as_ptr().cast()) }
}
