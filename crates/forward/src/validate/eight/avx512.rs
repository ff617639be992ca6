//! The AVX-512 form: sixteen frames.
//!
//! ```text
//! frame 0:  mac | . | type | start | id | hops | source | destination     one load a frame, from byte 2 on
//! frame 1:  ...
//!                 '-> turned round: mac of all sixteen, type of all sixteen, ...
//! ```

use std::arch::x86_64::*;

use bm_frame::Frame;
use bm_wire::{ethernet, ipv4};

use super::{Columns, Seen};
use crate::compiled::{LocalFilter, MacKey};

/// Frames at once.
const LANES: usize = 16;
/// Where the load begins: it ends with the IPv4 header. The two bytes in front are asked for by themselves.
const LOAD: usize = HEAD - size_of::<__m256i>();
/// Bytes that are read of each frame: both headers.
const HEAD: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;

/// Of the word that the identification begins: the bits that a fragment has.
const FRAGMENT: u32 = u32::from_le_bytes([0, 0, 0x1f, 0xff]);

/// As [`super::common_ipv4`], of sixteen. `None` also where a frame is for a MAC that begins otherwise.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn common_ipv4(
    frames: &[Option<Frame>; LANES],
    mac: MacKey,
    local: &LocalFilter,
    to: &mut Columns<'_>,
) -> Option<Seen> {
    // A key begins with two bytes of zero; one that does not is no address.
    let [0, 0, first, second, rest @ ..] = mac.to_le_bytes() else { return None };
    let (heads, lengths) = heads(frames, [first, second])?;
    let [to_mac, kind, start, id, hops, source, destination] = fields(&heads);
    let length = _mm512_shuffle_epi8(start, each(0x8080_0203));
    let room = _mm512_sub_epi32(_mm512_cvtepu16_epi32(lengths), all(ethernet::HEADER_LEN as u32));
    // What differs from how it should be, in the bits that matter.
    let kind = _mm512_xor_si512(kind, all(u32::from(ethernet::ethertype::IPV4.to_be()) << 16));
    let begin = _mm512_and_si512(_mm512_xor_si512(start, all(0x45)), all(0xff));
    let differs = [
        _mm512_xor_si512(to_mac, all(u32::from_le_bytes(rest))),
        _mm512_or_si512(begin, _mm512_and_si512(kind, all(0xffff_0000))),
        _mm512_and_si512(id, all(FRAGMENT)),
        _mm512_xor_si512(sum([start, id, hops, source, destination]), all(0xffff)),
    ];
    let [a, b, c, d] = differs;
    let differs = _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d));
    // In pairs: one after the other they would wait for each other.
    let fits =
        _mm512_cmple_epu32_mask(length, room) & _mm512_cmpge_epu32_mask(length, all(ipv4::HEADER_LEN as u32));
    let alike = _mm512_testn_epi32_mask(differs, differs);
    let common = (fits & alike) & (may_be_hosts(source) & may_be_hosts(destination));

    store(to.lengths, _mm512_cvtepi32_epi16(length));
    store(to.hops, _mm512_cvtepi32_epi16(_mm512_and_si512(hops, all(0xff))));
    let swap = each(0x0001_0203);
    let source = _mm512_shuffle_epi8(source, swap);
    store_words(to.spent, spent(hops));
    store_words(to.sources, source);
    store_words(to.destinations, _mm512_shuffle_epi8(destination, swap));
    Some(Seen { common, suspects: may_be_ours(common, source, local) })
}

/// The first bytes of each frame, and how long each is; nothing where one is missing, short, or begins otherwise.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn heads(frames: &[Option<Frame>; LANES], begin: [u8; 2]) -> Option<([&[u8; HEAD]; LANES], __m256i)> {
    let mut heads = [&[0; HEAD]; LANES];
    let mut lengths = [0; LANES];
    for ((head, length), frame) in heads.iter_mut().zip(&mut lengths).zip(frames) {
        let data = frame.as_ref()?.data();
        (*head, *length) = (data.first_chunk()?, data.len() as i16);
        // One branch a frame, always the same way: sixteen answers in a vector would take longer to put there.
        if head[..2] != begin {
            return None;
        }
    }
    let [a, b, c, d, e, f, g, h, rest @ ..] = lengths;
    let near = _mm_setr_epi16(a, b, c, d, e, f, g, h);
    let [a, b, c, d, e, f, g, h] = rest;
    Some((heads, _mm256_set_m128i(_mm_setr_epi16(a, b, c, d, e, f, g, h), near)))
}

/// The words of all frames from [`LOAD`] on but for the second, one vector for each place.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fields(heads: &[&[u8; HEAD]; LANES]) -> [__m512i; 7] {
    // Two frames a row, four apart: so the words of all come out in order.
    let row = |first: usize| {
        // SAFETY: both loads end where the arrays do, and ask for no alignment.
        let [near, far] =
            [first, first + 4].map(|at| unsafe { _mm256_loadu_si256(heads[at].as_ptr().add(LOAD).cast()) });
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(near), far)
    };
    // Of four frames each: words 0 and 4, 1 and 5, 2 and 6, 3 and 7; then those of the next four.
    let [near0, near1, near2, near3] = fours([row(0), row(1), row(2), row(3)]);
    let [far0, far1, far2, far3] = fours([row(8), row(9), row(10), row(11)]);
    [
        _mm512_shuffle_i64x2::<0b10_00_10_00>(near0, far0),
        _mm512_shuffle_i64x2::<0b10_00_10_00>(near2, far2),
        _mm512_shuffle_i64x2::<0b10_00_10_00>(near3, far3),
        _mm512_shuffle_i64x2::<0b11_01_11_01>(near0, far0),
        _mm512_shuffle_i64x2::<0b11_01_11_01>(near1, far1),
        _mm512_shuffle_i64x2::<0b11_01_11_01>(near2, far2),
        _mm512_shuffle_i64x2::<0b11_01_11_01>(near3, far3),
    ]
}

/// Four rows turned round within each quarter.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fours([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, ab2) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (cd, cd2) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab2, cd2),
        _mm512_unpackhi_epi64(ab2, cd2),
    ]
}

/// The sum of each header's halves of words, folded (RFC 1071).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn sum([a, b, c, d, e]: [__m512i; 5]) -> __m512i {
    let halves = |word| _mm512_add_epi32(_mm512_and_si512(word, all(0xffff)), _mm512_srli_epi32::<16>(word));
    let sum =
        _mm512_add_epi32(_mm512_add_epi32(halves(a), halves(b)), _mm512_add_epi32(halves(c), halves(d)));
    halves(halves(_mm512_add_epi32(sum, halves(e))))
}

/// Lanes whose address, in network order, may be one host's ([`ipv4::is_single_host`]).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn may_be_hosts(address: __m512i) -> __mmask16 {
    let first = _mm512_and_si512(address, all(0xff));
    // 0 wraps to the greatest.
    let is_routed = _mm512_cmplt_epu32_mask(_mm512_sub_epi32(first, all(1)), all(223));
    is_routed & _mm512_cmpneq_epi32_mask(first, all(127))
}

/// The words of hops and checksum, one hop spent and the checksum mended (RFC 1624).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn spent(words: __m512i) -> __m512i {
    // The sum's bytes are swapped here, and so is what is added: a one's-complement sum does not mind.
    let risen = _mm512_add_epi32(_mm512_srli_epi32::<16>(words), all(1));
    let wraps = _mm512_cmpgt_epu32_mask(risen, all(0xfffe));
    let risen = _mm512_mask_add_epi32(risen, wraps, risen, all(1));
    // Byte by byte: no hops at all must not borrow from the protocol beside them.
    let hops = _mm512_sub_epi8(_mm512_and_si512(words, all(0xffff)), all(1));
    _mm512_or_si512(_mm512_slli_epi32::<16>(risen), hops)
}

/// Those of `common` whose source, in host order, has its bit set among those of our own. All bits are in eight
/// vectors, and picked from there: a gather would take longer than all the rest.
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
fn all(value: u32) -> __m512i {
    _mm512_set1_epi32(value as i32)
}

/// The same choice of four bytes for every word: each digit of two is a byte of the word, or 0x80 for a zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn each(choice: u32) -> __m512i {
    // A quarter counts its bytes from its own first, and the words of it begin four bytes apart.
    let words = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c));
    _mm512_or_si512(all(choice), words)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load_bits(bits: &[u64; 8]) -> __m512i {
    // SAFETY: the array is as many bytes as the vector, and this load asks for no alignment.
    unsafe { _mm512_loadu_si512(bits.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store(to: &mut [u16; LANES], vector: __m256i) {
    // SAFETY: the array is as many bytes as the vector, and this store asks for no alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), vector) };
}

/// To words, or to words as four bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store_words<T: Word>(to: &mut [T; LANES], vector: __m512i) {
    const { assert!(size_of::<[T; LANES]>() == size_of::<__m512i>()) };
    // SAFETY: the array is as many bytes as the vector by the assertion, any bytes are a `Word`, and this store asks
    // for no alignment.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), vector) };
}

/// Four bytes, whatever they are.
trait Word {}
impl Word for u32 {}
impl Word for [u8; 4] {}
