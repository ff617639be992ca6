//! The AVX2 form, of IPv4 only.
//!
//! ```text
//! frame 0:  type | start | id | hops | source | destination | . | .     one load a frame
//! frame 1:  ...
//!             '-> turned round: type of all eight, start of all eight, ...
//! ```

use std::arch::x86_64::*;

use bm_frame::Frame;
use bm_wire::{ethernet, ipv4};

use super::{Columns, HEAD, LANES, Seen};
use crate::compiled::{LocalFilter, MacKey};

/// Where the load begins: it holds the type and the whole IPv4 header.
const LOAD: usize = HEAD - size_of::<__m256i>();

/// As [`super::common_ipv4`].
#[target_feature(enable = "avx2")]
pub(super) fn common_ipv4(
    frames: &[[Option<Frame>; LANES]],
    mac: MacKey,
    local: &LocalFilter,
    mut to: Columns<'_>,
) -> Option<Seen> {
    let mut seen = Seen { common: 0, suspects: 0 };
    for (at, frames) in frames.iter().enumerate() {
        let (common, suspects) = eight(frames, (mac, local), to.eight(at)?)?;
        seen.common |= u16::from(common) << (at * LANES);
        seen.suspects |= u16::from(suspects) << (at * LANES);
    }
    Some(seen)
}

/// Which of eight frames are of the common sort, and which of those may come from an address of ours.
#[inline]
#[target_feature(enable = "avx2")]
fn eight(
    frames: &[Option<Frame>; LANES],
    (mac, local): (MacKey, &LocalFilter),
    to: Columns<'_, LANES>,
) -> Option<(u8, u8)> {
    let (heads, lengths) = heads(frames)?;
    let [kind, start, id, hops, source, destination] = fields(&heads);
    let length = _mm256_shuffle_epi8(start, each([3, 2, NONE, NONE]));
    let room = _mm256_sub_epi32(lengths, all(ethernet::HEADER_LEN as u32));
    let misfits = _mm256_or_si256(
        _mm256_cmpgt_epi32(all(ipv4::HEADER_LEN as u32), length),
        _mm256_cmpgt_epi32(length, room),
    );
    let mut common = _mm256_andnot_si256(misfits, is_for(&heads, mac));
    for (word, mask, value) in [
        (kind, 0xffff_0000, u32::from(ethernet::ethertype::IPV4.to_be()) << 16),
        (start, 0xff, 0x45),
        (id, 0xff1f_0000, 0),
    ] {
        common = _mm256_and_si256(common, _mm256_cmpeq_epi32(_mm256_and_si256(word, all(mask)), all(value)));
    }
    common = _mm256_and_si256(common, is_whole([start, id, hops, source, destination]));
    common = _mm256_andnot_si256(is_no_host(source), common);
    common = _mm256_andnot_si256(is_no_host(destination), common);

    // Four of each, then the other four; turned round, all of each.
    let both = _mm256_packus_epi32(length, _mm256_and_si256(hops, all(0xff)));
    let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(both);
    *to.lengths = halves(_mm256_castsi256_si128(both));
    *to.hops = halves(_mm256_extracti128_si256::<1>(both));
    store(to.spent.as_flattened_mut(), spent(hops));
    let swap = each([3, 2, 1, 0]);
    let source = _mm256_shuffle_epi8(source, swap);
    *to.sources = lanes(source);
    *to.destinations = lanes(_mm256_shuffle_epi8(destination, swap));
    let suspects = _mm256_and_si256(common, may_be_ours(source, local));
    Some((bits(common), bits(suspects)))
}

/// The first bytes of each frame, and how long each is.
#[inline]
#[target_feature(enable = "avx2")]
fn heads(frames: &[Option<Frame>; LANES]) -> Option<([&[u8; HEAD]; LANES], __m256i)> {
    let mut heads = [&[0; HEAD]; LANES];
    let mut lengths = [0; LANES];
    for ((head, length), frame) in heads.iter_mut().zip(&mut lengths).zip(frames) {
        let data = frame.as_ref()?.data();
        (*head, *length) = (data.first_chunk()?, data.len() as i32);
    }
    let [a, b, c, d, e, f, g, h] = lengths;
    Some((heads, _mm256_setr_epi32(a, b, c, d, e, f, g, h)))
}

/// The words of hops and checksum, one hop spent and the checksum mended (RFC 1624).
#[inline]
#[target_feature(enable = "avx2")]
fn spent(words: __m256i) -> __m256i {
    // The sum's bytes are swapped here, and so is what is added: a one's-complement sum does not mind.
    let risen = _mm256_add_epi32(_mm256_srli_epi32::<16>(words), all(1));
    let risen = _mm256_sub_epi32(risen, _mm256_cmpgt_epi32(risen, all(0xfffe)));
    // Byte by byte: no hops at all must not borrow from the protocol beside them.
    let hops = _mm256_sub_epi8(_mm256_and_si256(words, all(0xffff)), all(1));
    _mm256_or_si256(_mm256_slli_epi32::<16>(risen), hops)
}

/// Lanes whose address, in host order, has its bit set among those of our own.
#[inline]
#[target_feature(enable = "avx2")]
fn may_be_ours(address: __m256i, local: &LocalFilter) -> __m256i {
    let hash = _mm256_srli_epi32::<{ 32 - LocalFilter::HASH_BITS as i32 }>(_mm256_mullo_epi32(
        address,
        all(LocalFilter::FACTOR),
    ));
    // SAFETY: a hash above its low five bits is the index of a word, four bytes long, of the filter's bits; it
    // is in bounds since the hash has as many values as there are bits.
    let words =
        unsafe { _mm256_i32gather_epi32::<4>(local.bits().as_ptr().cast(), _mm256_srli_epi32::<5>(hash)) };
    let bit = _mm256_srlv_epi32(words, _mm256_and_si256(hash, all(31)));
    _mm256_cmpeq_epi32(_mm256_and_si256(bit, all(1)), all(1))
}

/// A bit for each lane that is all ones.
#[inline]
#[target_feature(enable = "avx2")]
fn bits(lanes: __m256i) -> u8 {
    _mm256_movemask_ps(_mm256_castsi256_ps(lanes)) as u8
}

#[inline]
#[target_feature(enable = "avx2")]
fn all(value: u32) -> __m256i {
    _mm256_set1_epi32(value as i32)
}

/// In a choice of bytes: none, a zero.
const NONE: u8 = 0x80;

/// The same choice of four bytes for every word.
#[inline]
#[target_feature(enable = "avx2")]
fn each([a, b, c, d]: [u8; 4]) -> __m256i {
    let first = _mm256_set1_epi32(i32::from_le_bytes([a, b, c, d]));
    // Each word counts its bytes from its own first; a byte that is none stays none.
    let words =
        _mm256_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c, 0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c);
    _mm256_or_si256(first, words)
}

#[inline]
#[target_feature(enable = "avx2")]
fn lanes(vector: __m256i) -> [u32; LANES] {
    let mut lanes = [0; LANES];
    // SAFETY: a vector is as many bytes as its lanes, and this store asks for no alignment.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), vector) };
    lanes
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(to: &mut [u8], vector: __m256i) {
    assert!(to.len() == size_of::<__m256i>(), "eight words of four bytes");
    // SAFETY: there are as many bytes as the vector has, and this store asks for no alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), vector) };
}

#[inline]
#[target_feature(enable = "avx2")]
fn halves(vector: __m128i) -> [u16; LANES] {
    let mut halves = [0; LANES];
    // SAFETY: a vector is as many bytes as its halves of words, and this store asks for no alignment.
    unsafe { _mm_storeu_si128(halves.as_mut_ptr().cast(), vector) };
    halves
}

/// The words of all frames from [`LOAD`] on, one vector for each place: an 8 by 8 turn without the last two rows.
#[inline]
#[target_feature(enable = "avx2")]
fn fields(heads: &[&[u8; HEAD]; LANES]) -> [__m256i; 6] {
    let mut rows = [_mm256_setzero_si256(); LANES];
    for (row, head) in rows.iter_mut().zip(heads) {
        // SAFETY: the load ends where the array does, and asks for no alignment.
        *row = unsafe { _mm256_loadu_si256(head.as_ptr().add(LOAD).cast()) };
    }
    // Of four frames each: words 0 and 4, 1 and 5, 2 and 6, 3 and 7.
    let [near0, near1, near2, near3] = fours([rows[0], rows[1], rows[2], rows[3]]);
    let [far0, far1, far2, far3] = fours([rows[4], rows[5], rows[6], rows[7]]);
    [
        _mm256_permute2x128_si256::<0x20>(near0, far0),
        _mm256_permute2x128_si256::<0x20>(near1, far1),
        _mm256_permute2x128_si256::<0x20>(near2, far2),
        _mm256_permute2x128_si256::<0x20>(near3, far3),
        _mm256_permute2x128_si256::<0x31>(near0, far0),
        _mm256_permute2x128_si256::<0x31>(near1, far1),
    ]
}

/// Four rows turned round within each half.
#[inline]
#[target_feature(enable = "avx2")]
fn fours([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab, ab2) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (cd, cd2) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab2, cd2),
        _mm256_unpackhi_epi64(ab2, cd2),
    ]
}

/// Lanes whose frame begins with that MAC address.
#[inline]
#[target_feature(enable = "avx2")]
fn is_for(heads: &[&[u8; HEAD]; LANES], mac: MacKey) -> __m256i {
    let [a, b, c, d, e, f, g, h] = *heads;
    // Half of each answer, 64 bits a frame, is the answer in 32: of frames 0, 1, 4, 5 and then 2, 3, 6, 7.
    let halves = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(
        _mm256_castsi256_ps(four_are_for([a, b, c, d], mac)),
        _mm256_castsi256_ps(four_are_for([e, f, g, h], mac)),
    ));
    _mm256_permute4x64_epi64::<0b11_01_10_00>(halves)
}

#[inline]
#[target_feature(enable = "avx2")]
fn four_are_for([a, b, c, d]: [&[u8; HEAD]; 4], mac: MacKey) -> __m256i {
    let starts = _mm256_setr_epi64x(start(a), start(b), start(c), start(d));
    _mm256_cmpeq_epi64(_mm256_slli_epi64::<16>(starts), _mm256_set1_epi64x(mac as i64))
}

#[inline(always)]
fn start(head: &[u8; HEAD]) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = *head;
    i64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// Lanes whose header sums up to all ones (RFC 1071).
#[inline]
#[target_feature(enable = "avx2")]
fn is_whole(words: [__m256i; 5]) -> __m256i {
    let mut sum = all(0);
    for word in words {
        sum = _mm256_add_epi32(sum, folded(word));
    }
    _mm256_cmpeq_epi32(folded(folded(sum)), all(0xffff))
}

/// The sum of both halves of each word.
#[inline]
#[target_feature(enable = "avx2")]
fn folded(words: __m256i) -> __m256i {
    _mm256_add_epi32(_mm256_and_si256(words, all(0xffff)), _mm256_srli_epi32::<16>(words))
}

/// Lanes whose address, in network order, cannot be one host's ([`ipv4::is_single_host`]).
#[inline]
#[target_feature(enable = "avx2")]
fn is_no_host(address: __m256i) -> __m256i {
    let first = _mm256_and_si256(address, all(0xff));
    let loopback = _mm256_cmpeq_epi32(first, all(127));
    let none = _mm256_or_si256(_mm256_cmpeq_epi32(first, all(0)), _mm256_cmpgt_epi32(first, all(223)));
    _mm256_or_si256(loopback, none)
}
