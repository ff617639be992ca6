//! ICMPv6 (RFC 4443): reading messages, and building those that a router must send.
//!
//! Its checksum covers the addresses, so reading and building need them.

use crate::bytes::{be16, be32, put16, put32};
use crate::checksum::Pseudo;
use crate::icmp::Silence;
use crate::ipv6::{self, Ipv6, Ipv6Header};
use crate::malformed::{Malformed, NoRoom, room};
use crate::protocol;

mod at {
    use std::ops::Range;
    pub const KIND: usize = 0;
    pub const CODE: usize = 1;
    pub const CHECKSUM: Range<usize> = 2..4;
    /// Depends on the kind: identifier and sequence, pointer, MTU, or flags.
    pub const REST: Range<usize> = 4..8;
    pub const DATA: usize = 8;
}

/// Bytes before the data.
pub const HEADER_LEN: usize = at::DATA;
/// Bytes of the longest error, IPv6 header included (RFC 4443 2.4 c).
pub const ERROR_LEN_MAX: usize = ipv6::MIN_MTU;

/// Types.
pub mod kind {
    /// Destination unreachable; codes in `unreachable`.
    pub const DESTINATION_UNREACHABLE: u8 = 1;
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Time exceeded; codes in `exceeded`.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Parameter problem; codes in `problem`.
    pub(crate) const PARAMETER_PROBLEM: u8 = 4;
    pub(crate) const LAST_ERROR: u8 = 127;
    pub const ECHO_REQUEST: u8 = 128;
    pub const ECHO_REPLY: u8 = 129;
    pub const REDIRECT: u8 = 137;
}

/// Codes of "destination unreachable".
pub mod unreachable {
    pub const NO_ROUTE: u8 = 0;
    /// Prohibited by a filter.
    pub const PROHIBITED: u8 = 1;
    /// The neighbor does not answer, or any other reason.
    pub const ADDRESS: u8 = 3;
    /// Nothing listens on the port.
    pub const PORT: u8 = 4;
}

/// Codes of "time exceeded".
pub mod exceeded {
    /// No hops were left in transit.
    pub const IN_TRANSIT: u8 = 0;
}

/// Codes of "parameter problem".
pub mod problem {
    /// A field has a value that cannot be.
    pub const FIELD: u8 = 0;
    /// An option is unknown, and requests this error.
    pub const OPTION: u8 = 2;
}

/// An ICMPv6 message. Its existence proves that the eight header bytes are present.
#[derive(Clone, Copy, Debug)]
pub struct Icmpv6<B>(B);

impl<B: AsRef<[u8]>> Icmpv6<B> {
    /// Checks the length; the checksum is `checksum_ok`'s.
    #[inline]
    pub fn parse(message: B) -> Result<Self, Malformed> {
        if message.as_ref().len() < HEADER_LEN { Err(Malformed::Short) } else { Ok(Self(message)) }
    }

    /// Whether the checksum is right between these addresses.
    pub fn checksum_ok(&self, pseudo: &Pseudo) -> bool {
        pseudo.checksum(protocol::ICMPV6, self.0.as_ref()) == 0
    }

    /// Type.
    #[inline]
    pub fn kind(&self) -> u8 {
        self.0.as_ref()[at::KIND]
    }

    /// Code within the type.
    #[inline]
    pub fn code(&self) -> u8 {
        self.0.as_ref()[at::CODE]
    }

    /// The checksum field.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(&self.0.as_ref()[at::CHECKSUM])
    }

    /// The second word, whose meaning depends on the type: the MTU of "packet too big", a pointer, flags.
    #[inline]
    pub fn rest(&self) -> u32 {
        be32(&self.0.as_ref()[at::REST])
    }

    /// Identifier of an echo.
    pub fn id(&self) -> u16 {
        (self.rest() >> 16) as u16
    }

    /// Sequence number of an echo.
    pub fn sequence(&self) -> u16 {
        self.rest() as u16
    }

    /// Whether it is an error, so that its data is the packet that caused it.
    #[inline]
    pub fn is_error(&self) -> bool {
        is_error(self.kind())
    }

    /// What follows the header: an echo's data, or an error's original.
    #[inline]
    pub fn data(&self) -> &[u8] {
        &self.0.as_ref()[at::DATA..]
    }
}

/// Whether a type is an error: its high bit is clear (RFC 4443 2.1).
#[inline]
pub fn is_error(kind: u8) -> bool {
    kind <= kind::LAST_ERROR
}

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Source address.
    pub source: u128,
    /// Hop limit that it starts with.
    pub hop_limit: u8,
}

/// An error, not yet about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Type.
    pub kind: u8,
    /// Code within the type.
    pub code: u8,
    rest: u32,
}

/// Destination unreachable, with a code of `unreachable`.
pub fn destination_unreachable(code: u8) -> Problem {
    Problem { kind: kind::DESTINATION_UNREACHABLE, code, rest: 0 }
}

/// Packet too big for the next hop; an MTU below the minimum of IPv6 is reported as that minimum.
pub fn packet_too_big(mtu: u32) -> Problem {
    Problem { kind: kind::PACKET_TOO_BIG, code: 0, rest: mtu.max(ipv6::MIN_MTU as u32) }
}

/// Time exceeded, with a code of `exceeded`.
pub fn time_exceeded(code: u8) -> Problem {
    Problem { kind: kind::TIME_EXCEEDED, code, rest: 0 }
}

/// Parameter problem, with a code of `problem`, at the byte `pointer` of the packet.
pub fn parameter_problem(code: u8, pointer: u32) -> Problem {
    Problem { kind: kind::PARAMETER_PROBLEM, code, rest: pointer }
}

impl Problem {
    /// Writes the whole packet that reports the error to the source of `original`; returns its length.
    ///
    /// The original is quoted as it came, without padding, up to 1280 bytes in all (RFC 4443 2.4 c).
    pub fn emit<B: AsRef<[u8]>>(
        &self,
        sender: &Sender,
        original: &Ipv6<B>,
        buffer: &mut [u8],
    ) -> Result<usize, NoRoom> {
        let quote = original.packet();
        let quote = &quote[..quote.len().min(ERROR_LEN_MAX - ipv6::HEADER_LEN - HEADER_LEN)];
        emit(sender, original.source(), 0, [self.kind, self.code], self.rest, quote, buffer)
    }

    /// RFC 4443 2.4 e.3: a packet to a multicast address may cause an error if it is too big, so that path MTU
    /// discovery works for multicast, and if it has an unknown option whose two high bits request it.
    fn is_for_groups_too<B: AsRef<[u8]>>(&self, original: &Ipv6<B>) -> bool {
        match (self.kind, self.code) {
            (kind::PACKET_TOO_BIG, _) => true,
            (kind::PARAMETER_PROBLEM, problem::OPTION) => {
                let option = original.packet().get(self.rest as usize);
                option.is_some_and(|option| option >> 6 == 0b10)
            }
            _ => false,
        }
    }
}

/// Whether `problem` may be reported for `original` (RFC 4443 2.4 e), and if not, why.
///
/// `link_group` says that its frame was multicast or broadcast. Only tables know whether the source is an anycast
/// address. Unlike for IPv4, later fragments are answered: without that, path MTU discovery would fail for them, and
/// it is unknown whether they belong to an error.
pub fn may_answer<B: AsRef<[u8]>>(
    original: &Ipv6<B>,
    problem: &Problem,
    link_group: bool,
) -> Result<(), Silence> {
    let source = original.source();
    let for_groups = problem.is_for_groups_too(original);
    match () {
        () if link_group && !for_groups => Err(Silence::LinkGroup),
        () if ipv6::is_multicast(original.destination()) && !for_groups => Err(Silence::Group),
        () if ipv6::is_unspecified(source) || ipv6::is_multicast(source) => Err(Silence::Source),
        () if is_icmp_error(original) => Err(Silence::IcmpError),
        () => Ok(()),
    }
}

/// Whether a packet is an ICMPv6 error or a redirect, or ICMPv6 of a type that is cut off.
fn is_icmp_error<B: AsRef<[u8]>>(original: &Ipv6<B>) -> bool {
    match original.upper() {
        Ok(upper) if upper.protocol == protocol::ICMPV6 && upper.is_head() => {
            let kind = original.packet().get(upper.offset);
            kind.is_none_or(|kind| is_error(*kind) || *kind == kind::REDIRECT)
        }
        // A malformed chain of headers hides the protocol; a parameter problem may be just what is to be reported.
        _ => false,
    }
}

/// Writes the whole packet that answers an echo request; returns its length.
///
/// `ip` and `request` are the packet and its message. Traffic class (as in Linux), identifier,
/// sequence and data come back as they were (RFC 4443 4.2).
pub fn echo_reply<A: AsRef<[u8]>, B: AsRef<[u8]>>(
    sender: &Sender,
    ip: &Ipv6<A>,
    request: &Icmpv6<B>,
    buffer: &mut [u8],
) -> Result<usize, NoRoom> {
    let header = [kind::ECHO_REPLY, 0];
    emit(sender, ip.source(), ip.traffic_class(), header, request.rest(), request.data(), buffer)
}

/// Writes the whole packet of an echo request; returns its length.
pub fn echo_request(
    sender: &Sender,
    destination: u128,
    id: u16,
    sequence: u16,
    data: &[u8],
    buffer: &mut [u8],
) -> Result<usize, NoRoom> {
    let rest = u32::from(id) << 16 | u32::from(sequence);
    emit(sender, destination, 0, [kind::ECHO_REQUEST, 0], rest, data, buffer)
}

/// Writes a whole packet with one message.
fn emit(
    sender: &Sender,
    destination: u128,
    traffic_class: u8,
    [kind, code]: [u8; 2],
    rest: u32,
    data: &[u8],
    buffer: &mut [u8],
) -> Result<usize, NoRoom> {
    let length = ipv6::HEADER_LEN + HEADER_LEN + data.len();
    let payload_len = u16::try_from(HEADER_LEN + data.len())
        .map_err(|_| NoRoom { needed: length, room: ipv6::HEADER_LEN + usize::from(u16::MAX) })?;
    let packet = room(buffer, length)?;
    let header = Ipv6Header {
        traffic_class,
        payload_len,
        next_header: protocol::ICMPV6,
        hop_limit: sender.hop_limit,
        source: sender.source,
        destination,
        ..Ipv6Header::default()
    };
    let header_len = header.emit(packet)?;
    let message = &mut packet[header_len..];
    message[at::KIND] = kind;
    message[at::CODE] = code;
    put16(&mut message[at::CHECKSUM], 0);
    put32(&mut message[at::REST], rest);
    message[at::DATA..].copy_from_slice(data);
    let pseudo = Pseudo::V6 { source: sender.source, destination };
    let checksum = pseudo.checksum(protocol::ICMPV6, message);
    put16(&mut message[at::CHECKSUM], checksum);
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: u128 = 0xfd09 << 112 | 1;
    const ROUTER: Sender = Sender { source: 0xfd09 << 112 | 2, hop_limit: 64 };

    /// fd09::1 > fd09::2, echo request 0x0102/3 with "abc".
    const PING: [u8; 51] = [
        0x60, 0, 0, 0, 0, 11, 58, 64, 0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xfd, 9, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0x80, 0, 0xc0, 0x3b, 1, 2, 0, 3, b'a', b'b', b'c',
    ];

    fn packet(destination: u128, next_header: u8, payload: &[u8]) -> Vec<u8> {
        let payload_len = payload.len() as u16;
        let header =
            Ipv6Header { source: HOST, destination, next_header, payload_len, ..Ipv6Header::default() };
        let mut bytes = vec![0; 40];
        header.emit(&mut bytes).unwrap();
        bytes.extend(payload);
        bytes
    }

    fn verdict(bytes: &[u8], problem: Problem, link_group: bool) -> Result<(), Silence> {
        may_answer(&Ipv6::parse(bytes).unwrap(), &problem, link_group)
    }

    #[test]
    fn answers_an_echo_with_its_own_data() {
        let mut buffer = [0xff; 60];
        let host = Sender { source: HOST, hop_limit: 64 };
        assert_eq!(echo_request(&host, ROUTER.source, 0x0102, 3, b"abc", &mut buffer), Ok(51));
        assert_eq!(buffer[..51], PING);
        let ip = Ipv6::parse(&PING).unwrap();
        let request = Icmpv6::parse(ip.payload()).unwrap();
        assert!(request.checksum_ok(&ip.pseudo()) && !request.is_error());
        assert_eq!(echo_reply(&ROUTER, &ip, &request, &mut buffer), Ok(51));
        let answer = Ipv6::parse(&buffer[..51]).unwrap();
        let reply = Icmpv6::parse(answer.payload()).unwrap();
        assert!(reply.checksum_ok(&answer.pseudo()));
        assert_eq!((answer.source(), answer.destination()), (ROUTER.source, HOST));
        assert_eq!((reply.kind(), reply.id(), reply.sequence(), reply.data()), (129, 0x0102, 3, &b"abc"[..]));
        // The reply has the class of the request, which no checksum covers.
        let mut marked = PING;
        marked[..2].copy_from_slice(&[0x6b, 0x80]);
        assert_eq!(echo_reply(&ROUTER, &Ipv6::parse(&marked).unwrap(), &request, &mut buffer), Ok(51));
        assert_eq!(buffer[..4], [0x6b, 0x80, 0, 0]);
    }

    #[test]
    fn an_error_fits_every_link() {
        let original = packet(9, protocol::UDP, &[b'x'; 1400]);
        let original = Ipv6::parse(&original[..]).unwrap();
        let mut buffer = [0xff; 1300];
        assert_eq!(packet_too_big(1300).emit(&ROUTER, &original, &mut buffer), Ok(1280));
        let answer = Ipv6::parse(&buffer[..1280]).unwrap();
        let error = Icmpv6::parse(answer.payload()).unwrap();
        assert!(error.checksum_ok(&answer.pseudo()) && error.is_error());
        assert_eq!((error.kind(), error.code(), error.rest()), (2, 0, 1300));
        assert_eq!(error.data(), &original.packet()[..1232]);
        assert_eq!(packet_too_big(1000).rest, 1280);
        assert_eq!(
            time_exceeded(0).emit(&ROUTER, &original, &mut buffer[..9]),
            Err(NoRoom { needed: 1280, room: 9 })
        );
    }

    #[test]
    fn quotes_short_packets_whole() {
        let ip = Ipv6::parse(&PING).unwrap();
        let mut buffer = [0; 1280];
        for (problem, rest) in [
            (destination_unreachable(unreachable::PROHIBITED), 0),
            (parameter_problem(problem::FIELD, 42), 42),
            (time_exceeded(exceeded::IN_TRANSIT), 0),
        ] {
            assert_eq!(problem.emit(&ROUTER, &ip, &mut buffer), Ok(48 + 51));
            let error = Icmpv6::parse(&buffer[40..99]).unwrap();
            assert_eq!((error.kind(), error.code()), (problem.kind, problem.code));
            assert_eq!((error.rest(), error.data()), (rest, &PING[..]));
        }
    }

    #[test]
    fn no_error_for_errors_and_redirects() {
        for kind in 0..=u8::MAX {
            let silent = kind < 128 || kind == kind::REDIRECT;
            let expected = if silent { Err(Silence::IcmpError) } else { Ok(()) };
            let bytes = packet(9, protocol::ICMPV6, &[kind, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(verdict(&bytes, time_exceeded(0), false), expected, "type {kind}");
            // Behind a destination options header it is one all the same.
            let bytes = packet(9, 60, &[58, 0, 1, 4, 0, 0, 0, 0, kind, 0, 0, 0]);
            assert_eq!(verdict(&bytes, packet_too_big(1280), false), expected, "type {kind}");
        }
        assert_eq!(verdict(&packet(9, 58, &[]), time_exceeded(0), false), Err(Silence::IcmpError));
    }

    #[test]
    fn later_fragments_are_answered() {
        let later = [58, 0, 0, 9, 0, 0, 0, 7, 1, 0, 0, 0];
        assert_eq!(verdict(&packet(9, 44, &later), packet_too_big(1280), false), Ok(()));
        let first = [58, 0, 0, 1, 0, 0, 0, 7, 1, 0, 0, 0];
        assert_eq!(verdict(&packet(9, 44, &first), packet_too_big(1280), false), Err(Silence::IcmpError));
    }

    #[test]
    fn errors_to_groups_only_for_size_and_unknown_options() {
        let group = 0xff02 << 112 | 1;
        // Destination options: one unknown option, whose high bits are set to each of the four demands.
        for (demand, told) in [(0b00, false), (0b01, false), (0b10, true), (0b11, false)] {
            let to_group = |destination| packet(destination, 60, &[17, 0, demand << 6 | 0x1e, 4, 0, 0, 0, 0]);
            let expected = |silence| if told { Ok(()) } else { Err(silence) };
            let option = parameter_problem(problem::OPTION, 42);
            assert_eq!(verdict(&to_group(group), option, false), expected(Silence::Group));
            assert_eq!(verdict(&to_group(9), option, true), expected(Silence::LinkGroup));
            assert_eq!(verdict(&to_group(9), option, false), Ok(()));
        }
        let bytes = packet(group, protocol::UDP, &[0; 8]);
        assert_eq!(verdict(&bytes, packet_too_big(1280), true), Ok(()));
        for problem in [
            time_exceeded(0),
            destination_unreachable(0),
            parameter_problem(problem::FIELD, 42),
            parameter_problem(problem::FIELD, 6),
            parameter_problem(problem::OPTION, u32::MAX),
        ] {
            assert_eq!(verdict(&bytes, problem, false), Err(Silence::Group));
        }
    }

    #[test]
    fn no_error_to_sources_that_are_not_hosts() {
        for source in [0, 0xff02 << 112 | 1] {
            let mut ip = Ipv6::parse(packet(9, protocol::UDP, &[0; 8])).unwrap();
            ip.set_source(source);
            assert_eq!(may_answer(&ip, &packet_too_big(1280), false), Err(Silence::Source));
        }
    }
}
