//! Messages and attributes: reading what a buffer holds, with each length checked once, and writing them.

use bm_netlink::attribute::Attributes;
use zeroize::Zeroizing;

use crate::layout::errno;
use crate::request_error::RequestError;

/// Bytes of a message's header.
pub(crate) const HEADER: usize = 16;
/// Bytes of an attribute's header.
const ATTRIBUTE: usize = 4;

/// Bytes that may contain keys: overwritten with zeros when they are freed.
pub(crate) type Bytes = Zeroizing<Vec<u8>>;

/// A message: the fields of its header, and the rest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Raw<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub port: u32,
    pub body: &'a [u8],
}

/// The messages of a buffer; ends at the first one that is cut off.
pub struct Messages<'a>(pub &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Raw<'a>;

    fn next(&mut self) -> Option<Raw<'a>> {
        let header: &[u8; HEADER] = self.0.first_chunk()?;
        let word = |at: usize| number::<u32>(header, at);
        let length = word(0) as usize;
        let body = self.0.get(HEADER..length)?;
        let raw = Raw {
            kind: number(header, 4),
            flags: number(header, 6),
            sequence: word(8),
            port: word(12),
            body,
        };
        self.0 = self.0.get(aligned(length)..).unwrap_or_default();
        Some(raw)
    }
}

/// A number in a structure.
pub(crate) trait Number: Sized {
    fn read(bytes: &[u8], at: usize) -> Self;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Number for $number {
            fn read(bytes: &[u8], at: usize) -> Self {
                let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
                found.map_or(0, |chunk| <$number>::from_ne_bytes(*chunk))
            }
        }
    )*};
}
numbers!(u8, u16, u32, u64);

/// The number in host order at `at`, zero behind the end: callers check lengths of whole structures before.
pub(crate) fn number<N: Number>(bytes: &[u8], at: usize) -> N {
    N::read(bytes, at)
}

pub(crate) fn big_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be(number(bytes, at))
}

pub(crate) fn big_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be(number(bytes, at))
}

/// The first bytes of a message as a structure of this length.
pub(crate) fn structure<const LENGTH: usize>(body: &[u8]) -> Result<&[u8; LENGTH], RequestError> {
    body.first_chunk().ok_or_else(|| {
        RequestError::new(errno::INVALID, format!("message of {} bytes: {LENGTH} are needed", body.len()))
    })
}

/// The attributes behind a structure of this length: all of them are well-formed.
pub(crate) fn attributes(body: &[u8], length: usize) -> Result<Vec<(u16, &[u8])>, RequestError> {
    let found: Result<Vec<_>, _> = Attributes::after_header(body, length).collect();
    found.map_err(|_| RequestError::new(errno::INVALID, "attribute that is longer than the message"))
}

pub(crate) fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

/// Appends a message, whose body `write` appends.
pub(crate) fn put_message(to: &mut Bytes, raw: &Raw<'_>, write: impl FnOnce(&mut Bytes)) {
    let start = to.len();
    // Room for all of it: a vector that grows leaves copies of keys behind.
    to.reserve(2048);
    to.extend_from_slice(&[0; 4]);
    to.extend_from_slice(&raw.kind.to_ne_bytes());
    to.extend_from_slice(&raw.flags.to_ne_bytes());
    to.extend_from_slice(&raw.sequence.to_ne_bytes());
    to.extend_from_slice(&raw.port.to_ne_bytes());
    to.extend_from_slice(raw.body);
    write(to);
    let length = (to.len() - start) as u32;
    to[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    let end = start + aligned(length as usize);
    to.resize(end, 0);
}

/// Appends an attribute.
pub(crate) fn put(to: &mut Bytes, kind: u16, parts: &[&[u8]]) {
    let length = ATTRIBUTE + parts.iter().map(|part| part.len()).sum::<usize>();
    let start = aligned(to.len());
    to.resize(start, 0);
    to.extend_from_slice(&(length as u16).to_ne_bytes());
    to.extend_from_slice(&kind.to_ne_bytes());
    parts.iter().for_each(|part| to.extend_from_slice(part));
    to.resize(start + aligned(length), 0);
}
