//! Checksums that a sender left to its network card.
//!
//! A Linux sender with checksum offload, which every veth has, writes the sum of the pseudo-header into the field of TCP
//! or UDP, not complemented, and lets the card add the rest; in SCTP it writes zero. Between veths there is no card, so
//! XDP and AF_XDP get such a packet as it is, without the kernel's mark that says where the checksum begins. There is one
//! in a packet:
//!
//! ```text
//! IP ─► TCP or UDP                               recognized by its value
//! IP ─► extension headers ─► TCP or UDP          the same
//! IP ─► UDP, GRE, IP, .. ─► IP ─► TCP or UDP     the packet inside is searched: an IP header of the right length, and
//!                                                such a value in the field behind it
//! ```
//!
//! A packet that has this value by chance as its correct checksum is safe: adding the rest to it gives the same value
//! again. (A corrupted packet with this value would get a correct checksum: one in 65,536 of the corrupted ones.) A tunnel
//! computes its own checksum as if the one inside were complete, so packets are completed from the innermost outwards.
//!
//! Not changed: fragments, since Linux completes the sum before fragmenting. ICMP, ICMPv6 and ESP need none of this:
//! Linux always computes what is in them in software, and encrypts nothing that is incomplete.

use crate::bytes::{be16, put16};
use crate::checksum::{Pseudo, checksum, udp_field};
use crate::ipv4::Ipv4;
use crate::ipv6::{self, Ipv6};
use crate::protocol;
use std::ops::Range;

mod crc32c;

/// The shortest packet with a checksum that can be left to a card: an IPv4 and a UDP header.
const PACKET_MIN: usize = 28;
/// Padding behind a packet inside: an Ethernet frame has at least 46 bytes behind its header.
const PADDING_MAX: usize = 46 - PACKET_MIN;
/// How many places are looked at: by chance a payload has one at most, and a packet inside is among the last.
const TRIES: u32 = 32;
/// Where an SCTP packet has its checksum (RFC 9260 3.1).
const SCTP_FIELD: Range<usize> = 8..12;
const SCTP_HEADER_LEN: usize = SCTP_FIELD.end;
/// The length of the first chunk (RFC 9260 3.2).
const SCTP_CHUNK_LENGTH: Range<usize> = 14..16;

/// Completes a partial checksum, which the sender left to its network card; returns whether there was one.
///
/// `packet` starts with the IP header, and may be followed by padding.
pub fn complete_partial(packet: &mut [u8]) -> bool {
    let Some(place) = Place::find(packet) else { return false };
    let is_inside = match place.protocol {
        // These carry no tunnel, and what is short no packet.
        protocol::TCP | protocol::SCTP => false,
        protocol::UDP if place.segment.len() < 8 + PACKET_MIN => false,
        protocol::ICMP | protocol::ICMPV6 | protocol::ESP => return false,
        _ => complete_inside(&mut packet[place.segment.clone()]),
    };
    place.complete(packet) || is_inside
}

/// Completes the checksums of packets inside another one, which begin at even bytes of its payload; returns whether
/// there were any.
#[inline(never)]
fn complete_inside(payload: &mut [u8]) -> bool {
    let mut is_any = false;
    let mut end = payload.len().saturating_sub(PACKET_MIN) / 2 + 1;
    for _ in 0..TRIES {
        let Some(at) = last_plausible(payload, end) else { break };
        end = at / 2;
        let packet = &mut payload[at..];
        // What only looks like an IPv4 packet hardly has a right header checksum.
        let is_other = Ipv4::parse(&*packet).is_ok_and(|ip| !ip.checksum_ok());
        is_any |= !is_other && Place::find(packet).is_some_and(|place| place.complete(packet));
    }
    is_any
}

/// Words that are looked at together.
const BLOCK: usize = 64;

/// The last place before word `end` where the length in an IP header would fit what follows, as all but one in some
/// thousand random words do not.
fn last_plausible(payload: &[u8], end: usize) -> Option<usize> {
    let (words, _) = payload.as_chunks::<2>();
    let mut end = end;
    while end > 0 {
        let start = (end - 1) / BLOCK * BLOCK;
        let room = payload.len() - 2 * start;
        let behind = |count: usize| &words[(start + count).min(words.len())..(end + count).min(words.len())];
        // An IPv4 header has its length in the second word, an IPv6 header in the third.
        if any_fits(behind(1), room, fits4) || any_fits(behind(2), room, fits6) {
            let last = (start..end).rev().map(|word| 2 * word).find(|at| is_plausible(&payload[*at..]));
            if last.is_some() {
                return last;
            }
        }
        end = start;
    }
    None
}

/// Whether any of these words would be a fitting length, the first with `room` and each further one with two bytes less.
/// Without branches, so that it becomes vector code.
fn any_fits(words: &[[u8; 2]], room: usize, fits: impl Fn(u16, u16) -> bool) -> bool {
    words.iter().zip(0u16..).fold(false, |any, (word, index)| {
        any | fits((room as u16).wrapping_sub(2 * index), u16::from_be_bytes(*word))
    })
}

fn is_plausible(packet: &[u8]) -> bool {
    let room = packet.len() as u16;
    packet.get(2..4).is_some_and(|length| fits4(room, be16(length)))
        || packet.get(4..6).is_some_and(|length| fits6(room, be16(length)))
}

/// Whether a total length fits what is there, with padding behind it.
fn fits4(room: u16, length: u16) -> bool {
    room.wrapping_sub(length) <= PADDING_MAX as u16
}

/// Whether a payload length fits what is there. Such a packet is never so short that it would be padded.
fn fits6(room: u16, length: u16) -> bool {
    length.wrapping_add(ipv6::HEADER_LEN as u16) == room
}

/// What follows the IP header and its extension headers of an unfragmented packet that is all there.
struct Place {
    pseudo: Pseudo,
    /// The final destinations that a routing header may have, instead of that in the pseudo-header.
    destinations: Range<usize>,
    protocol: u8,
    segment: Range<usize>,
}

impl Place {
    fn find(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => {
                let ip = Ipv4::parse(packet).ok().filter(|ip| !ip.is_fragment())?;
                let segment = ip.header_len()..usize::from(ip.total_len());
                Some(Self { pseudo: ip.pseudo(), destinations: 0..0, protocol: ip.protocol(), segment })
            }
            6 => {
                let ip = Ipv6::parse(packet).ok()?;
                let upper = ip.upper().ok().filter(|upper| upper.fragment.is_none())?;
                let routing = ip.extensions().flatten().find(|extension| extension.kind == protocol::ROUTING);
                // RFC 8754 2: the addresses begin after eight bytes, as in the other types.
                let destinations = routing.map_or(0..0, |it| it.offset + 8..it.offset + it.bytes.len());
                let segment = upper.offset..ip.total_len();
                Some(Self { pseudo: ip.pseudo(), destinations, protocol: upper.protocol, segment })
            }
            _ => None,
        }
    }

    /// Completes the checksum if it is partial; returns whether it was.
    fn complete(mut self, packet: &mut [u8]) -> bool {
        let field = match self.protocol {
            protocol::TCP if self.segment.len() >= 20 => 16..18,
            protocol::UDP if self.segment.len() >= 8 => {
                let length = usize::from(be16(&packet[self.segment.start + 4..]));
                if !(8..=self.segment.len()).contains(&length) {
                    return false;
                }
                self.segment.end = self.segment.start + length;
                6..8
            }
            protocol::SCTP => return complete_sctp(&mut packet[self.segment]),
            _ => return false,
        };
        let value = be16(&packet[self.segment.clone()][field.clone()]);
        // Never zero, since the protocol is not; so it cannot be mistaken for UDP's "no checksum".
        if !self.pseudos(packet).any(|pseudo| value == pseudo.sum(self.protocol, self.segment.len())) {
            return false;
        }
        let segment = &mut packet[self.segment];
        // The pseudo-header's sum is in the field already, so one pass over the segment gives the complete sum.
        let complete = checksum(segment);
        // As Linux (skb_checksum_help), which also does so for TCP.
        put16(&mut segment[field], udp_field(complete));
        true
    }

    /// The pseudo-headers that the sender may have meant.
    fn pseudos(&self, packet: &[u8]) -> impl Iterator<Item = Pseudo> {
        let pseudo = self.pseudo;
        let (others, _) = packet[self.destinations.clone()].as_chunks::<16>();
        std::iter::once(pseudo).chain(others.iter().map(move |address| match pseudo {
            Pseudo::V6 { source, .. } => Pseudo::V6 { source, destination: u128::from_be_bytes(*address) },
            v4 => v4,
        }))
    }
}

/// Completes the checksum of an SCTP packet, whose first chunk must have a possible length: zeros in a payload are not a
/// packet. A checksum of zero that is correct by chance stays zero.
fn complete_sctp(packet: &mut [u8]) -> bool {
    let Some(length) = packet.get(SCTP_CHUNK_LENGTH).map(be16) else { return false };
    let most = packet.len() - SCTP_HEADER_LEN;
    if packet[SCTP_FIELD] != [0; 4] || !(4..=most).contains(&usize::from(length)) {
        return false;
    }
    let sum = crc32c::crc32c(packet);
    packet[SCTP_FIELD].copy_from_slice(&sum.to_le_bytes());
    true
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
                let pseudo = Place::find(&half).unwrap().pseudo;
                let mut whole = half.clone();
                put16(&mut whole[field..], 0);
                let right = udp_field(pseudo.checksum(protocol, &whole[header..]));
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

    fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        put16(&mut packet[2..], 20 + payload.len() as u16);
        let header = checksum(&packet);
        put16(&mut packet[10..], header);
        [&packet, payload].concat()
    }

    fn ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = TCP6_PARTIAL[..40].to_vec();
        put16(&mut packet[4..], payload.len() as u16);
        packet[6] = next_header;
        [&packet, payload].concat()
    }

    /// A segment with `payload` in one of these packets, its checksum complete; and the packet with the sum of the
    /// pseudo-header alone.
    fn both(pack: fn(u8, &[u8]) -> Vec<u8>, protocol: u8, payload: &[u8]) -> [Vec<u8>; 2] {
        let (header, field): (&[u8], _) = match protocol {
            protocol::UDP => (&[3, 232, 18, 181, 0, 0, 0, 0], 6),
            protocol::TCP => (&[3, 232, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 32, 0, 0, 0, 0, 0], 16),
            _ => (&[3, 232, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0, 3, 0, 4], 8),
        };
        let mut partial = [header, payload].concat();
        if protocol == protocol::SCTP {
            let mut whole = partial.clone();
            whole[8..12].copy_from_slice(&crc32c::crc32c(&partial).to_le_bytes());
            return [whole, partial].map(|segment| pack(protocol, &segment));
        }
        if protocol == protocol::UDP {
            let length = partial.len() as u16;
            put16(&mut partial[4..], length);
        }
        let sum = Place::find(&pack(protocol, &partial)).unwrap().pseudo.sum(protocol, partial.len());
        put16(&mut partial[field..], sum);
        let mut whole = partial.clone();
        let right = checksum(&partial);
        put16(&mut whole[field..], udp_field(right));
        [whole, partial].map(|segment| pack(protocol, &segment))
    }

    /// The packet around both forms of another one: with a UDP header whose checksum fits the complete one.
    fn in_udp(pack: fn(u8, &[u8]) -> Vec<u8>, head: &[u8], [whole, partial]: &[Vec<u8>; 2]) -> [Vec<u8>; 2] {
        let [around, _] = both(pack, protocol::UDP, &[head, whole].concat());
        let mut half = around.clone();
        let at = around.len() - whole.len();
        half[at..].copy_from_slice(partial);
        [around, half]
    }

    fn in_ip(
        pack: fn(u8, &[u8]) -> Vec<u8>,
        protocol: u8,
        head: &[u8],
        inner: &[Vec<u8>; 2],
    ) -> [Vec<u8>; 2] {
        [0, 1].map(|form| pack(protocol, &[head, &inner[form]].concat()))
    }

    #[test]
    fn completes_packets_in_tunnels() {
        let vxlan = [&[8, 0, 0, 0, 0, 0, 1, 0][..], &[2; 12], &[8, 0]].concat();
        let geneve = [&[8, 0, 0x65, 0x58, 0, 0, 1, 0][..], &[0; 32], &[2; 12], &[0x86, 0xdd]].concat();
        let bytes: Vec<u8> = (0..900u32).map(|at| (at * at * 7 + at) as u8).collect();
        let packs = [ipv4 as fn(u8, &[u8]) -> Vec<u8>, ipv6];
        for (protocol, size) in [protocol::UDP, protocol::TCP, protocol::SCTP]
            .into_iter()
            .flat_map(|protocol| [0, 1, 2, 3, 99, 800].map(|size| (protocol, size)))
        {
            for inside in packs.map(|pack| both(pack, protocol, &bytes[..size])) {
                let next = if inside[0][0] >> 4 == 4 { protocol::IPV4 } else { protocol::IPV6 };
                for pack in packs {
                    let mut forms = vec![
                        in_udp(pack, &vxlan, &inside),
                        in_udp(pack, &geneve, &inside),
                        in_udp(pack, &[], &inside),
                        in_ip(pack, next, &[], &inside),
                        in_ip(pack, protocol::GRE, &[0, 0, 8, 0], &inside),
                        in_ip(
                            pack,
                            protocol::GRE,
                            &[0x20, 0, 0x65, 0x58, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2],
                            &inside,
                        ),
                    ];
                    let zero = |form: &Vec<u8>| {
                        let mut form = form.clone();
                        let field = if form[0] >> 4 == 4 { 26 } else { 46 };
                        form[field..field + 2].fill(0);
                        form
                    };
                    forms.push(in_udp(pack, &vxlan, &inside).map(|form| zero(&form)));
                    for pack in packs {
                        let nested: Vec<_> = forms.iter().map(|inner| in_udp(pack, &vxlan, inner)).collect();
                        check(&nested);
                    }
                    check(&forms);
                }
            }
        }
    }

    /// Each whole packet stays as it is, and the partial one becomes it, with padding behind and without.
    fn check(forms: &[[Vec<u8>; 2]]) {
        for [whole, partial] in forms {
            let mut done = partial.clone();
            assert!(complete_partial(&mut done), "{partial:02x?}");
            assert_eq!(done, *whole);
            complete_partial(&mut done);
            assert_eq!(done, *whole, "once is enough");
            let mut padded = [partial, &[0; 11][..]].concat();
            complete_partial(&mut padded);
            assert_eq!(padded, [whole, &[0; 11][..]].concat());
        }
    }

    #[test]
    fn completes_behind_extension_headers() {
        let [whole, partial] = both(ipv6, protocol::TCP, b"data");
        let options = [protocol::TCP, 0, 1, 4, 0, 0, 0, 0];
        check(&[[0, 1].map(|form| {
            let packet = [&whole, &partial][form];
            ipv6(protocol::DESTINATION_OPTIONS, &[&options[..], &packet[40..]].concat())
        })]);
        // The final destination of SRv6 is in the routing header, and another one in the IPv6 header.
        let final_destination = &whole[24..40];
        let routing = [&[protocol::TCP, 2, 4, 1, 0, 0, 0, 0][..], final_destination].concat();
        check(&[[&whole, &partial].map(|packet| {
            let mut packet = ipv6(protocol::ROUTING, &[&routing[..], &packet[40..]].concat());
            packet[39] ^= 0x55;
            packet
        })]);
    }

    #[test]
    fn completes_sctp() {
        for pack in [ipv4 as fn(u8, &[u8]) -> Vec<u8>, ipv6] {
            check(&[both(pack, protocol::SCTP, b"more chunks")]);
        }
        let mut no_chunk = ipv4(protocol::SCTP, &[0; 40]);
        assert!(!complete_partial(&mut no_chunk));
    }

    /// A tunnel's checksum that looks partial by chance is right once the one inside is complete, and only then.
    #[test]
    fn completes_from_the_inside() {
        let mut found = 0;
        for word in 0..=u16::MAX {
            let inside = both(ipv4, protocol::UDP, b"some data");
            let head = [&[8, 0, 0, 0, 0, 0, 1, 0][..], &word.to_be_bytes(), &[2; 10], &[8, 0]].concat();
            let [whole, partial] = in_udp(ipv4, &head, &inside);
            let place = Place::find(&whole).unwrap();
            if be16(&whole[26..]) == place.pseudo.sum(protocol::UDP, place.segment.len()) {
                found += 1;
                check(&[[whole, partial]]);
            }
        }
        assert_eq!(found, 1);
    }

    #[test]
    fn finds_a_packet_at_every_even_place() {
        let bytes: Vec<u8> = (0..700u32).map(|at| (at * at * 7 + at * 3) as u8).collect();
        for before in (0..700).step_by(2) {
            check(&[in_udp(ipv4, &bytes[..before], &both(ipv6, protocol::TCP, b"data"))]);
        }
    }

    #[test]
    fn leaves_complete_packets_alone() {
        let bytes: Vec<u8> = (0..1400u32).map(|at| (at * at * 7 + at * 3) as u8).collect();
        for size in 0..1400 {
            let [whole, _] = both(ipv4, protocol::UDP, &bytes[..size]);
            let mut same = whole.clone();
            complete_partial(&mut same);
            assert_eq!(same, whole);
        }
        for protocol in [protocol::ICMP, protocol::ESP] {
            let inside = both(ipv4, protocol::TCP, b"quoted");
            let mut packet = ipv4(protocol, &[&[11, 0, 0, 0, 0, 0, 0, 0], &inside[1][..]].concat());
            assert!(!complete_partial(&mut packet), "complete whatever it quotes");
        }
    }
}
