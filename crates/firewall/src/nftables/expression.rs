//! Evaluates the expressions of a rule with what is known about a packet, instead of with a packet.
//!
//! A load puts a field into a register, and a comparison then says what the field must be. For each register it is
//! recorded which field it contains, so that a comparison can be converted to a [`Condition`], and to a [`Step`] for
//! flows. What is not understood leaves the condition unchanged, which is too wide but never too narrow.

use super::attributes::{number, some};
use super::field::{Field, NETWORK_HEADER, TRANSPORT_HEADER, meta, op};
use super::plain::{self, Packet, ct};
use super::step::{Key, Step};
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
    pub(crate) const CT: [u16; 2] = [1, 2];
    /// Register, flags, operation.
    pub(crate) const EXTHDR: [u16; 3] = [1, 5, 6];
    pub(crate) const BYTEORDER: [u16; 2] = [1, 2];
    pub(crate) const BITWISE_SREG: u16 = 1;
    pub(crate) const BITWISE_DREG: u16 = 2;
    pub(crate) const BITWISE_MASK: u16 = 4;
    pub(crate) const BITWISE_XOR: u16 = 5;
    pub(crate) const BITWISE_OP: u16 = 6;
    pub(crate) const BITWISE_SREG_2: u16 = 8;
}
/// Bytes of the registers that hold most of the values, and of the longest one.
const WORD: usize = 4;
const LONGEST: usize = 16;

/// A field, and which 32-bit words it is in.
#[derive(Clone, Debug)]
struct Content {
    from: u32,
    to: u32,
    field: Field,
}

/// What has been loaded, and not been overwritten.
#[derive(Debug, Default)]
pub(super) struct Registers(Vec<Content>);

/// Registers of 16 bytes are numbered 1 to 4, those of 4 bytes from 8 on, over the same memory.
fn word(register: u32) -> u32 {
    if register < 8 { register.saturating_sub(1) * 4 } else { register - 8 }
}

impl Registers {
    fn get(&self, register: u32) -> Option<&Field> {
        self.0.iter().find(|content| content.from == word(register)).map(|content| &content.field)
    }

    /// Puts a field of `bytes` bytes into a register.
    fn put(&mut self, register: u32, bytes: usize, field: Field) {
        let (from, to) = (word(register), word(register) + bytes.div_ceil(WORD).max(1) as u32);
        self.0.retain(|old| old.from >= to || old.to <= from);
        self.0.push(Content { from, to, field });
    }

    /// Something of unknown length is put into a register. What is in the words behind is forgotten.
    pub(super) fn replace(&mut self, register: u32, field: Field) {
        self.put(register, LONGEST, Field::Unknown);
        self.put(register, WORD, field);
    }

    /// Forgets the content of a register, because something unknown was put there.
    pub fn forget(&mut self, register: u32) {
        self.replace(register, Field::Unknown);
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether what is in a register stays as it is if a mark is set to it.
    pub(super) fn is_settled(&self, register: u32, packet: Packet) -> bool {
        self.get(register).is_some_and(|field| plain::is_settled(field, packet))
    }

    /// The fields that a lookup may use which starts at a register; its length is not known.
    fn from(&self, register: u32) -> impl Iterator<Item = &Field> {
        self.0.iter().filter(move |content| content.from >= word(register)).map(|content| &content.field)
    }

    /// What a lookup is by.
    pub(super) fn key(&self, register: u32, packet: Packet) -> Key {
        if self.from(register).any(|field| plain::varies(field, packet)) {
            return Key::Varies;
        }
        match self.get(register) {
            None => Key::Varies,
            Some(Field::Connection { key: ct::STATE, mask: u32::MAX, xor: 0 }) => Key::State,
            Some(field) if plain::is_protocol(field, packet) => Key::Protocol,
            Some(_) => Key::Same,
        }
    }

    /// What a map has for that.
    pub(super) fn mapped(&self, register: u32, packet: Packet) -> Field {
        if self.key(register, packet) == Key::Varies {
            return Field::Unknown;
        }
        if self.from(register).any(plain::is_mark) { Field::Derived } else { Field::Same }
    }
}

/// The bytes of a data attribute.
fn bytes(data: Option<&[u8]>) -> Result<Option<&[u8]>, Malformed> {
    data.map_or(Ok(None), |data| Attributes::new(data).find(nfta::DATA_VALUE))
}

/// `meta load`. Returns whether it is one; setting something is a statement.
pub(super) fn load_meta(registers: &mut Registers, list: Attributes<'_>) -> Result<bool, Malformed> {
    let [register, key] = some(list, nfta::META)?.map(|value| value.and_then(number));
    let Some(register) = register else { return Ok(false) };
    let named = [meta::IIFNAME, meta::OIFNAME, meta::IIFKIND, meta::OIFKIND, meta::SDIFNAME];
    match key {
        Some(key) if named.contains(&key) => registers.put(register, LONGEST, Field::Meta(key)),
        Some(key) => registers.put(register, WORD, Field::Meta(key)),
        None => registers.forget(register),
    }
    Ok(true)
}

/// `ct load`: the key. Setting something is a statement.
pub(super) fn load_ct(registers: &mut Registers, list: Attributes<'_>) -> Result<Option<u32>, Malformed> {
    let [register, key] = some(list, nfta::CT)?.map(|value| value.and_then(number));
    let (Some(register), Some(key)) = (register, key) else { return Ok(None) };
    registers.replace(register, Field::Connection { key, mask: u32::MAX, xor: 0 });
    Ok(Some(key))
}

/// `exthdr load`. An option of TCP may be in any packet; plain ones have no other.
pub(super) fn load_option(registers: &mut Registers, list: Attributes<'_>) -> Result<Step, Malformed> {
    const TCP_OPTION: u32 = 1;
    const PRESENT: u32 = 1;
    let [register, flags, operation] = some(list, nfta::EXTHDR)?.map(|value| value.and_then(number));
    let Some(register) = register else { return Ok(Step::EachPacket) };
    let absent = operation.unwrap_or_default() != TCP_OPTION;
    registers.replace(register, if absent { Field::Absent } else { Field::Unknown });
    let asks = flags.unwrap_or_default() & PRESENT != 0;
    Ok(match (absent, asks) {
        (true, false) => Step::NONE,
        (true, true) => Step::SOME,
        (false, _) => Step::Varies,
    })
}

/// `byteorder`.
pub(super) fn reorder(
    registers: &mut Registers,
    list: Attributes<'_>,
    packet: Packet,
) -> Result<(), Malformed> {
    let [from, to] = some(list, nfta::BYTEORDER)?.map(|value| value.and_then(number));
    let same = from.and_then(|from| registers.get(from)).is_some_and(|field| !plain::varies(field, packet));
    if let Some(to) = to {
        registers.replace(to, if same { Field::Derived } else { Field::Unknown });
    }
    Ok(())
}

/// `payload load`. Returns whether it is one; writing is a statement.
pub(super) fn load_header(registers: &mut Registers, list: Attributes<'_>) -> Result<bool, Malformed> {
    let [register, base, offset, length] = some(list, nfta::PAYLOAD)?.map(|value| value.and_then(number));
    let Some(register) = register else { return Ok(false) };
    let length = length.unwrap_or(16).min(64) as usize;
    let field = match (base, offset) {
        (Some(base @ (NETWORK_HEADER | TRANSPORT_HEADER)), Some(offset)) => {
            Field::Header { base, offset: offset as usize, mask: vec![0xff; length], xor: vec![0; length] }
        }
        _ => Field::Unknown,
    };
    registers.put(register, length, field);
    Ok(true)
}

/// `bitwise`: of a field, the part under the mask is known.
pub(super) fn bitwise(
    registers: &mut Registers,
    list: Attributes<'_>,
    packet: Packet,
) -> Result<(), Malformed> {
    let wanted = [
        nfta::BITWISE_SREG,
        nfta::BITWISE_DREG,
        nfta::BITWISE_OP,
        nfta::BITWISE_MASK,
        nfta::BITWISE_XOR,
        nfta::BITWISE_SREG_2,
    ];
    let [from, to, operation, mask, xor, second] = some(list, wanted)?;
    let (mask, xor) = (bytes(mask)?, bytes(xor)?);
    let is_mask = operation.and_then(number).unwrap_or(0) == 0;
    let field = from.and_then(number).and_then(|from| registers.get(from)).cloned();
    let Some(to) = to.and_then(number) else { return Ok(()) };
    let same = second.is_none() && field.as_ref().is_some_and(|field| !plain::varies(field, packet));
    let masked = match (field, mask, xor) {
        (Some(Field::Header { base, offset, mask: whole, xor: none }), Some(mask), Some(xor))
            if is_mask && whole.iter().all(|&byte| byte == 0xff) && none.iter().all(|&byte| byte == 0) =>
        {
            let mask: Vec<u8> = mask.iter().copied().take(whole.len()).collect();
            let xor = xor.iter().copied().chain(std::iter::repeat(0)).take(mask.len()).collect();
            registers.put(to, mask.len(), Field::Header { base, offset, mask, xor });
            return Ok(());
        }
        (Some(Field::Connection { key, mask: u32::MAX, xor: 0 }), Some(mask), Some(xor)) if is_mask => {
            match (mask.try_into(), xor.try_into()) {
                (Ok(mask), Ok(xor)) => {
                    Field::Connection { key, mask: u32::from_ne_bytes(mask), xor: u32::from_ne_bytes(xor) }
                }
                _ if same => Field::Derived,
                _ => Field::Unknown,
            }
        }
        (_, Some(mask), Some(xor)) if same && is_mask && mask.iter().zip(xor).all(is_set_or_kept) => {
            Field::Same
        }
        _ if same => Field::Derived,
        _ => Field::Unknown,
    };
    registers.replace(to, masked);
    Ok(())
}

/// Whether no bit of the byte is kept under this mask and then inverted.
fn is_set_or_kept(mask_and_xor: (&u8, &u8)) -> bool {
    mask_and_xor.0 & mask_and_xor.1 == 0
}

/// `cmp`: the required value of the field in the register.
pub(super) fn compare(
    registers: &Registers,
    list: Attributes<'_>,
    packet: Packet,
    condition: &mut Condition,
) -> Result<Step, Malformed> {
    let [register, operation, data] = some(list, nfta::CMP)?;
    let field = register.and_then(number).and_then(|register| registers.get(register));
    let (Some(field), Some(operation), Some(data)) = (field, operation.and_then(number), bytes(data)?) else {
        return Ok(Step::Varies);
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
    Ok(plain::compared(field, operation, data, packet))
}

/// `range`: between which values the field must be.
pub(super) fn range(
    registers: &Registers,
    list: Attributes<'_>,
    packet: Packet,
    condition: &mut Condition,
) -> Result<Step, Malformed> {
    let [register, operation, from, to] = some(list, nfta::RANGE)?;
    let field = register.and_then(number).and_then(|register| registers.get(register));
    let same = field.is_some_and(|field| !plain::varies(field, packet));
    if let (Some(field), Some(op::EQ)) = (field, operation.and_then(number))
        && let (Some(ports), Some(from), Some(to)) = (ports_of(field, condition), port(from)?, port(to)?)
    {
        *ports = Some(from..=to);
    }
    Ok(if same { Step::SOME } else { Step::Varies })
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
