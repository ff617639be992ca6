//! The Internet checksum (RFC 1071) and its shortcuts (RFC 1624).
//!
//! A *sum* here is the folded one's-complement sum, not complemented yet, which can be added to further sums. A
//! *checksum* is its complement, as in a header. Neither ever reads past the slice that it is given.

use std::ops::Range;

/// Where an IPv4 header has its checksum.
pub(crate) const IPV4_FIELD: Range<usize> = 10..12;

/// Folds carries until 16 bits are left. Zero only for zero.
#[inline]
pub fn fold(sum: u32) -> u16 {
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + sum) as u16
}

/// Folds carries of a sum of 64 bits until 16 bits are left. Zero only for zero.
#[inline]
fn fold64(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    fold(((sum >> 32) + sum) as u32)
}

/// Adds two sums.
#[inline]
pub fn add(a: u16, b: u16) -> u16 {
    fold(u32::from(a) + u32::from(b))
}

/// The sum over `bytes`, as if an odd last one were followed by zero.
#[inline]
pub fn sum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<8>();
    // Halves are added in the machine's own byte order and without carries, so the loop becomes vector code; swapping
    // the bytes of a folded sum gives the same as swapping those of each word (RFC 1071 2 B).
    let mut total: u64 = words.iter().map(|word| add_halves(*word)).sum();
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        total += add_halves(last);
    }
    u16::from_be(fold64(total))
}

#[inline(always)]
fn add_halves(word: [u8; 8]) -> u64 {
    let word = u64::from_ne_bytes(word);
    (word >> 32) + (word & 0xffff_ffff)
}

/// The checksum over `bytes`: zero if they already contain a correct one.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    !sum(bytes)
}

/// Whether 20 bytes that are not all zero sum up to minus zero, as an IPv4 header with a right checksum does.
#[inline]
pub fn is_whole20(header: &[u8; 20]) -> bool {
    let word = |at: usize| u64::from_ne_bytes(*header[at..].first_chunk().expect("in 20 bytes"));
    let last = u32::from_ne_bytes(*header.last_chunk().expect("in 20 bytes"));
    // Carries are added explicitly: when adding halves, LLVM generates vector code, which took ten times as long.
    let (total, carry) = word(0).overflowing_add(word(8));
    let (total, more) = total.overflowing_add(u64::from(last) + u64::from(carry));
    let total = (total >> 32) + (total & 0xffff_ffff) + u64::from(more);
    // A one's-complement sum is the remainder modulo 0xffff, with 0xffff for zero. Comparing the remainder with zero
    // is one multiplication, where folding is a chain of eight steps; byte order does not matter for it.
    total.is_multiple_of(0xffff)
}

/// The correct checksum of an IPv4 header, whatever its checksum field contains.
///
/// `header` is the whole header with options, at least 20 bytes.
pub fn ipv4_header(header: &[u8]) -> u16 {
    !add(sum(&header[..IPV4_FIELD.start]), sum(&header[IPV4_FIELD.end..]))
}

/// The addresses that TCP, UDP and ICMPv6 include in their checksum in addition to their own bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pseudo {
    /// RFC 768 and RFC 9293.
    V4 {
        /// Source address.
        source: u32,
        /// Destination address; with a source route, the final one.
        destination: u32,
    },
    /// RFC 8200 8.1.
    V6 {
        /// Source address.
        source: u128,
        /// Destination address; with a routing header, the final one.
        destination: u128,
    },
}

impl Pseudo {
    /// The sum of the pseudo-header for `length` bytes of `protocol`.
    #[inline]
    pub fn sum(&self, protocol: u8, length: usize) -> u16 {
        let addresses = match *self {
            Self::V4 { source, destination } => add(sum32(source), sum32(destination)),
            Self::V6 { source, destination } => add(sum128(source), sum128(destination)),
        };
        // A length above 16 bits (jumbograms) is two words in IPv6, and impossible in IPv4.
        add(addresses, add(sum32(length as u32), u16::from(protocol)))
    }

    /// The checksum of `segment`, including its checksum field: zero if that is correct.
    pub fn checksum(&self, protocol: u8, segment: &[u8]) -> u16 {
        !add(self.sum(protocol, segment.len()), sum(segment))
    }
}

fn sum32(number: u32) -> u16 {
    fold(number)
}

fn sum128(number: u128) -> u16 {
    add(fold64((number >> 64) as u64), fold64(number as u64))
}

/// What UDP sends for a computed checksum: zero would mean "none" (RFC 768), and minus zero is the same sum.
#[inline]
pub fn udp_field(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

/// The checksum after one 16-bit word that it covers has changed from `old` to `new` (RFC 1624, equation 3).
#[inline]
pub(crate) fn update16(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(u32::from(!checksum) + u32::from(!old) + u32::from(new))
}

/// The checksum after one 32-bit word that it covers has changed from `old` to `new`, as when an address is
/// rewritten.
#[inline]
pub fn update32(checksum: u16, old: u32, new: u32) -> u16 {
    update16(checksum, sum32(old), sum32(new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::put16;

    /// RFC 1071 2: the example, whose sum is ddf2.
    const EXAMPLE: [u8; 8] = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    /// The definition, word by word.
    fn slow(bytes: &[u8]) -> u16 {
        let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        bytes.chunks(2).fold(0, |total, pair| u32::from(fold(total + word(pair)))) as u16
    }

    #[test]
    fn matches_the_rfcs_example() {
        assert_eq!(sum(&EXAMPLE), 0xddf2);
        assert_eq!(checksum(&EXAMPLE), !0xddf2);
        assert_eq!((sum(&[]), sum(&[0x12]), sum(&[0; 40])), (0, 0x1200, 0));
        assert_eq!(sum(&[0xff; 65_535]), slow(&[0xff; 65_535]));
        assert_eq!(
            (sum128(u128::MAX), sum128(1 << 64 | 1), fold64(u64::MAX), fold64(0)),
            (0xffff, 2, 0xffff, 0)
        );
    }

    #[test]
    fn fast_sum_agrees_with_the_definition_at_every_length() {
        let bytes: Vec<u8> = (0..200u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for from in 0..9 {
            for to in from..bytes.len() {
                assert_eq!(sum(&bytes[from..to]), slow(&bytes[from..to]), "{from}..{to}");
            }
        }
    }

    #[test]
    fn header_check_agrees_with_the_sum_over_all_values() {
        let mut header = [0x45, 0, 0, 30, 0, 1, 0x40, 0, 64, 17, 0x26, 0xcc, 10, 0, 0, 1, 10, 0, 0, 2];
        for at in [0, 4, 10, 18] {
            for word in 1..=u16::MAX {
                put16(&mut header[at..], word);
                assert_eq!(is_whole20(&header), slow(&header) == 0xffff, "{word:#x} at {at}");
            }
        }
        // Carries out of the top: all ones is minus zero.
        assert!(is_whole20(&[0xff; 20]));
    }

    #[test]
    fn update_agrees_with_the_full_sum_over_all_values() {
        // Each value as the old one, against a few new ones, and the other way round.
        for value in 0..=u16::MAX {
            for other in [0, 1, 0x00ff, 0x7fff, 0x8000, 0xfffe, 0xffff, !value] {
                for (old, new) in [(value, other), (other, value)] {
                    let full = |word: u16| !add(0x4501, word);
                    assert_eq!(update16(full(old), old, new), full(new), "{old:#x} to {new:#x}");
                }
            }
        }
        assert_eq!(update32(!add(7, sum32(0x0a00_0001)), 0x0a00_0001, 0xffff_0000), !add(7, 0xffff));
    }
}
