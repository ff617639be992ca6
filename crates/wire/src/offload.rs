//! TCP and UDP checksums that a sender left to its network card.

use crate::bytes::{be16, put16};
use crate::checksum::{Pseudo, checksum, udp_field};
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::protocol;
use std::ops::Range;

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
    fn completes_checksums_left_by_linux() {
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
    fn skips_fragments_other_protocols_and_truncated_packets() {
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
    fn complete_and_partial_checksums_become_correct() {
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
