//! IPv4.
//!
//! ```text
//! frame a:  .. MAC | source | type | start | id | TTL | source | destination       two loads of 16 bytes, from byte 2
//! frame b:  ..
//!             '-> transposed: start of all eight, id of all eight, ...
//! each condition is 0 in the lanes that meet it; all are ORed and compared once
//! ```
//!
//! The loads leave out the first two bytes of the MAC address, which are compared frame by frame: they differ so rarely
//! that this branch costs nothing.

use std::arch::x86_64::*;

use bm_wire::{ethernet, ipv4};

use super::super::chunk::{CheckResult, Chunk};
use super::super::lanes::Lanes;
use super::super::{Criteria, FastFamily, LANES};
use super::vector::{all, columns, each, load_128, may_be_local, store};
use super::{bits, greatest, store_lengths};
use crate::compiled::MacKey;

/// Bytes of both headers.
const HEAD: usize = <u32 as FastFamily>::HEAD;

/// Where the loads begin: the second one ends with the IPv4 header.
const LOAD: usize = HEAD - 2 * size_of::<__m128i>();

/// As [`FastFamily::check`](super::super::FastFamily::check).
///
/// # Safety
/// The heads of these groups refer to [`HEAD`] bytes each, which nobody changes meanwhile.
#[target_feature(enable = "avx2")]
pub(in super::super) unsafe fn ipv4(
    chunk: &mut Chunk<u32>,
    groups: usize,
    criteria: Criteria<'_>,
) -> CheckResult {
    let Criteria { mac, local, .. } = criteria;
    let Chunk { lanes: Lanes { heads, frame_lengths, .. }, lengths, destinations, ttl_words, .. } = chunk;
    let (mut plain, mut padded, mut longest) = (0, _mm256_setzero_si256(), _mm256_setzero_si256());
    let columns = heads.0.as_chunks::<LANES>().0.iter().zip(frame_lengths.as_chunks::<LANES>().0);
    let to = lengths.as_chunks_mut::<LANES>().0.iter_mut().zip(destinations.as_chunks_mut::<LANES>().0);
    let to = to.zip(ttl_words.as_chunks_mut::<LANES>().0);
    for (group, ((heads, frame_lengths), ((lengths, destinations), ttl_words))) in
        columns.zip(to).enumerate().take(groups)
    {
        // SAFETY: the caller's promise.
        let (others, words) = unsafe { (not_for(heads, mac), Words::of(heads)) };
        let length = _mm256_shuffle_epi8(words.start, each(LENGTH));
        let room = _mm256_cvtepu16_epi32(load_128(frame_lengths));
        // Bytes beyond the headers: of the packet and of the frame. A frame has them all, a packet shorter than its
        // header seems to have very many.
        let payload = _mm256_sub_epi16(length, all(ipv4::HEADER_LEN as u32));
        let room = _mm256_sub_epi16(room, all(HEAD as u32));
        padded = _mm256_or_si256(padded, _mm256_subs_epu16(room, payload));
        let too_long = _mm256_subs_epu16(payload, room);
        let faults = _mm256_or_si256(_mm256_or_si256(too_long, words.unlike((mac >> 32) as u32)), {
            let numbers = _mm256_or_si256(words.sum(), words.no_hosts());
            _mm256_or_si256(numbers, may_be_local(_mm256_shuffle_epi8(words.source, each(REVERSED)), local))
        });
        plain |= (bits(_mm256_cmpeq_epi32(faults, all(0))) & !others) << (group * LANES);

        longest = _mm256_max_epu32(longest, length);
        store_lengths(lengths, length);
        store(destinations, _mm256_shuffle_epi8(words.destination, each(REVERSED)));
        store(ttl_words, words.ttl_after());
    }
    CheckResult { plain, longest: greatest(longest), padded: _mm256_testz_si256(padded, padded) == 0 }
}

/// The lanes whose frame does not begin as the MAC address does.
///
/// # Safety
/// Two bytes of each are read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn not_for(heads: &[*mut u8; LANES], mac: MacKey) -> u32 {
    let mut others = 0;
    for (lane, head) in heads.iter().enumerate() {
        // SAFETY: the caller's promise; the read needs no alignment.
        if unsafe { head.cast::<u16>().read_unaligned() } != (mac >> 16) as u16 {
            others |= other(lane);
        }
    }
    others
}

#[cold]
#[inline(never)]
fn other(lane: usize) -> u32 {
    1 << lane
}

/// In a choice of bytes: none, a zero.
const NONE: u8 = 0x80;
/// The third and fourth byte of a word as a number.
const LENGTH: [u8; 4] = [3, 2, NONE, NONE];
const REVERSED: [u8; 4] = [3, 2, 1, 0];

/// Words of eight frames, in the order of their bytes.
struct Words {
    /// The last four bytes of the destination MAC.
    mac: __m256i,
    /// Two bytes of the source MAC, and the type.
    kind: __m256i,
    start: __m256i,
    id: __m256i,
    ttl: __m256i,
    source: __m256i,
    destination: __m256i,
}

impl Words {
    /// # Safety
    /// [`HEAD`] bytes of each are read.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn of(heads: &[*mut u8; LANES]) -> Self {
        // SAFETY: both loads end with the head at the latest.
        let ([mac, _, kind, start], [id, ttl, source, destination]) =
            unsafe { (columns(heads, LOAD), columns(heads, LOAD + size_of::<__m128i>())) };
        Self { mac, kind, start, id, ttl, source, destination }
    }

    /// 0 where the destination ends with these bytes of a MAC address, and the packet is IPv4 without options, not a
    /// fragment, and has a TTL above 1.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn unlike(&self, mac: u32) -> __m256i {
        let for_others = _mm256_xor_si256(self.mac, all(mac));
        let kind = _mm256_blend_epi16::<0b1010_1010>(self.start, self.kind);
        let expected = u32::from(ethernet::ethertype::IPV4.to_be()) << 16 | 0x45;
        let kind = _mm256_and_si256(_mm256_xor_si256(kind, all(expected)), all(0xffff_00ff));
        let fragment = _mm256_and_si256(self.id, all(0xff3f_0000));
        let no_hop = _mm256_subs_epu8(all(2), self.ttl);
        _mm256_or_si256(_mm256_or_si256(for_others, kind), _mm256_or_si256(fragment, no_hop))
    }

    /// 0 where the header sums up to all ones (RFC 1071).
    ///
    /// The sum S of ten 16-bit words is all ones, folded, if it is k times 65,535 with k at least 1: if the low half
    /// of S + (S >> 16) + 1 is 0. Pairs are added as signed numbers, each word less 32,768.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn sum(&self) -> __m256i {
        let mut sum = _mm256_setzero_si256();
        for word in [self.start, self.id, self.ttl, self.source, self.destination] {
            let pair = _mm256_madd_epi16(_mm256_xor_si256(word, all(0x8000_8000)), _mm256_set1_epi16(1));
            sum = _mm256_add_epi32(sum, pair);
        }
        // Five pairs lack 65,536 each: five carries.
        let sum = _mm256_add_epi32(_mm256_add_epi32(sum, _mm256_srai_epi32::<16>(sum)), all(5 + 1));
        _mm256_slli_epi32::<16>(sum)
    }

    /// 0 where both addresses may belong to one host ([`ipv4::is_single_host`]): neither 0/8 nor 127/8, and below
    /// 224/4.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn no_hosts(&self) -> __m256i {
        let both = _mm256_blend_epi16::<0b1010_1010>(self.source, _mm256_slli_epi32::<16>(self.destination));
        let first = _mm256_and_si256(both, _mm256_set1_epi16(0xff));
        // A 0 becomes the greatest number.
        let outside =
            _mm256_subs_epu16(_mm256_sub_epi16(first, _mm256_set1_epi16(1)), _mm256_set1_epi16(222));
        _mm256_or_si256(outside, _mm256_cmpeq_epi16(first, _mm256_set1_epi16(127)))
    }

    /// The words with TTL and checksum, with the TTL decremented and the checksum updated (RFC 1624): its bytes are
    /// swapped here, and so is what is added, which a one's-complement sum allows.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn ttl_after(&self) -> __m256i {
        // The low half is always all ones, so it loses 2 and gains 1; the high half gains 1, or 2 if it wraps.
        let wraps = _mm256_cmpeq_epi16(_mm256_or_si256(self.ttl, all(0x0001_ffff)), all(u32::MAX));
        let risen = _mm256_add_epi16(self.ttl, all(0x0001_fffe));
        _mm256_sub_epi16(risen, wraps)
    }
}
