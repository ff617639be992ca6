//! What may differ between two labs with the same history, beyond what `normalise` says of any two routers.
//!
//! 1. *Messages to find neighbors, and about groups*: when Linux sends them depends on time. Answers to probes are kept.
//! 2. *Identification and flow label of every packet that the router itself creates*: its addresses change here, so they
//!    are told by the TTL and the protocol.
//! 3. *Which of several next hops a flow takes*: MAC addresses and link of what goes to the prefixes with several.
//! 4. *Errors and redirects to the few sources that are not new in each round*: Linux limits those by source.
//! 5. *Errors about a neighbor that does not answer*: which of the packets that wait get one, and when, depends on time.
//!    The suite `neighbors` is about those.
//! 6. *Frames of an earlier round*, which came late: they do not carry the number of the round.
//! 7. *What goes to the prefixes with several next hops while a link has no carrier or has lost its neighbors, a gateway
//!    has been local, or the loopback interface has a prefix, where a packet circles until its TTL is
//!    used up*: which flows meet that is each router's own choice, as in 3.
//! 8. *What is for the router by a route of the local table that is no address*, while it has filters: whether a longer
//!    prefix of the main table comes first depends on whether a rule was ever added, which only Linux knows.
//! 9. *The anycast address of a link* after `forwarding` of IPv6 was switched off on an interface, or a link had no ARP:
//!    Linux leaves out those that its own work queue is just looking at, or counts their users wrongly and adds no route
//!    for them once the link is up again, which differs from lab to lab.
//! 10. *The identification of fragments* of an IPv6 packet that the router has made, which is random.
//! 11. *ICMPv6 errors and echo replies* in a round in which a kernel could not send one: errors that wait for a neighbor use
//!     up the buffer of the one socket for all of them, in all namespaces.
//! 12. *What has the broadcast address of a link as its source*, once a route had a realm: Linux refuses these sources as long
//!     as any route has one, and for a moment longer, until it has freed the route.
//! 13. *The source port of a flow that masquerading would make equal to another one*: Linux takes a random one.

use crate::model::probes::{self, MULTIPATH4, MULTIPATH6};
use bm_tests::exchange::Seen;
use bm_tests::lab::Side;
use bm_tests::normalise;
use bm_tests::packet::put16;
use bm_wire::checksum;
use std::net::{Ipv4Addr, Ipv6Addr};

const PACKET: usize = 14;
const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const TCP: u8 = 6;
/// Flag of TCP.
const RST: u8 = 4;
/// ICMP type 11 (RFC 792).
const TIME_EXCEEDED: u8 = 11;
/// ICMPv6 type 129 (RFC 4443 4.2).
const UDP: u8 = 17;
/// Next header of IPv6 (RFC 8200 4.5).
const FRAGMENT: u8 = 44;

fn kind(frame: &[u8]) -> u16 {
    frame.get(12..14).map_or(0, |two| u16::from_be_bytes([two[0], two[1]]))
}

/// Whether a frame belongs to the packets with this number, and is not noise.
pub fn is_of_round(frame: &[u8], token: [u8; 4]) -> bool {
    let packet = frame.get(PACKET..).unwrap_or_default();
    match kind(frame) {
        // An answer; requests come at any time.
        ARP => packet.get(7) == Some(&2),
        IPV4 | IPV6 => {
            let advertises =
                kind(frame) == IPV6 && packet.get(6) == Some(&ICMPV6) && packet.get(40) == Some(&136);
            if normalise::is_noise(frame) || is_limited(packet) || is_about_neighbor(packet) {
                return false;
            }
            // Fragments after the first have the number as their identification.
            let id = kind(frame) == IPV4 && packet.get(4..6) == Some(&token[2..]);
            let opens = probes::sequence(token);
            let numbers = [token, opens.to_be_bytes(), (opens + 1).to_be_bytes()];
            advertises || id || numbers.iter().any(|number| has_token(packet, *number))
        }
        _ => has_token(packet, token),
    }
}

/// Whether a packet is an error about a neighbor that does not answer.
fn is_about_neighbor(packet: &[u8]) -> bool {
    if packet.len() < 48 {
        return false;
    }
    let at = if packet[0] >> 4 == 4 { usize::from(packet[0] & 15) * 4 } else { 40 };
    let protocol = if packet[0] >> 4 == 4 { packet[9] } else { packet[6] };
    matches!((protocol, packet.get(at..at + 2)), (ICMP, Some([3, 1])) | (ICMPV6, Some([1, 3])))
}

fn has_token(bytes: &[u8], token: [u8; 4]) -> bool {
    bytes.windows(4).any(|four| four == token)
}

/// Errors about routes, and redirects, to sources that are not new in each round.
fn is_limited(packet: &[u8]) -> bool {
    if packet.len() < 48 {
        return false;
    }
    if packet[0] >> 4 == 4 {
        let at = usize::from(packet[0] & 15) * 4;
        let is_new = packet[16..18] == [172, 16] && packet[18] < 128;
        let error = packet[9] == ICMP && matches!(packet.get(at..at + 2), Some([3, 0 | 1 | 13] | [5, _]));
        return error && !is_new;
    }
    let is_new = packet[24..29] == [0x20, 0x01, 0x0d, 0xb8, 0xc0];
    packet[6] == ICMPV6 && packet[40] == 137 && !is_new
}

/// The frame without what may differ.
pub fn comparable(frame: Vec<u8>) -> Vec<u8> {
    let mut frame = normalise::frame(frame);
    match kind(&frame) {
        IPV4 if frame.len() >= PACKET + 20 => ipv4(&mut frame),
        IPV6 if frame.len() >= PACKET + 40 => ipv6(&mut frame),
        _ => {}
    }
    frame
}

fn ipv4(frame: &mut [u8]) {
    let packet = &mut frame[PACKET..];
    let header = (usize::from(packet[0] & 15) * 4).clamp(20, packet.len());
    if is_own(packet[8]) && matches!(packet[9], ICMP | TCP) && checksum::sum(&packet[..header]) == 0xffff {
        put16(packet, 4, 0);
        put16(packet, 10, 0);
        let sum = checksum::ipv4_header(&packet[..header]);
        put16(packet, 10, sum);
    }
    if packet[9] == UDP && packet.len() >= header + 8 {
        let [of, to] = [header, header + 2].map(|at| u16::from_be_bytes([packet[at], packet[at + 1]]));
        if to == probes::UDP_TO && of != probes::UDP_FROM {
            put16(packet, header, 0);
            put16(packet, header + 6, 0);
        }
    }
    let to = Ipv4Addr::new(packet[16], packet[17], packet[18], packet[19]).to_string();
    // The destination of the packet that an error quotes is behind both headers.
    let about = match packet.get(header + 24..header + 28) {
        Some(&[a, b, c, d]) if packet[9] == ICMP && packet[header] == TIME_EXCEEDED => {
            Ipv4Addr::new(a, b, c, d).to_string()
        }
        _ => String::new(),
    };
    if [to, about].iter().any(|address| MULTIPATH4.contains(&&**address)) {
        frame[..12].fill(0);
    }
}

fn ipv6(frame: &mut [u8]) {
    let packet = &mut frame[PACKET..];
    if is_own(packet[7]) && matches!(packet[6], ICMPV6 | TCP | FRAGMENT) {
        packet[1] &= 0xf0;
        packet[2..4].fill(0);
    }
    if is_own(packet[7]) && packet[6] == FRAGMENT && packet.len() >= 48 {
        packet[44..48].fill(0);
    }
    let to: [u8; 16] = packet[24..40].try_into().expect("16 bytes");
    if MULTIPATH6.contains(&&*Ipv6Addr::from(to).to_string()) {
        frame[..12].fill(0);
    }
}

/// Whether a packet with this TTL was made by the router: a forwarded one has lost one hop.
fn is_own(ttl: u8) -> bool {
    ttl != 63
}

/// Whether a frame is the router's answer for an address that it does not have: an echo reply, a RST, or that nobody
/// listens at a port; or the error about a packet to such an address for which a longer prefix has no route.
pub fn is_answer_of_route(frame: &[u8]) -> bool {
    let packet = frame.get(PACKET..).unwrap_or_default();
    if kind(frame) != IPV4 || packet.len() < 34 {
        return false;
    }
    let is_from_such = packet[12] == 10;
    match (packet[9], &packet[20..22]) {
        (ICMP, [0, 0] | [3, 3]) => is_from_such,
        // The destination of the packet that the error quotes.
        (ICMP, [3, 0]) => packet.get(44) == Some(&10),
        (TCP, _) => is_from_such && is_own(packet[8]) && packet[33] & RST != 0,
        _ => false,
    }
}

/// Whether a frame goes to the anycast address of the first link, or answers for it.
pub fn is_anycast(frame: &[u8]) -> bool {
    let anycast = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0).octets();
    let packet = frame.get(PACKET..).unwrap_or_default();
    kind(frame) == IPV6 && [8..24, 24..40].into_iter().any(|at| packet.get(at) == Some(&anycast[..]))
}

/// Whether the source of a frame is the broadcast address of a link.
pub fn is_from_broadcast(frame: &[u8]) -> bool {
    let source = frame.get(PACKET + 12..PACKET + 16).unwrap_or_default();
    kind(frame) == IPV4 && [[192, 0, 2, 255], [198, 51, 100, 255]].iter().any(|address| source == address)
}

/// Whether a frame goes to a prefix with several next hops.
pub fn is_multipath(seen: &Seen) -> bool {
    seen.frame[..12] == [0; 12]
}

/// All frames in an order of their own, without the link of those that may take several.
pub fn sorted(seen: &[Seen]) -> Vec<Seen> {
    let mut all = seen.to_vec();
    for seen in &mut all {
        if is_multipath(seen) {
            seen.side = Side::Src;
        }
    }
    all.sort();
    all
}

/// Frames of the first list that the second one lacks; a frame that comes twice counts twice.
pub fn lacking<'a>(list: &'a [Seen], other: &[Seen]) -> Vec<&'a Seen> {
    let mut rest = other.to_vec();
    let mut lacking = Vec::new();
    for seen in list {
        match rest.iter().position(|candidate| candidate == seen) {
            Some(at) => drop(rest.swap_remove(at)),
            None => lacking.push(seen),
        }
    }
    lacking
}

/// What a frame shows of the router's tables: where it goes, and what of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Trace {
    side: Side,
    addresses: Vec<u8>,
    /// Destination of a packet, or of the one that an error quotes.
    to: Vec<u8>,
    /// Type and code of an error.
    error: Option<[u8; 2]>,
}

impl Trace {
    /// Whether it is a packet to one of these IPv4 addresses, or an error about one.
    pub fn is_to(&self, addresses: &[&str]) -> bool {
        let to = <[u8; 4]>::try_from(&*self.to).map(|to| Ipv4Addr::from(to).to_string());
        to.is_ok_and(|to| addresses.contains(&&*to))
    }

    /// Whether it is an error about a packet without a route, or with one that prohibits it.
    pub fn is_no_route(&self) -> bool {
        matches!((self.to.len(), self.error), (4, Some([3, 0 | 13])) | (16, Some([1, 0 | 1])))
    }

    /// Whether it says that nobody listens at a port.
    pub fn is_port_unreachable(&self) -> bool {
        matches!((self.to.len(), self.error), (4, Some([3, 3])) | (16, Some([1, 4])))
    }
}

/// The trace of a frame; `None` for what is not a packet of the probes or an error about one.
pub fn trace(seen: &Seen) -> Option<Trace> {
    let packet = seen.frame.get(PACKET..)?;
    let is_four = kind(&seen.frame) == IPV4;
    let (protocol, header) =
        if is_four { (*packet.get(9)?, usize::from(packet[0] & 15) * 4) } else { (*packet.get(6)?, 40) };
    let destination = if is_four { 16..20 } else { 24..40 };
    let is_error = if is_four { protocol == ICMP } else { protocol == ICMPV6 };
    let (at, error) = if is_error {
        (header + 8, Some([*packet.get(header)?, *packet.get(header + 1)?]))
    } else {
        (0, None)
    };
    if protocol == TCP {
        // An answer of the router, which has no number: it may be about an earlier round.
        return None;
    }
    let to = packet.get(at + destination.start..at + destination.end)?.to_vec();
    let addresses = seen.frame[..12].to_vec();
    // Any link of several.
    let side = if addresses == [0; 12] { Side::Src } else { seen.side };
    Some(Trace { side, addresses, to, error })
}

/// What a frame is, in a few words, and its bytes.
pub fn describe(seen: &Seen) -> String {
    let frame = &seen.frame;
    let packet = frame.get(PACKET..).unwrap_or_default();
    let words = match kind(frame) {
        ARP => "ARP".to_owned(),
        IPV4 if packet.len() >= 20 => {
            let at = usize::from(packet[0] & 15) * 4;
            let address =
                |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
            format!(
                "{} > {} protocol {} ttl {}{}",
                address(12),
                address(16),
                packet[9],
                packet[8],
                icmp(packet, packet[9], at)
            )
        }
        IPV6 if packet.len() >= 40 => {
            let address =
                |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).expect("16 bytes"));
            format!(
                "{} > {} next header {} hop limit {}{}",
                address(8),
                address(24),
                packet[6],
                packet[7],
                icmp(packet, packet[6], 40)
            )
        }
        other => format!("type {other:04x}"),
    };
    format!("{:?}: {words}, {} bytes: {}", seen.side, frame.len(), hex(&frame[..frame.len().min(110)]))
}

fn icmp(packet: &[u8], protocol: u8, at: usize) -> String {
    match packet.get(at..at + 2) {
        Some([kind, code]) if matches!(protocol, ICMP | ICMPV6) => format!(" ICMP {kind}/{code}"),
        _ => String::new(),
    }
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
