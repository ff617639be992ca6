//! The key of a frame for the rules. The kernel path's `filter_key` (crates/fastpath/bpf/key.h) does the same, byte
//! by byte, and a test compares the two.

use bm_filter::{Header, Key, Kind};
use bm_wire::Family;
use bm_wire::ethernet::{HEADER_LEN, ethertype};
use bm_wire::protocol::{self, has_ports};

/// A frame as filters see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameKey {
    pub key: Key,
    /// A fragment too small for the headers that rules match (RFC 1858, RFC 3128, RFC 7112).
    pub tiny: bool,
}

/// Bytes of a TCP header up to and including its flags, which a first fragment must contain (RFC 1858).
const TCP_FLAGS_END: usize = 16;
/// Tags that are looked through.
const TAGS: usize = 2;
const TAG_LEN: usize = 4;
/// Extension headers that are looked through.
const EXTENSIONS: usize = 8;
const MORE: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

/// The frame's key, without its interface; `None` if rules do not apply: not IP, or too malformed for any router to
/// forward.
pub(crate) fn frame_key(frame: &[u8]) -> Option<FrameKey> {
    let (mut at, mut kind) = (HEADER_LEN, be16(frame, 12)?);
    for _ in 0..TAGS {
        if !is_tag(kind) {
            break;
        }
        kind = be16(frame, at + 2)?;
        at += TAG_LEN;
    }
    match kind {
        ethertype::IPV4 => ipv4(frame.get(at..)?),
        ethertype::IPV6 => ipv6(frame.get(at..)?),
        _ => None,
    }
}

/// IPv4 packets without options and of at least so many bytes have a complete transport header.
pub(crate) const COMPLETE: u16 = 20 + TRANSPORT_MAX;

/// The header of such a frame as [`plain_ipv4`] has, and ports where there are any; `None` if the packet might be shorter
/// than its transport header, which must be complete.
#[inline(always)]
pub(crate) fn plain_header(frame: &[u8], length: u16) -> Option<&Header> {
    frame.get(HEADER_LEN..)?.first_chunk().filter(|_| length >= COMPLETE)
}

/// Writes the key of an untagged IPv4 frame whose packet of `length` bytes has no options, is no fragment, and is within
/// the frame. `to` holds the key of another such frame, or an empty one. Returns `false` if the frame needs a closer look.
#[inline(always)]
pub(crate) fn plain_ipv4(frame: &[u8], length: u16, to: &mut Key) -> bool {
    let Some(packet) = plain_header(frame, length) else {
        return frame_key(frame).map(|FrameKey { key, .. }| *to = key).is_some();
    };
    set_header(packet, to);
    true
}

/// The key of such a frame.
pub(crate) fn of_header(header: &Header) -> Key {
    let mut key = Key::empty(Family::V4);
    set_header(header, &mut key);
    key
}

#[inline(always)]
fn word(header: &Header, at: usize) -> u32 {
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

#[inline(always)]
fn set_header(header: &Header, to: &mut Key) {
    let kind = Kind::of(header[9]);
    let ports = if kind == Kind::Ports { word(header, 20) } else { 0 };
    to.set_ipv4([word(header, 12), word(header, 16)], header[9], ports, kind);
}

/// Writes the key of a plain IPv6 packet over that of another one; `false` if the frame must be looked at by itself.
#[inline(always)]
pub(crate) fn plain_ipv6(frame: &[u8], to: &mut Key) -> bool {
    let asked = frame.get(HEADER_LEN..).and_then(ipv6).filter(|asked| !asked.tiny);
    asked.map(|FrameKey { key, .. }| *to = key).is_some()
}

/// Whether a frame has more tags than are looked through. Linux removes as many as there are, if their VLAN is 0 or has
/// an interface.
pub(crate) fn has_too_many_tags(frame: &[u8]) -> bool {
    (0..=TAGS).all(|tag| be16(frame, HEADER_LEN - 2 + TAG_LEN * tag).is_some_and(is_tag))
}

/// Whether a type says that a tag follows (802.1Q, 802.1ad).
pub(crate) fn is_tag(kind: u16) -> bool {
    kind == ethertype::VLAN || kind == ethertype::SERVICE_VLAN
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Ports at an offset, source port in the high half, if the protocol has any and they are within `room` bytes.
fn ports(packet: &[u8], protocol: u8, at: usize, room: usize) -> (Kind, u32) {
    let ports = (has_ports(protocol) && room >= 4).then(|| be32(packet, at)).flatten();
    ports.map_or((Kind::None, 0), |ports| (Kind::Ports, ports))
}

fn ipv4(packet: &[u8]) -> Option<FrameKey> {
    let header: &[u8; 20] = packet.first_chunk()?;
    let (header_len, length) = (usize::from(header[0] & 0xf) * 4, usize::from(be16(header, 2)?));
    if header[0] >> 4 != 4 || header_len < header.len() || length < header_len {
        return None;
    }
    let (protocol, fragment) = (header[9], be16(header, 6)?);
    let addresses = [be32(header, 12)?, be32(header, 16)?];
    let key = |(kind, ports)| Key::ipv4(addresses, protocol, ports, kind);
    if fragment & OFFSET != 0 {
        // At offset 1 it would overwrite the flags (RFC 3128).
        let tiny = protocol == protocol::TCP && fragment & OFFSET == 1;
        return Some(FrameKey { key: key((Kind::Later, 0)), tiny });
    }
    let room = length - header_len;
    let tiny = protocol == protocol::TCP && fragment & MORE != 0 && room < TCP_FLAGS_END;
    let key = key(ports(packet, protocol, header_len, room));
    Some(FrameKey { key: if room < least_of(protocol) { key.with_truncated_header() } else { key }, tiny })
}

fn ipv6(packet: &[u8]) -> Option<FrameKey> {
    let header: &[u8; 40] = packet.first_chunk()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let mut addresses = [0; 8];
    for (word, bytes) in addresses.iter_mut().zip(header[8..].as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    let room = usize::from(be16(header, 4)?);
    let chain = follow(packet, header[6], room);
    let key = Key::ipv6(addresses, chain.protocol, chain.ports, chain.kind);
    let key = if is_extension(header[6]) {
        key.with_extensions()
    } else if room < least_of(header[6]) {
        key.with_truncated_header()
    } else {
        key
    };
    Some(FrameKey { key, tiny: chain.tiny })
}

/// The result of following a chain of extension headers.
struct Chain {
    protocol: u8,
    kind: Kind,
    ports: u32,
    tiny: bool,
}

fn is_extension(next: u8) -> bool {
    matches!(
        next,
        protocol::HOP_BY_HOP
            | protocol::ROUTING
            | protocol::DESTINATION_OPTIONS
            | protocol::FRAGMENT
            | protocol::AUTHENTICATION
    )
}

/// The greatest of [`least_of`].
const TRANSPORT_MAX: u16 = 20;

/// The least length of a transport header, which a first fragment of IPv6 must contain (RFC 7112).
fn least_of(protocol: u8) -> usize {
    match protocol {
        protocol::TCP => 20,
        protocol::UDP | protocol::ICMPV6 => 8,
        _ => 0,
    }
}

/// Follows a chain of `room` bytes after the IPv6 header. If that cannot be done to its end, the last next header
/// counts as the protocol, without ports.
fn follow(packet: &[u8], mut next: u8, mut room: usize) -> Chain {
    let (mut at, mut first) = (40, false);
    let cut = |protocol, tiny| Chain { protocol, kind: Kind::None, ports: 0, tiny };
    for _ in 0..EXTENSIONS {
        if !is_extension(next) {
            break;
        }
        let Some([after, units, rest @ ..]) = packet.get(at..).and_then(|header| header.first_chunk::<4>())
        else {
            return cut(next, first);
        };
        if room < 8 {
            return cut(next, first);
        }
        let mut size = match next {
            protocol::AUTHENTICATION => usize::from(*units) * 4 + 8,
            _ => usize::from(*units) * 8 + 8,
        };
        if next == protocol::FRAGMENT {
            size = 8;
            let rest = u16::from_be_bytes(*rest);
            first = rest & 1 == 1;
            if rest & 0xfff8 != 0 {
                return Chain { kind: Kind::Later, ..cut(*after, false) };
            }
        }
        next = *after;
        at += size;
        if size > room {
            return cut(next, first);
        }
        room -= size;
    }
    let tiny = first && (is_extension(next) || room < least_of(next));
    let (kind, ports) = ports(packet, next, at, room);
    Chain { protocol: next, kind, ports, tiny }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// UDP from port 80 to 53 in a fragment with these two bytes of offset and flag.
    fn fragment(offset: u16) -> Vec<u8> {
        let [high, low] = offset.to_be_bytes();
        let extension = [protocol::UDP, 0, high, low, 0, 0, 0, 1];
        [&[0; 40][..], &extension, &[0, 80, 0, 53, 0, 8, 0, 0]].concat()
    }

    #[test]
    fn later_fragments_of_ipv6_are_of_a_kind_of_their_own() {
        let of = |offset| {
            let Chain { protocol, kind, ports, tiny } = follow(&fragment(offset), protocol::FRAGMENT, 16);
            (protocol, kind, ports, tiny)
        };
        for first in [0, 1] {
            assert_eq!(of(first), (protocol::UDP, Kind::Ports, 80 << 16 | 53, false));
        }
        for later in [8, 9, 0xfff8] {
            assert_eq!(of(later), (protocol::UDP, Kind::Later, 0, false));
        }
    }
}
