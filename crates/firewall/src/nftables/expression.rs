//! Evaluates the expressions of a rule with what is known about a packet, instead of with a packet.
//!
//! A load puts a field into a register, and a comparison then says what the field must be. For each register it is
//! recorded which field it contains, so that a comparison can be converted to a [`Condition`]. What is not understood
//! leaves the condition unchanged, which is too wide but never too narrow.

use crate::condition::Condition;
use crate::names::Device;
use bm_netlink::attribute::Attributes;
use bm_netlink::error::Malformed;
use bm_wire::Family;

/// Attributes of expressions, and their values.
mod nfta {
    pub(crate) const DATA_VALUE: u16 = 1;
    pub(crate) const CMP: [u16; 3] = [1, 2, 3];
    pub const RANGE: [u16; 4] = [1, 2, 3, 4];
    pub const PAYLOAD: [u16; 4] = [1, 2, 3, 4];
    pub(crate) const META: [u16; 2] = [1, 2];
    pub(crate) const BITWISE_SREG: u16 = 1;
    pub(crate) const BITWISE_DREG: u16 = 2;
    pub(crate) const BITWISE_MASK: u16 = 4;
    pub(crate) const BITWISE_XOR: u16 = 5;
    pub(crate) const BITWISE_OP: u16 = 6;
}
/// Keys of meta.
mod meta {
    pub const PROTOCOL: u32 = 1;
    pub const IIF: u32 = 4;
    pub const OIF: u32 = 5;
    pub const IIFNAME: u32 = 6;
    pub const OIFNAME: u32 = 7;
    pub(crate) const NFPROTO: u32 = 15;
    pub(crate) const L4PROTO: u32 = 16;
}
/// Comparisons.
mod op {
    pub(crate) const EQ: u32 = 0;
    pub(crate) const LT: u32 = 2;
    pub(crate) const LTE: u32 = 3;
    pub(crate) const GT: u32 = 4;
    pub(crate) const GTE: u32 = 5;
}
/// Bases of payload.
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;

/// The content of a register.
#[derive(Clone, Debug)]
enum Field {
    Meta(u32),
    Header { base: u32, offset: usize, mask: Vec<u8>, xor: Vec<u8> },
}

/// The registers, by number of their first 32 bits.
#[derive(Debug, Default)]
pub(super) struct Registers(Vec<(u32, Field)>);

/// Registers of 16 bytes are numbered 1 to 4, those of 4 bytes from 8 on, over the same memory.
fn word(register: u32) -> u32 {
    if register < 8 { register.saturating_sub(1) * 4 } else { register - 8 }
}

impl Registers {
    fn get(&self, register: u32) -> Option<&Field> {
        self.0.iter().find(|(at, _)| *at == word(register)).map(|(_, field)| field)
    }

    /// Puts a field of `bytes` bytes into a register; `None` for an unknown one.
    fn put(&mut self, register: u32, bytes: usize, field: Option<Field>) {
        let (from, to) = (word(register), word(register) + bytes.div_ceil(4).max(1) as u32);
        self.0.retain(|(at, old)| {
            let words = match old {
                Field::Meta(_) => 4,
                Field::Header { mask, .. } => mask.len().div_ceil(4) as u32,
            };
            *at >= to || at + words <= from
        });
        self.0.extend(field.map(|field| (from, field)));
    }

    /// Forgets the content of a register, because something unknown was put there.
    pub fn forget(&mut self, register: u32) {
        self.put(register, 16, None);
    }
}

/// A number of nftables: four bytes in network order.
pub(super) fn number(value: &[u8]) -> Option<u32> {
    value.try_into().map(u32::from_be_bytes).ok()
}

/// The attributes asked for, in that order.
pub(super) fn some<const N: usize>(
    list: Attributes<'_>,
    kinds: [u16; N],
) -> Result<[Option<&[u8]>; N], Malformed> {
    let mut found = [None; N];
    for attribute in list {
        let (kind, value) = attribute?;
        if let Some(place) = kinds.iter().position(|&wanted| wanted == kind) {
            found[place] = Some(value);
        }
    }
    Ok(found)
}

/// The bytes of a data attribute.
fn bytes(data: Option<&[u8]>) -> Result<Option<&[u8]>, Malformed> {
    data.map_or(Ok(None), |data| Attributes::new(data).find(nfta::DATA_VALUE))
}

/// `meta load`. Returns whether it is one; setting something is a statement.
pub(super) fn load_meta(registers: &mut Registers, list: Attributes<'_>) -> Result<bool, Malformed> {
    let [register, key] = some(list, nfta::META)?.map(|value| value.and_then(number));
    let Some(register) = register else { return Ok(false) };
    registers.put(register, 16, key.map(Field::Meta));
    Ok(true)
}

/// `payload load`. Returns whether it is one; writing is a statement.
pub(super) fn load_header(registers: &mut Registers, list: Attributes<'_>) -> Result<bool, Malformed> {
    let [register, base, offset, length] = some(list, nfta::PAYLOAD)?.map(|value| value.and_then(number));
    let Some(register) = register else { return Ok(false) };
    let length = length.unwrap_or(16).min(64) as usize;
    let field = match (base, offset) {
        (Some(base @ (NETWORK_HEADER | TRANSPORT_HEADER)), Some(offset)) => Some(Field::Header {
            base,
            offset: offset as usize,
            mask: vec![0xff; length],
            xor: vec![0; length],
        }),
        _ => None,
    };
    registers.put(register, length, field);
    Ok(true)
}

/// `bitwise`: of a header's field, the part under the mask is known.
pub(super) fn bitwise(registers: &mut Registers, list: Attributes<'_>) -> Result<(), Malformed> {
    let wanted =
        [nfta::BITWISE_SREG, nfta::BITWISE_DREG, nfta::BITWISE_OP, nfta::BITWISE_MASK, nfta::BITWISE_XOR];
    let [from, to, operation, mask, xor] = some(list, wanted)?;
    let (mask, xor) = (bytes(mask)?, bytes(xor)?);
    let is_mask = operation.and_then(number).unwrap_or(0) == 0;
    let field = from.and_then(number).and_then(|from| registers.get(from)).cloned();
    let masked = match (field, mask, xor) {
        (Some(Field::Header { base, offset, mask: whole, xor: none }), Some(mask), Some(xor))
            if is_mask && whole.iter().all(|&byte| byte == 0xff) && none.iter().all(|&byte| byte == 0) =>
        {
            let mask: Vec<u8> = mask.iter().copied().take(whole.len()).collect();
            let xor = xor.iter().copied().chain(std::iter::repeat(0)).take(mask.len()).collect();
            Some(Field::Header { base, offset, mask, xor })
        }
        _ => None,
    };
    if let Some(to) = to.and_then(number) {
        let length = masked.as_ref().map_or(16, |field| match field {
            Field::Header { mask, .. } => mask.len(),
            Field::Meta(_) => 4,
        });
        registers.put(to, length, masked);
    }
    Ok(())
}

/// `cmp`: the required value of the field in the register.
pub(super) fn compare(
    registers: &Registers,
    list: Attributes<'_>,
    condition: &mut Condition,
) -> Result<(), Malformed> {
    let [register, operation, data] = some(list, nfta::CMP)?;
    let field = register.and_then(number).and_then(|register| registers.get(register));
    let (Some(field), Some(operation), Some(data)) = (field, operation.and_then(number), bytes(data)?) else {
        return Ok(());
    };
    match (field, operation) {
        (Field::Meta(key), op::EQ) => equal_meta(*key, data, condition),
        (Field::Header { base, offset, mask, xor }, op::EQ) => {
            let value: Vec<u8> = data.iter().zip(xor).map(|(data, xor)| data ^ xor).collect();
            match *base {
                NETWORK_HEADER => condition.network.set(*offset, &value, mask),
                _ => condition.transport.set(*offset, &value, mask),
            }
        }
        (field, operation) => {
            if let (Some(ports), Ok(number)) = (ports_of(field, condition), data.try_into()) {
                *ports = within(ports.clone(), operation, u16::from_be_bytes(number));
            }
        }
    }
    Ok(())
}

/// `range`: between which values the field must be.
pub(super) fn range(
    registers: &Registers,
    list: Attributes<'_>,
    condition: &mut Condition,
) -> Result<(), Malformed> {
    let [register, operation, from, to] = some(list, nfta::RANGE)?;
    let field = register.and_then(number).and_then(|register| registers.get(register));
    let (Some(field), Some(op::EQ)) = (field, operation.and_then(number)) else { return Ok(()) };
    if let (Some(ports), Some(from), Some(to)) = (ports_of(field, condition), port(from)?, port(to)?) {
        *ports = Some(from..=to);
    }
    Ok(())
}

fn port(data: Option<&[u8]>) -> Result<Option<u16>, Malformed> {
    Ok(bytes(data)?.and_then(|data| data.try_into().ok()).map(u16::from_be_bytes))
}

type Ports = Option<std::ops::RangeInclusive<u16>>;

/// The ports of a field, if it is source or destination port.
fn ports_of<'a>(field: &Field, condition: &'a mut Condition) -> Option<&'a mut Ports> {
    match field {
        Field::Header { base: TRANSPORT_HEADER, offset, mask, xor }
            if mask[..] == [0xff; 2] && xor[..] == [0; 2] =>
        {
            match offset {
                0 => Some(&mut condition.source_ports),
                2 => Some(&mut condition.destination_ports),
                _ => None,
            }
        }
        _ => None,
    }
}

/// A range with one more bound. An empty one cannot match, so it may stay unchanged.
fn within(ports: Ports, operation: u32, number: u16) -> Ports {
    let (from, to) = ports.clone().unwrap_or(0..=u16::MAX).into_inner();
    let bounded = match operation {
        op::LT => from..=to.min(number.saturating_sub(1)),
        op::LTE => from..=to.min(number),
        op::GT => from.max(number.saturating_add(1))..=to,
        op::GTE => from.max(number)..=to,
        _ => return ports,
    };
    if bounded.is_empty() { ports } else { Some(bounded) }
}

fn equal_meta(key: u32, data: &[u8], condition: &mut Condition) {
    let index = || data.try_into().map(u32::from_ne_bytes).ok().map(Device::Index);
    match (key, data) {
        (meta::IIF, _) => condition.input = index().or(condition.input.take()),
        (meta::OIF, _) => condition.output = index().or(condition.output.take()),
        (meta::IIFNAME, _) => condition.input = exact_name(data).or(condition.input.take()),
        (meta::OIFNAME, _) => condition.output = exact_name(data).or(condition.output.take()),
        (meta::NFPROTO, [family]) => condition.family = Family::from_number(*family).or(condition.family),
        (meta::PROTOCOL, [8, 0]) => condition.family = Some(Family::V4),
        (meta::PROTOCOL, [0x86, 0xdd]) => condition.family = Some(Family::V6),
        (meta::L4PROTO, [protocol]) => condition.protocol = Some(*protocol),
        _ => {}
    }
}

/// A full name. Without a zero at its end it is only the start of one, as for `eth*`.
fn exact_name(data: &[u8]) -> Option<Device> {
    let end = data.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&data[..end]).ok().map(|name| Device::Name(name.into()))
}
