//! The chain of IPv6 extension headers: a walk that ends, whatever the bytes are.
//!
//! ```text
//!    IPv6 ─► hop-by-hop ─► routing ─► fragment ─► AH ─► destination ─► UDP       `upper` stops here
//!             0             43         44          51    60             17
//! ```
//!
//! After the header of a later fragment comes an arbitrary piece of data, so the walk ends there. It also ends at
//! ESP, which hides what follows. Only the five headers above are extensions; others are upper layers.

use crate::bytes::{be16, be32};
use crate::malformed::Malformed;
use crate::protocol;

/// Extension headers that are walked. Hosts send two or three; a longer chain is an attack on the walk.
pub const MAX: usize = 8;

/// Kinds of hop-by-hop and destination options.
pub mod option {
    /// One byte of padding.
    pub const PAD1: u8 = 0;
    /// Several bytes of padding.
    pub const PADN: u8 = 1;
    /// Router Alert (RFC 2711).
    pub const ROUTER_ALERT: u8 = 5;
    /// Jumbo Payload (RFC 2675).
    pub const JUMBO: u8 = 0xc2;
}

/// One extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension<'a> {
    /// Its protocol number.
    pub kind: u8,
    /// Where it begins, from the packet's first byte.
    pub offset: usize,
    pub bytes: &'a [u8],
}

impl<'a> Extension<'a> {
    /// What follows it.
    pub fn next_header(&self) -> u8 {
        self.bytes[0]
    }

    /// Routing type and segments left, if it is a routing header.
    pub fn routing(&self) -> Option<(u8, u8)> {
        (self.kind == protocol::ROUTING).then(|| (self.bytes[2], self.bytes[3]))
    }

    /// Offset, flag and identification, if it is a fragment header.
    pub fn fragment(&self) -> Option<Fragment> {
        (self.kind == protocol::FRAGMENT).then(|| {
            let word = be16(&self.bytes[2..]);
            Fragment { offset: word & !7, more: word & 1 != 0, id: be32(&self.bytes[4..]) }
        })
    }

    /// Its options, if it can have any.
    pub fn options(&self) -> TypeLengthValues<'a> {
        let has = matches!(self.kind, protocol::HOP_BY_HOP | protocol::DESTINATION_OPTIONS);
        TypeLengthValues { bytes: if has { &self.bytes[2..] } else { &[] }, offset: self.offset + 2 }
    }
}

/// A fragment header's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Position of the piece in the whole packet, in bytes.
    pub offset: u16,
    /// Further fragments follow.
    pub more: bool,
    /// Identification, which fragments of one packet share.
    pub id: u32,
}

impl Fragment {
    /// Whether it is the whole packet by itself (RFC 6946).
    pub fn is_atomic(&self) -> bool {
        self.offset == 0 && !self.more
    }
}

/// What follows the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper {
    pub protocol: u8,
    /// Where it begins, from the packet's first byte. In a later fragment that is where its bytes begin.
    pub offset: usize,
    /// The fragment header, if there is one.
    pub fragment: Option<Fragment>,
}

impl Upper {
    /// Whether the bytes at `offset` are the start of the protocol's header, and not those of a later fragment.
    pub fn is_head(&self) -> bool {
        self.fragment.is_none_or(|fragment| fragment.offset == 0)
    }
}

/// A walk over extension headers. It ends before the upper layer, or after the first broken header.
#[derive(Clone, Debug)]
pub struct Extensions<'a> {
    packet: &'a [u8],
    next: u8,
    offset: usize,
    left: usize,
    fragment: Option<Fragment>,
}

impl<'a> Extensions<'a> {
    /// Walks from the fixed header of `packet`, whose next header is `next`.
    #[inline]
    pub(super) fn new(packet: &'a [u8], next: u8) -> Self {
        Self { packet, next, offset: super::HEADER_LEN, left: MAX, fragment: None }
    }

    /// Walks to the end and returns what is there.
    #[inline]
    pub fn upper(mut self) -> Result<Upper, Malformed> {
        for extension in self.by_ref() {
            extension?;
        }
        Ok(Upper { protocol: self.next, offset: self.offset, fragment: self.fragment })
    }

    fn step(&mut self) -> Result<Extension<'a>, Malformed> {
        self.left = self.left.checked_sub(1).ok_or(Malformed::Chain)?;
        let rest = self.packet.get(self.offset..).unwrap_or(&[]);
        let [_, units, ..] = *rest else { return Err(Malformed::Truncated) };
        let length = match self.next {
            protocol::FRAGMENT => 8,
            // RFC 4302 2.2: in words of 32 bits, minus 2.
            protocol::AUTHENTICATION => (usize::from(units) + 2) * 4,
            _ => (usize::from(units) + 1) * 8,
        };
        let bytes = rest.get(..length).ok_or(Malformed::Truncated)?;
        let extension = Extension { kind: self.next, offset: self.offset, bytes };
        self.fragment = extension.fragment().or(self.fragment);
        (self.next, self.offset) = (extension.next_header(), self.offset + length);
        Ok(extension)
    }

    fn is_at_extension(&self) -> bool {
        let later = self.fragment.is_some_and(|fragment| fragment.offset != 0);
        !later
            && matches!(
                self.next,
                protocol::HOP_BY_HOP
                    | protocol::ROUTING
                    | protocol::FRAGMENT
                    | protocol::AUTHENTICATION
                    | protocol::DESTINATION_OPTIONS
            )
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<Extension<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if !self.is_at_extension() {
            return None;
        }
        let step = self.step();
        if step.is_err() {
            self.next = protocol::NO_NEXT;
        }
        Some(step)
    }
}

/// One option of a hop-by-hop or destination options header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeLengthValue<'a> {
    /// The kind; its two high bits say what to do if it is unknown.
    pub kind: u8,
    /// Its offset from the start of the packet: what a Parameter Problem points to.
    pub offset: usize,
    pub value: &'a [u8],
}

/// A walk over options; padding is left out. It ends after the first broken length.
#[derive(Clone, Debug)]
pub struct TypeLengthValues<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> TypeLengthValues<'a> {
    fn skip(&mut self, length: usize) {
        self.bytes = self.bytes.get(length..).unwrap_or(&[]);
        self.offset += length;
    }
}

impl<'a> Iterator for TypeLengthValues<'a> {
    type Item = Result<TypeLengthValue<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (kind, length) = match *self.bytes {
                [] => return None,
                [option::PAD1, ..] => {
                    self.skip(1);
                    continue;
                }
                [kind, length, ..] => (kind, 2 + usize::from(length)),
                [_] => (0, usize::MAX),
            };
            let offset = self.offset;
            let Some(value) = self.bytes.get(2..length) else {
                self.bytes = &[];
                return Some(Err(Malformed::Option));
            };
            self.skip(length);
            if kind != option::PADN {
                return Some(Ok(TypeLengthValue { kind, offset, value }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Ipv6, Ipv6Header};
    use super::*;

    fn packet(next_header: u8, payload: &[u8]) -> Vec<u8> {
        let header = Ipv6Header { next_header, payload_len: payload.len() as u16, ..Default::default() };
        let mut bytes = vec![0; 40];
        header.emit(&mut bytes).unwrap();
        bytes.extend(payload);
        bytes
    }

    fn upper(next_header: u8, payload: &[u8]) -> Result<Upper, Malformed> {
        Ipv6::parse(packet(next_header, payload)).unwrap().upper()
    }

    fn at(protocol: u8, offset: usize) -> Result<Upper, Malformed> {
        Ok(Upper { protocol, offset, fragment: None })
    }

    /// Hop-by-hop with a Router Alert for MLD, then a routing header of type 0 with one segment left, then an
    /// authentication header with an ICV of 12 bytes, then destination options (padding), then ICMPv6.
    const CHAIN: [u8; 72] = [
        43, 0, 5, 2, 0, 0, 1, 0, // hop-by-hop
        51, 2, 0, 1, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, // routing
        60, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, // AH
        58, 0, 0, 1, 2, 0, 0, 0, // destination options
        128, 0, 0, 0, 0, 1, 0, 1, // echo request
    ];

    #[test]
    fn walks_all_five_headers() {
        assert_eq!(upper(0, &CHAIN), at(58, 40 + 64));
        let bytes = packet(0, &CHAIN);
        let ip = Ipv6::parse(&bytes).unwrap();
        let all: Vec<_> = ip.extensions().map(Result::unwrap).collect();
        let found: Vec<_> = all.iter().map(|extension| (extension.kind, extension.offset)).collect();
        assert_eq!(found, [(0, 40), (43, 48), (51, 72), (60, 96)]);
        assert_eq!(all[1].routing(), Some((0, 1)));
        assert_eq!((all[0].routing(), all[0].fragment()), (None, None));
        let alert = TypeLengthValue { kind: option::ROUTER_ALERT, offset: 42, value: &[0, 0] };
        assert_eq!(all[0].options().collect::<Vec<_>>(), [Ok(alert)]);
        assert_eq!((all[3].options().next(), all[2].options().next()), (None, None));
    }

    #[test]
    fn stops_at_upper_layers_and_the_unknown() {
        for protocol in [6, 17, 50, 58, 59, 200] {
            assert_eq!(upper(protocol, &[0; 8]), at(protocol, 40));
        }
    }

    /// RFC 8200 4.5: the second byte is reserved and ignored; it is not a length as in other headers.
    #[test]
    fn fragment_headers_have_eight_bytes_whatever_the_reserved_field() {
        let fragment = Some(Fragment { offset: 0, more: true, id: 7 });
        let found = upper(44, &[17, 0xff, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(found, Ok(Upper { protocol: 17, offset: 48, fragment }));
    }

    #[test]
    fn only_whole_packets_are_atomic_fragments() {
        let is_atomic = |offset, more| Fragment { offset, more, id: 7 }.is_atomic();
        assert!(is_atomic(0, false));
        assert!(!is_atomic(0, true) && !is_atomic(8, false) && !is_atomic(8, true));
    }

    #[test]
    fn stops_behind_a_later_fragment() {
        // Offset 8, more to come, then bytes that look like an options header.
        let later = [60, 0, 0, 9, 0, 0, 0, 7, 17, 0, 0, 0, 0, 0, 0, 0];
        let fragment = Some(Fragment { offset: 8, more: true, id: 7 });
        let found = upper(44, &later).unwrap();
        assert_eq!(found, Upper { protocol: 60, offset: 48, fragment });
        assert!(!found.is_head());
        let first = [60, 0, 0, 1, 0, 0, 0, 7, 17, 0, 1, 4, 0, 0, 0, 0, 1, 2];
        let found = upper(44, &first).unwrap();
        assert!(found.is_head() && (found.protocol, found.offset) == (17, 56));
        let atomic = upper(44, &[6, 0, 0, 0, 0, 0, 0, 7]).unwrap();
        assert!(atomic.fragment.unwrap().is_atomic());
    }

    #[test]
    fn stops_at_broken_and_endless_chains() {
        assert_eq!(upper(0, &[17]), Err(Malformed::Truncated));
        assert_eq!(upper(0, &[17, 1, 0, 0, 0, 0, 0, 0]), Err(Malformed::Truncated));
        assert_eq!(upper(44, &[17, 0, 0, 0]), Err(Malformed::Truncated));
        let mut nine = [60, 0, 1, 4, 0, 0, 0, 0].repeat(9);
        assert_eq!(upper(60, &nine), Err(Malformed::Chain));
        nine[7 * 8] = 17;
        assert_eq!(upper(60, &nine), at(17, 40 + 64));
        let bytes = packet(60, &[60, 9]);
        assert_eq!(Ipv6::parse(&bytes).unwrap().extensions().count(), 1, "one error, then the end");
    }

    #[test]
    fn stops_at_broken_options() {
        let options = |bytes: &[u8]| {
            Extension { kind: 60, offset: 40, bytes }
                .options()
                .map(|option| option.is_ok())
                .collect::<Vec<_>>()
        };
        assert_eq!(options(&[17, 0, 0, 0, 0, 0, 0, 5]), [false]);
        assert_eq!(options(&[17, 0, 5, 5, 0, 0, 0, 0]), [false]);
        assert_eq!(options(&[17, 0, 0xc2, 4, 0, 1, 0, 0]), [true]);
    }
}
