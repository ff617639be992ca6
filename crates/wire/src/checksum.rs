//! The Internet checksum (RFC 1071), its shortcuts (RFC 1624), and the sums that offloads leave half done.
//!
//! A *sum* here is the folded one's-complement sum, not complemented yet, which can be added to further sums. A
//! *checksum* is its complement, as in a header. Neither ever reads past the slice that it is given.

use crate::bytes::{be16, put16};
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::protocol;
use std::ops::Range;

/// Folds carries until 16 bits are left. Zero only for zero.
#[inline]
pub fn fold(sum: u32) -> u16 {
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + sum) as u16
}

/// The same for 64 bits.
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
    let halves = |word: [u8; 8]| {
        let word = u64::from_ne_bytes(word);
        (word >> 32) + (word & 0xffff_ffff)
    };
    let mut total: u64 = words.iter().map(|word| halves(*word)).sum();
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        total += halves(last);
    }
    u16::from_be(fold64(total))
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
    let (before, behind) = (&header[..Ipv4::<&[u8]>::CHECKSUM.start], &header[Ipv4::<&[u8]>::CHECKSUM.end..]);
    !add(sum(before), sum(behind))
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
pub fn update16(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(u32::from(!checksum) + u32::from(!old) + u32::from(new))
}

/// The checksum after one 32-bit word that it covers has changed from `old` to `new`, as when an address is
/// rewritten.
#[inline]
pub fn update32(checksum: u16, old: u32, new: u32) -> u16 {
    update16(checksum, sum32(old), sum32(new))
}

/// Completes a partial TCP or UDP checksum, which the sender left to its network card; returns whether it was
/// partial.
///
/// `packet` starts with the IP header. A Linux sender with checksum offload, which every veth has, writes the sum of
/// the pseudo-header into the field, not complemented, and lets the card add the rest. Between veths there is no
/// card, so XDP and AF_XDP see that partial sum. It is recognized by its value. A packet that has this value by
/// chance as its correct checksum is safe: adding the rest to it gives the same value again. (A corrupted packet with
/// this value would get a correct checksum: one in 65,536 of the corrupted ones.)
///
/// Not changed: fragments, since Linux completes the sum before fragmenting; packets with a source route, whose
/// pseudo-header has another destination; inner packets of tunnels. ICMP and ICMPv6 need none of this: Linux always
/// computes their checksums in software.
pub fn complete_partial(packet: &mut [u8]) -> bool {
    let Some((pseudo, protocol, segment)) = segment(packet) else { return false };
    let segment = &mut packet[segment];
    let field = if protocol == protocol::UDP { 6..8 } else { 16..18 };
    // Never zero, since the protocol is not; so it cannot be mistaken for UDP's "no checksum".
    if be16(&segment[field.clone()]) != pseudo.sum(protocol, segment.len()) {
        return false;
    }
    // The pseudo-header's sum is in the field already, so one pass over the segment gives the complete sum.
    let complete = checksum(segment);
    put16(&mut segment[field], if protocol == protocol::UDP { udp_field(complete) } else { complete });
    true
}

/// The TCP or UDP segment of an unfragmented packet, if it is complete.
fn segment(packet: &[u8]) -> Option<(Pseudo, u8, Range<usize>)> {
    let (pseudo, protocol, mut segment) = match packet.first()? >> 4 {
        4 => {
            let ip = Ipv4::parse(packet).ok().filter(|ip| !ip.is_fragment())?;
            let segment = ip.header_len()..usize::from(ip.total_len());
            (ip.pseudo(), ip.protocol(), segment)
        }
        6 => {
            let ip = Ipv6::parse(packet).ok()?;
            let upper = ip.upper().ok().filter(|upper| upper.fragment.is_none())?;
            (ip.pseudo(), upper.protocol, upper.offset..ip.total_len())
        }
        _ => return None,
    };
    match protocol {
        protocol::TCP => (segment.len() >= 20).then_some((pseudo, protocol, segment)),
        protocol::UDP if segment.len() >= 8 => {
            let length = usize::from(be16(&packet[segment.start + 4..]));
            (8..=segment.len()).contains(&length).then(|| {
                segment.end = segment.start + length;
                (pseudo, protocol, segment)
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071 2: the example, whose sum is ddf2.
    const EXAMPLE: [u8; 8] = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    /// 10.0.0.1:1000 > 10.0.0.2:2000, UDP with the payload "hi", its checksum the pseudo-header's sum.
    const UDP_PARTIAL: [u8; 30] = [
        0x45, 0, 0, 30, 0, 1, 0x40, 0, 64, 17, 0x26, 0xcc, 10, 0, 0, 1, 10, 0, 0, 2, 0x03, 0xe8, 0x07, 0xd0,
        0, 10, 0x14, 0x1e, b'h', b'i',
    ];
    /// fd00::1:1000 > fd00::2:2000, a TCP SYN, its checksum the pseudo-header's sum.
    const TCP6_PARTIAL: [u8; 60] = [
        0x60, 0, 0, 0, 0, 20, 6, 64, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xfd, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0x03, 0xe8, 0x07, 0xd0, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xfa, 0xf0,
        0xfa, 0x1e, 0, 0,
    ];

    /// The definition, word by word.
    fn slow(bytes: &[u8]) -> u16 {
        let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        bytes.chunks(2).fold(0, |total, pair| u32::from(fold(total + word(pair)))) as u16
    }

    #[test]
    fn sums_as_the_rfc_does() {
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
        let mut header = *UDP_PARTIAL.first_chunk::<20>().expect("a header");
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

    #[test]
    fn completes_udp_over_ipv4() {
        let mut packet = UDP_PARTIAL;
        assert!(complete_partial(&mut packet));
        assert_eq!(packet[26..28], [0x77, 0xb6]);
        let pseudo = Pseudo::V4 { source: 0x0a00_0001, destination: 0x0a00_0002 };
        assert_eq!(pseudo.checksum(protocol::UDP, &packet[20..]), 0);
        assert!(!complete_partial(&mut packet), "once is enough");
    }

    /// 10.9.0.1 > 10.10.0.9, 1,400 times "x", as a veth of Linux 6.18 handed it over.
    #[test]
    fn completes_what_linux_left() {
        let mut packet = vec![b'x'; 1428];
        packet[..28].copy_from_slice(&[
            0x45, 0, 0x05, 0x94, 0, 0, 0x40, 0, 0x40, 0x11, 0x21, 0x3d, 0x0a, 9, 0, 1, 0x0a, 0x0a, 0, 9,
            0x8d, 8, 0, 0x63, 5, 0x80, 0x19, 0xae,
        ]);
        assert!(complete_partial(&mut packet));
        let ip = Ipv4::parse(&packet[..]).unwrap();
        assert_eq!(ip.pseudo().checksum(protocol::UDP, ip.payload()), 0);
    }

    #[test]
    fn completes_tcp_over_ipv6() {
        let mut packet = TCP6_PARTIAL;
        assert!(complete_partial(&mut packet));
        let pseudo = Ipv6::parse(&packet).unwrap().pseudo();
        assert_eq!(pseudo.checksum(protocol::TCP, &packet[40..]), 0);
        assert_eq!(packet[56..58], [0xaf, 0x34]);
    }

    #[test]
    fn leaves_fragments_other_protocols_and_cut_packets_alone() {
        let changed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut packet = UDP_PARTIAL.to_vec();
            change(&mut packet);
            let before = packet.clone();
            let did = complete_partial(&mut packet);
            assert_eq!(did, before != packet);
            did
        };
        assert!(changed(&|_| ()));
        assert!(!changed(&|packet| packet[6] = 0x20), "first fragment");
        assert!(!changed(&|packet| packet[7] = 1), "later fragment");
        assert!(!changed(&|packet| packet[9] = 136), "UDP-Lite");
        assert!(!changed(&|packet| packet.truncate(29)), "cut");
        assert!(!changed(&|packet| packet[25] = 7), "UDP length below its header");
        assert!(!changed(&|packet| packet[25] = 11), "UDP length past the packet");
        assert!(!changed(&|packet| (packet[26], packet[27]) = (0, 0)), "no checksum wanted");
        assert!(changed(&|packet| packet.extend([0xaa; 30])), "padding does not count");
    }

    /// Whichever it was, half done or whole, the result is right: over all 65,536 sums that a payload can make.
    #[test]
    fn is_right_whichever_it_was() {
        let check = |template: &[u8], header: usize, field: usize, varied: usize, protocol: u8| {
            let mut mistaken = 0;
            for word in 0..=u16::MAX {
                let mut half = template.to_vec();
                put16(&mut half[varied..], word);
                let (pseudo, ..) = segment(&half).unwrap();
                let mut whole = half.clone();
                put16(&mut whole[field..], 0);
                let right = match pseudo.checksum(protocol, &whole[header..]) {
                    0 if protocol == protocol::UDP => 0xffff,
                    right => right,
                };
                put16(&mut whole[field..], right);
                assert!(complete_partial(&mut half), "word {word:#x}");
                assert_eq!(half, whole, "half done, word {word:#x}");
                let mut again = whole.clone();
                mistaken += u32::from(complete_partial(&mut again));
                assert_eq!(again, whole, "done, word {word:#x}");
            }
            // One payload in 65,536 makes a whole sum look half done; completing it changes nothing.
            assert_eq!(mistaken, 1);
        };
        check(&UDP_PARTIAL, 20, 26, 28, protocol::UDP);
        check(&TCP6_PARTIAL, 40, 56, 46, protocol::TCP);
    }
}
