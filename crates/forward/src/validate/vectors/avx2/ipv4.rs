//! IPv4.
//!
//! ```text
//! frame 0:  type | start | id | TTL | source | destination | . | .     one load a frame
//! frame 1:  ...
//!             '-> turned round: type of all eight, start of all eight, ...
//! ```

use std::arch::x86_64::*;

use bm_frame::Frame;
use bm_wire::{ethernet, ipv4};

use super::super::{Columns, ColumnsIpv4, HEAD, Seen};
use super::{LANES, NONE, all, bits, each, fields, halves, heads, may_be_local, store};
use crate::compiled::{LocalFilter, MacKey};

/// Where the load starts: it contains the type and the whole IPv4 header.
const LOAD: usize = HEAD - size_of::<__m256i>();

/// As [`common_ipv4`](super::super::common_ipv4).
#[target_feature(enable = "avx2")]
pub(in super::super) fn common_ipv4(
    frames: &[[Option<Frame>; LANES]],
    mac: MacKey,
    local: &LocalFilter,
    (sources, mut to): ColumnsIpv4<'_>,
) -> Option<Seen> {
    let mut seen = Seen { common: 0, suspects: 0 };
    for (at, frames) in frames.iter().enumerate() {
        let (common, suspects) =
            eight(frames, (mac, local), (sources.as_chunks_mut().0.get_mut(at)?, to.eight(at)?))?;
        seen.common |= u16::from(common) << (at * LANES);
        seen.suspects |= u16::from(suspects) << (at * LANES);
    }
    Some(seen)
}

/// Which of eight frames are common, and which of those may come from an address of this machine.
#[inline]
#[target_feature(enable = "avx2")]
fn eight(
    frames: &[Option<Frame>; LANES],
    (mac, local): (MacKey, &LocalFilter),
    (sources, to): (&mut [u32; LANES], Columns<'_, u32, LANES>),
) -> Option<(u8, u8)> {
    let (heads, lengths) = heads::<HEAD>(frames)?;
    let [kind, start, id, ttl, source, destination] = fields::<LOAD, HEAD>(&heads);
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
        (id, 0xff3f_0000, 0),
    ] {
        common = _mm256_and_si256(common, _mm256_cmpeq_epi32(_mm256_and_si256(word, all(mask)), all(value)));
    }
    common = _mm256_and_si256(common, is_whole([start, id, ttl, source, destination]));
    common = _mm256_andnot_si256(is_no_host(source), common);
    common = _mm256_andnot_si256(is_no_host(destination), common);

    // Four of each, then the other four; transposed, all of each.
    let both = _mm256_packus_epi32(length, _mm256_and_si256(ttl, all(0xff)));
    let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(both);
    *to.lengths = halves(_mm256_castsi256_si128(both));
    *to.ttl = halves(_mm256_extracti128_si256::<1>(both));
    store(to.spent, spent(ttl));
    let swap = each([3, 2, 1, 0]);
    let source = _mm256_shuffle_epi8(source, swap);
    *sources = lanes(source);
    *to.destinations = lanes(_mm256_shuffle_epi8(destination, swap));
    let suspects = _mm256_and_si256(common, may_be_ours(source, local));
    Some((bits(common), bits(suspects)))
}

/// The words with TTL and checksum, with the TTL decremented and the checksum updated (RFC 1624).
#[inline]
#[target_feature(enable = "avx2")]
fn spent(words: __m256i) -> __m256i {
    // The sum's bytes are swapped here, and so is what is added: a one's-complement sum allows that.
    let risen = _mm256_add_epi32(_mm256_srli_epi32::<16>(words), all(1));
    let risen = _mm256_sub_epi32(risen, _mm256_cmpgt_epi32(risen, all(0xfffe)));
    // Byte by byte: a TTL of 0 must not borrow from the protocol next to it.
    let ttl = _mm256_sub_epi8(_mm256_and_si256(words, all(0xffff)), all(1));
    _mm256_or_si256(_mm256_slli_epi32::<16>(risen), ttl)
}

/// Lanes whose address, in host order, may be an address of this machine.
#[inline]
#[target_feature(enable = "avx2")]
fn may_be_ours(address: __m256i, local: &LocalFilter) -> __m256i {
    _mm256_cmpeq_epi32(may_be_local(address, local), all(1))
}

#[inline]
#[target_feature(enable = "avx2")]
fn lanes(vector: __m256i) -> [u32; LANES] {
    let mut lanes = [0; LANES];
    store(&mut lanes, vector);
    lanes
}

/// Lanes whose frame begins with that MAC address.
#[inline]
#[target_feature(enable = "avx2")]
fn is_for(heads: &[&[u8; HEAD]; LANES], mac: MacKey) -> __m256i {
    let [a, b, c, d, e, f, g, h] = *heads;
    // Half of each result, 64 bits per frame, is the result in 32: of frames 0, 1, 4, 5 and then 2, 3, 6, 7.
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

/// Lanes whose address, in network order, cannot belong to one host ([`ipv4::is_single_host`]).
#[inline]
#[target_feature(enable = "avx2")]
fn is_no_host(address: __m256i) -> __m256i {
    let first = _mm256_and_si256(address, all(0xff));
    let loopback = _mm256_cmpeq_epi32(first, all(127));
    let none = _mm256_or_si256(_mm256_cmpeq_epi32(first, all(0)), _mm256_cmpgt_epi32(first, all(223)));
    _mm256_or_si256(loopback, none)
}
