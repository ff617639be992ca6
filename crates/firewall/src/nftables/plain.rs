//! Which fields are the same in all packets of a flow, and which of their bits are known.
//!
//! Flows are followed for plain packets only: TCP with ACK, without SYN, FIN, RST and URG; UDP; IPv4 without options and
//! not a fragment; IPv6 with TCP or UDP directly behind its header.

use super::field::{Field, NETWORK_HEADER, TRANSPORT_HEADER, meta, op};
use super::step::{States, Step};
use bm_wire::{Family, protocol};

/// Keys of `meta` that are the same in all packets of a flow: protocol, mark, interfaces with their types, security mark,
/// type of the frame, bridges, groups and kinds of interfaces, the interface of a VRF's member.
const SAME_META: [u32; 21] = [1, 3, 4, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17, 18, 19, 21, 22, 26, 27, 33, 34];
/// Keys of `ct`, likewise: all but its age, what it has counted, and those of tomorrow.
const SAME_CT: [u32; 19] = [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 17, 19, 20, 21, 22, 24];
/// Keys of `ct` that are looked at.
pub(super) mod ct {
    pub const STATE: u32 = 0;
    pub const STATUS: u32 = 2;
    pub(crate) const MARK: u32 = 3;
    pub(crate) const LABELS: u32 = 13;
}
/// The bit of `ct status` that a connection gets only after a while (`IPS_ASSURED`).
pub(super) const ASSURED: u32 = 1 << 2;
/// Flags of TCP that are known: FIN, SYN, RST, ACK, URG; of these only ACK is set.
const FLAGS: Byte = Byte { same: 0x37, known: 0x37, value: 0x10 };

/// What is known about the packets that a comparison sees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub family: Option<Family>,
    pub protocol: Option<u8>,
}

/// The bits of a byte that are the same in all plain packets of a flow, and those that are known.
#[derive(Clone, Copy, Debug)]
struct Byte {
    same: u8,
    known: u8,
    value: u8,
}

impl Byte {
    const SAME: Self = Self { same: 0xff, known: 0, value: 0 };
    const VARIES: Self = Self { same: 0, known: 0, value: 0 };

    const fn known(value: u8) -> Self {
        Self { same: 0xff, known: 0xff, value }
    }
}

/// Whether a field has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Equality {
    Never,
    Always,
    /// In all packets of a flow or in none.
    Same,
    Varies,
}

/// Whether plain packets have this protocol: TCP or UDP.
pub(super) fn is_plain(next: &[u8]) -> bool {
    [[protocol::TCP], [protocol::UDP]].iter().any(|plain| plain == next)
}

/// Whether a field may differ between packets of a flow.
pub(super) fn varies(field: &Field, packet: Packet) -> bool {
    match field {
        Field::Meta(key) => !SAME_META.contains(key),
        Field::Connection { key: ct::STATUS, mask, .. } => mask & ASSURED != 0,
        Field::Connection { key, .. } => !SAME_CT.contains(key),
        Field::Header { base, offset, mask, .. } => {
            let mut bytes = mask.iter().zip(*offset..);
            bytes.any(|(mask, at)| mask & !byte(*base, at, packet).same != 0)
        }
        Field::Absent | Field::Same | Field::Derived => false,
        Field::Unknown => true,
    }
}

/// Whether it is the same for a later packet if a mark that the field may come from has been set to it.
pub(super) fn is_settled(field: &Field, packet: Packet) -> bool {
    let changes = match field {
        Field::Derived => true,
        Field::Connection { mask, xor, .. } => mask & xor != 0,
        _ => false,
    };
    !changes && !varies(field, packet)
}

/// Whether a rule may set the field.
pub(super) fn is_mark(field: &Field) -> bool {
    match field {
        Field::Meta(meta::MARK) | Field::Derived => true,
        Field::Connection { key, .. } => [ct::MARK, ct::LABELS].contains(key),
        _ => false,
    }
}

/// Whether a field is the protocol.
pub(super) fn is_protocol(field: &Field, packet: Packet) -> bool {
    match field {
        Field::Meta(key) => *key == meta::L4PROTO,
        Field::Header { base: NETWORK_HEADER, offset, mask, xor } => {
            let at = packet.family.map(|family| if family == Family::V4 { 9 } else { 6 });
            at == Some(*offset) && mask[..] == [0xff] && xor[..] == [0]
        }
        _ => false,
    }
}

/// A comparison of a field with a value.
pub(super) fn compared(field: &Field, operation: u32, data: &[u8], packet: Packet) -> Step {
    let equal = match operation {
        op::EQ => true,
        op::NEQ => false,
        _ if varies(field, packet) => return Step::Varies,
        _ => return Step::SOME,
    };
    if let (Field::Connection { key: ct::STATE, mask, xor }, Ok(value)) = (field, data.try_into()) {
        let value = u32::from_ne_bytes(value);
        return Step::within(States::those(|state| (state & mask ^ xor == value) == equal));
    }
    outcome(equality(field, data, packet), equal)
}

/// What a comparison with the flags of TCP comes to, by its mask.
pub(super) fn tcp_flags(mask: u8, value: u8, equal: bool) -> Step {
    outcome(bits(std::iter::once(Bits { mask, value, of: FLAGS })), equal)
}

fn outcome(equality: Equality, equal: bool) -> Step {
    match equality {
        Equality::Varies => Step::Varies,
        Equality::Never if equal => Step::NONE,
        Equality::Always if !equal => Step::NONE,
        _ => Step::SOME,
    }
}

fn equality(field: &Field, data: &[u8], packet: Packet) -> Equality {
    match field {
        field if is_protocol(field, packet) && !is_plain(data) => Equality::Never,
        Field::Absent => {
            bits(data.iter().map(|value| Bits { mask: 0xff, value: *value, of: Byte::known(0) }))
        }
        Field::Header { base, offset, mask, xor } => {
            let values = data.iter().zip(xor).map(|(data, xor)| data ^ xor);
            let of = (*offset..).map(|at| byte(*base, at, packet));
            let masked = mask.iter().zip(values).zip(of);
            bits(masked.map(|(masked, of)| Bits { mask: *masked.0, value: masked.1, of }))
        }
        field if varies(field, packet) => Equality::Varies,
        _ => Equality::Same,
    }
}

/// A value that a byte is compared with under a mask.
struct Bits {
    mask: u8,
    value: u8,
    of: Byte,
}

/// Whether bytes have these values.
fn bits(bytes: impl Iterator<Item = Bits>) -> Equality {
    let (mut never, mut open, mut varies) = (false, false, false);
    for Bits { mask, value, of } in bytes {
        never |= (value ^ of.value) & mask & of.known != 0;
        open |= mask & !of.known != 0;
        varies |= mask & !of.same != 0;
    }
    match (never, varies, open) {
        (true, ..) => Equality::Never,
        (_, true, _) => Equality::Varies,
        (_, _, true) => Equality::Same,
        _ => Equality::Always,
    }
}

fn byte(base: u32, at: usize, packet: Packet) -> Byte {
    match (base, packet.family) {
        (TRANSPORT_HEADER, _) => match at {
            0..4 => Byte::SAME,
            13 if packet.protocol == Some(protocol::TCP) => FLAGS,
            _ => Byte::VARIES,
        },
        (NETWORK_HEADER, Some(Family::V4)) => ipv4(at),
        (NETWORK_HEADER, Some(Family::V6)) => ipv6(at),
        (NETWORK_HEADER, None) => Byte { known: 0, same: ipv4(at).same & ipv6(at).same, value: 0 },
        _ => Byte::VARIES,
    }
}

fn ipv4(at: usize) -> Byte {
    match at {
        0 => Byte::known(0x45),
        // The flag for more fragments, and the offset.
        6 => Byte { same: 0x3f, known: 0x3f, value: 0 },
        7 => Byte::known(0),
        9 | 12..20 => Byte::SAME,
        _ => Byte::VARIES,
    }
}

fn ipv6(at: usize) -> Byte {
    match at {
        0 => Byte { same: 0xf0, known: 0xf0, value: 0x60 },
        6 | 8..40 => Byte::SAME,
        _ => Byte::VARIES,
    }
}
