//! ICMP for IPv4 (RFC 792): reading messages, and building those that a router must send (RFC 1812 4.3).
//!
//! ```text
//!    may_answer(original)?  ─►  time_exceeded(..)            ─►  emit: IPv4 │ ICMP │ original, cut
//!    no: say why, count         destination_unreachable(..)            20      8     at 576 in all
//!                               parameter_problem(..)
//! ```
//!
//! The source address, rate limits, and checks that need tables (directed broadcasts) are up to the caller.

use crate::bytes::{be16, be32, put16, put32};
use crate::checksum;
use crate::ipv4::{self, Ipv4, Ipv4Header};
use crate::malformed::{Malformed, NoRoom, room};
use crate::protocol;

mod at {
    use std::ops::Range;
    pub const KIND: usize = 0;
    pub const CODE: usize = 1;
    pub const CHECKSUM: Range<usize> = 2..4;
    /// Depends on the kind: identifier and sequence, pointer, or MTU.
    pub const REST: Range<usize> = 4..8;
    pub const DATA: usize = 8;
}

/// Bytes before the data.
pub const HEADER_LEN: usize = at::DATA;
/// Bytes of the longest error, IPv4 header included (RFC 1812 4.3.2.3).
pub const ERROR_LEN_MAX: usize = 576;

/// Precedence of an error: internetwork control, as Linux sends it (RFC 1812 4.3.2.5 allows 6 or 7).
const INTERNETWORK_CONTROL: u8 = 0xc0;
/// Bits of the original's type of service that its error keeps in Linux: all but precedence and the last.
const TOS_KEPT: u8 = 0x1e;

/// Types.
pub mod kind {
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable; codes in `unreachable`.
    pub const DESTINATION_UNREACHABLE: u8 = 3;
    /// Source quench, which is obsolete (RFC 6633).
    pub(crate) const SOURCE_QUENCH: u8 = 4;
    pub const REDIRECT: u8 = 5;
    pub const ECHO_REQUEST: u8 = 8;
    /// Time exceeded; codes in `exceeded`.
    pub const TIME_EXCEEDED: u8 = 11;
    pub(crate) const PARAMETER_PROBLEM: u8 = 12;
    /// Timestamp request.
    pub const TIMESTAMP: u8 = 13;
    /// Last type of RFC 792 and 950; types above may be errors.
    pub(crate) const LAST_KNOWN: u8 = 18;
}

/// Codes of "destination unreachable".
pub mod unreachable {
    /// There is no route to the network.
    pub const NETWORK: u8 = 0;
    /// There is a route, but the host does not answer.
    pub const HOST: u8 = 1;
    /// The host lacks the protocol.
    pub const PROTOCOL: u8 = 2;
    /// Nothing listens on the port.
    pub const PORT: u8 = 3;
    /// Too big, and DF is set; carries the next hop's MTU (RFC 1191).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Prohibited by a filter or a `prohibit` route (RFC 1812).
    pub const ADMINISTRATIVELY_PROHIBITED: u8 = 13;
}

/// Codes of "time exceeded".
pub mod exceeded {
    /// No hops were left in transit.
    pub const IN_TRANSIT: u8 = 0;
}

/// An ICMP message: the payload of its packet. Its existence proves that the eight header bytes are present.
#[derive(Clone, Copy, Debug)]
pub struct Icmp<B>(B);

impl<B: AsRef<[u8]>> Icmp<B> {
    /// Checks the length; the checksum is `checksum_ok`'s.
    #[inline]
    pub fn parse(message: B) -> Result<Self, Malformed> {
        if message.as_ref().len() < HEADER_LEN { Err(Malformed::Short) } else { Ok(Self(message)) }
    }

    /// Whether the checksum is right.
    pub fn checksum_ok(&self) -> bool {
        checksum::checksum(self.0.as_ref()) == 0
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

    /// The second word, whose meaning depends on the type.
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

    /// Next hop's MTU in "fragmentation needed".
    pub fn mtu(&self) -> u16 {
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

/// Whether a type is an error (RFC 1122 3.2.2).
#[inline]
pub fn is_error(kind: u8) -> bool {
    matches!(
        kind,
        kind::DESTINATION_UNREACHABLE
            | kind::SOURCE_QUENCH
            | kind::REDIRECT
            | kind::TIME_EXCEEDED
            | kind::PARAMETER_PROBLEM
    )
}

/// Why no error may be sent about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Silence {
    /// It is an error itself, or may be one: errors about errors would never end.
    IcmpError,
    /// It is a fragment other than the first.
    LaterFragment,
    /// It was sent to a group or to all.
    Group,
    /// Its frame was multicast or broadcast.
    LinkGroup,
    /// Its source is not a single host.
    Source,
}

/// Whether an error may be sent about `original` (RFC 1812 4.3.2.7), and if not, why.
///
/// `link_group` says that its frame was multicast or broadcast; a caller that knows the destination to be a directed
/// broadcast sets it as well.
pub fn may_answer<B: AsRef<[u8]>>(original: &Ipv4<B>, link_group: bool) -> Result<(), Silence> {
    let destination = original.destination();
    match () {
        () if link_group => Err(Silence::LinkGroup),
        () if ipv4::is_multicast(destination) || destination == u32::MAX => Err(Silence::Group),
        () if !ipv4::is_single_host(original.source()) => Err(Silence::Source),
        () if original.fragment_offset() != 0 => Err(Silence::LaterFragment),
        () if original.protocol() == protocol::ICMP && !is_known_query(original.payload()) => {
            Err(Silence::IcmpError)
        }
        () => Ok(()),
    }
}

/// As in Linux: a type that is unknown or truncated may be an error.
fn is_known_query(message: &[u8]) -> bool {
    message.first().is_some_and(|kind| *kind <= kind::LAST_KNOWN && !is_error(*kind))
}

/// The sender of a message, and its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Source address.
    pub source: u32,
    /// TTL that it starts with (Linux: `ip_default_ttl`).
    pub ttl: u8,
    /// Identification of its packet.
    pub id: u16,
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

/// Time exceeded, with a code of `exceeded`.
pub fn time_exceeded(code: u8) -> Problem {
    Problem { kind: kind::TIME_EXCEEDED, code, rest: 0 }
}

/// Destination unreachable, with a code of `unreachable`; the MTU counts where fragmentation was needed.
pub fn destination_unreachable(code: u8, mtu: u16) -> Problem {
    let rest = if code == unreachable::FRAGMENTATION_NEEDED { u32::from(mtu) } else { 0 };
    Problem { kind: kind::DESTINATION_UNREACHABLE, code, rest }
}

/// Parameter problem at the byte `pointer` of the header.
pub fn parameter_problem(pointer: u8) -> Problem {
    Problem { kind: kind::PARAMETER_PROBLEM, code: 0, rest: u32::from(pointer) << 24 }
}

impl Problem {
    /// Writes the whole packet that reports the error to the source of `original`; returns its length.
    ///
    /// The original is quoted as it arrived, with its options, without padding, up to 576 bytes in total (RFC 1812
    /// 4.3.2.3). Its type of service is handled as in Linux: precedence raised, delay bits and ECN kept.
    pub fn emit<B: AsRef<[u8]>>(
        &self,
        sender: &Sender,
        original: &Ipv4<B>,
        buffer: &mut [u8],
    ) -> Result<usize, NoRoom> {
        let quote = original.packet();
        let quote = &quote[..quote.len().min(ERROR_LEN_MAX - ipv4::HEADER_LEN - HEADER_LEN)];
        let tos = INTERNETWORK_CONTROL | original.tos() & TOS_KEPT;
        let header = [self.kind, self.code];
        emit(sender, original.source(), tos, header, self.rest, quote, buffer)
    }
}

/// Writes the whole packet that answers an echo request; returns its length.
///
/// `ip` and `request` are the packet and its payload. Type of service, identifier, sequence and data come
/// back as they were (RFC 1122 3.2.2.6); options do not.
pub fn echo_reply<A: AsRef<[u8]>, B: AsRef<[u8]>>(
    sender: &Sender,
    ip: &Ipv4<A>,
    request: &Icmp<B>,
    buffer: &mut [u8],
) -> Result<usize, NoRoom> {
    let header = [kind::ECHO_REPLY, 0];
    emit(sender, ip.source(), ip.tos(), header, request.rest(), request.data(), buffer)
}

/// Writes the whole packet of an echo request; returns its length.
pub fn echo_request(
    sender: &Sender,
    destination: u32,
    id: u16,
    sequence: u16,
    data: &[u8],
    buffer: &mut [u8],
) -> Result<usize, NoRoom> {
    let rest = u32::from(id) << 16 | u32::from(sequence);
    emit(sender, destination, 0, [kind::ECHO_REQUEST, 0], rest, data, buffer)
}

fn emit(
    sender: &Sender,
    destination: u32,
    tos: u8,
    [kind, code]: [u8; 2],
    rest: u32,
    data: &[u8],
    buffer: &mut [u8],
) -> Result<usize, NoRoom> {
    let length = ipv4::HEADER_LEN + HEADER_LEN + data.len();
    // Data comes from a packet or from a caller; data too large for any packet does not fit into any buffer.
    let total_len =
        u16::try_from(length).map_err(|_| NoRoom { needed: length, room: ipv4::TOTAL_LEN_MAX })?;
    let packet = room(buffer, length)?;
    let header = Ipv4Header {
        tos,
        total_len,
        id: sender.id,
        ttl: sender.ttl,
        protocol: protocol::ICMP,
        source: sender.source,
        destination,
        ..Ipv4Header::default()
    };
    let header_len = header.emit(packet)?;
    let message = &mut packet[header_len..];
    message[at::KIND] = kind;
    message[at::CODE] = code;
    put16(&mut message[at::CHECKSUM], 0);
    put32(&mut message[at::REST], rest);
    message[at::DATA..].copy_from_slice(data);
    let checksum = checksum::checksum(message);
    put16(&mut message[at::CHECKSUM], checksum);
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTER: Sender = Sender { source: 0x0a09_0002, ttl: 64, id: 0xafa9 };
    /// 10.9.0.1 > 10.10.0.9, UDP with DF and 1,400 bytes, as Linux quoted it; and Linux's own error about it.
    const TOO_BIG: [u8; 32] = [
        0x45, 0, 0x05, 0x94, 0, 0, 0x40, 0, 0x40, 0x11, 0x21, 0x3d, 0x0a, 9, 0, 1, 0x0a, 0x0a, 0, 9, 0x8d, 8,
        0, 0x63, 5, 0x80, 0x19, 0xae, b'x', b'x', b'x', b'x',
    ];
    const LINUX_ERROR: [u8; 60] = [
        0x45, 0xc0, 0x02, 0x40, 0xaf, 0xa9, 0, 0, 0x40, 0x01, 0xb4, 0x3f, 0x0a, 9, 0, 2, 0x0a, 9, 0, 1, 3, 4,
        0xf0, 0xf3, 0, 0, 5, 0x14, 0x45, 0, 5, 0x94, 0, 0, 0x40, 0, 0x40, 0x11, 0x21, 0x3d, 0x0a, 9, 0, 1,
        0x0a, 0x0a, 0, 9, 0x8d, 8, 0, 0x63, 5, 0x80, 0x19, 0xae, b'x', b'x', b'x', b'x',
    ];
    /// 192.0.2.1 > 192.0.2.2, echo request 0x0102/3 with "abc", type of service 0x28.
    const PING: [u8; 31] = [
        0x45, 0x28, 0, 31, 0, 9, 0, 0, 64, 1, 0xf6, 0xa9, 192, 0, 2, 1, 192, 0, 2, 2, 8, 0, 0x32, 0x98, 1, 2,
        0, 3, b'a', b'b', b'c',
    ];

    fn too_big() -> Vec<u8> {
        let mut original = vec![b'x'; 0x594];
        original[..32].copy_from_slice(&TOO_BIG);
        original
    }

    #[test]
    fn builds_the_error_that_linux_builds() {
        let original = too_big();
        let original = Ipv4::parse(&original[..]).unwrap();
        let mut buffer = [0xff; 600];
        let problem = destination_unreachable(unreachable::FRAGMENTATION_NEEDED, 1300);
        assert_eq!(problem.emit(&ROUTER, &original, &mut buffer), Ok(576));
        assert_eq!(buffer[..60], LINUX_ERROR);
        assert!(buffer[60..576].iter().all(|byte| *byte == b'x'));
        let error = Icmp::parse(&buffer[20..576]).unwrap();
        assert!(error.checksum_ok() && error.is_error());
        assert_eq!((error.mtu(), error.checksum()), (1300, 0xf0f3));
        assert_eq!(
            problem.emit(&ROUTER, &original, &mut buffer[..575]),
            Err(NoRoom { needed: 576, room: 575 })
        );
    }

    #[test]
    fn quotes_short_packets_whole_and_without_padding() {
        let mut padded = [0xaa; 60];
        padded[..31].copy_from_slice(&PING);
        let mut buffer = [0xff; 600];
        let original = Ipv4::parse(padded).unwrap();
        assert_eq!(time_exceeded(exceeded::IN_TRANSIT).emit(&ROUTER, &original, &mut buffer), Ok(28 + 31));
        let ip = Ipv4::parse(&buffer[..59]).unwrap();
        // Precedence 1 of 0x28 gives way to 6, the delay bits stay.
        assert_eq!((ip.tos(), ip.destination(), ip.checksum_ok()), (0xc8, original.source(), true));
        let error = Icmp::parse(ip.payload()).unwrap();
        assert_eq!((error.kind(), error.code(), error.rest(), error.data()), (11, 0, 0, &PING[..]));
        assert_eq!(parameter_problem(20).emit(&ROUTER, &original, &mut buffer), Ok(59));
        assert_eq!(buffer[20..28], [12, 0, 0xdf, 0xff, 20, 0, 0, 0]);
    }

    #[test]
    fn answers_an_echo_with_its_own_data() {
        let ip = Ipv4::parse(&PING[..]).unwrap();
        let request = Icmp::parse(ip.payload()).unwrap();
        assert!(ip.checksum_ok() && request.checksum_ok());
        let mut buffer = [0; 64];
        let us = Sender { source: ip.destination(), ttl: 64, id: 7 };
        assert_eq!(echo_reply(&us, &ip, &request, &mut buffer), Ok(31));
        let answer = Ipv4::parse(&buffer[..31]).unwrap();
        assert_eq!((answer.source(), answer.destination(), answer.tos()), (0xc000_0202, 0xc000_0201, 0x28));
        let reply = Icmp::parse(answer.payload()).unwrap();
        assert!(reply.checksum_ok());
        assert_eq!((reply.kind(), reply.id(), reply.sequence(), reply.data()), (0, 0x0102, 3, &b"abc"[..]));
        let us = Sender { source: ip.source(), ttl: 64, id: 9 };
        assert_eq!(echo_request(&us, ip.destination(), 0x0102, 3, b"abc", &mut buffer), Ok(31));
        assert_eq!(buffer[20..31], PING[20..]);
        let needed = 65_536;
        assert_eq!(
            echo_request(&us, 1, 0, 0, &vec![0; 65_508], &mut vec![0; 70_000]),
            Err(NoRoom { needed, room: 65_535 })
        );
    }

    fn verdict(link_group: bool, change: impl Fn(&mut [u8; 31])) -> Result<(), Silence> {
        let mut packet = PING;
        change(&mut packet);
        may_answer(&Ipv4::parse(packet).unwrap(), link_group)
    }

    #[test]
    fn no_error_for_errors() {
        assert_eq!(verdict(false, |_| ()), Ok(()));
        for kind in 0..=u8::MAX {
            let silent = matches!(kind, 3 | 4 | 5 | 11 | 12) || kind > 18;
            let expected = if silent { Err(Silence::IcmpError) } else { Ok(()) };
            assert_eq!(verdict(false, |packet| packet[20] = kind), expected, "type {kind}");
        }
        assert_eq!(verdict(false, |packet| packet[3] = 20), Err(Silence::IcmpError), "no type to see");
    }

    #[test]
    fn no_error_for_later_fragments_groups_and_invalid_sources() {
        assert_eq!(verdict(false, |packet| packet[6] = 0x20), Ok(()), "first fragment");
        assert_eq!(verdict(false, |packet| packet[7] = 1), Err(Silence::LaterFragment));
        assert_eq!(verdict(true, |_| ()), Err(Silence::LinkGroup));
        assert_eq!(verdict(false, |packet| packet[16] = 224), Err(Silence::Group));
        assert_eq!(verdict(false, |packet| packet[16..20].fill(255)), Err(Silence::Group));
        for source in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [240, 0, 0, 1], [255; 4]] {
            let changed = verdict(false, |packet| packet[12..16].copy_from_slice(&source));
            assert_eq!(changed, Err(Silence::Source), "{source:?}");
        }
    }

    #[test]
    fn a_header_alone_is_a_message() {
        assert!(Icmp::parse([0; HEADER_LEN]).is_ok());
        assert_eq!(Icmp::parse([0; HEADER_LEN - 1]).err(), Some(Malformed::Short));
    }
}
