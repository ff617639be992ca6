//! Attributes: the type-length-value lists after every netlink header, read and written.
//!
//! Reading checks each length once and then hands out slices; nothing is copied. Lengths are in host
//! order, values too unless the attribute is an address. Nesting is a list within a value.

use crate::error::Malformed;

/// Attribute header: length, then type.
const HEADER: usize = 4;
/// Flags within the type: nested, network byte order.
const TYPE_MASK: u16 = 0x3fff;
/// Marks a value that is a list.
pub const NESTED: u16 = 0x8000;

/// A length rounded up to where the next item begins.
pub const fn aligned(length: usize) -> usize {
    (length + 3) & !3
}

/// An iterator over a list of attributes: type and value.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// The list in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The list after a fixed header of `header` bytes, if the message has one.
    pub fn after_header(bytes: &'a [u8], header: usize) -> Self {
        Self(bytes.get(aligned(header)..).unwrap_or_default())
    }

    /// The value of the first attribute of type `kind`.
    pub fn find(self, kind: u16) -> Result<Option<&'a [u8]>, Malformed> {
        for attribute in self {
            let (found, value) = attribute?;
            if found == kind {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<(u16, &'a [u8]), Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let room = self.0.len();
        if room < HEADER {
            // Padding after the last attribute is not an error.
            return None;
        }
        let length = usize::from(u16::from_ne_bytes([self.0[0], self.0[1]]));
        let kind = u16::from_ne_bytes([self.0[2], self.0[3]]) & TYPE_MASK;
        if length < HEADER || length > room {
            self.0 = &[];
            return Some(Err(Malformed::Attribute { length, room }));
        }
        let value = &self.0[HEADER..length];
        self.0 = &self.0[aligned(length).min(room)..];
        Some(Ok((kind, value)))
    }
}

macro_rules! number {
    ($name:ident, $number:ty) => {
        /// The value as a number in host order.
        #[inline]
        pub fn $name(kind: u16, value: &[u8]) -> Result<$number, Malformed> {
            value
                .try_into()
                .map(<$number>::from_ne_bytes)
                .map_err(|_| Malformed::Value { kind, length: value.len() })
        }
    };
}
number!(number_u8, u8);
number!(number_u16, u16);
number!(number_u32, u32);
number!(number_u64, u64);
number!(number_i32, i32);

/// The value as text, up to its first zero byte.
pub fn text(value: &[u8]) -> Box<str> {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into()
}

/// An address of either family as the value.
#[inline]
pub fn address(kind: u16, value: &[u8]) -> Result<std::net::IpAddr, Malformed> {
    crate::family::ip_address(value).ok_or(Malformed::Value { kind, length: value.len() })
}

/// Appends an attribute to a message.
pub fn put(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend_from_slice(&((HEADER + value.len()) as u16).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(aligned(message.len()), 0);
}

/// Appends an attribute that holds an address.
pub(crate) fn put_address(message: &mut Vec<u8>, kind: u16, address: &std::net::IpAddr) {
    crate::family::with_bytes(address, |bytes| put(message, kind, bytes));
}

/// Appends an attribute whose value is the list that `body` writes.
pub fn put_nested(message: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let start = message.len();
    put(message, kind, &[]);
    body(message);
    let length = (message.len() - start) as u16;
    message[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    message.resize(aligned(message.len()), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Type 1 with three bytes and its padding, then type 2 (marked nested) with four.
    const TWO: [u8; 16] = [7, 0, 1, 0, b'a', b'b', 0, 0, 8, 0, 2, 0x80, 1, 0, 0, 0];

    #[test]
    fn reads_what_it_writes() {
        let list: Vec<_> = Attributes::new(&TWO).map(Result::unwrap).collect();
        assert_eq!(list, [(1, &b"ab\0"[..]), (2, &[1, 0, 0, 0][..])]);
        let mut written = Vec::new();
        put(&mut written, 1, b"ab\0");
        put(&mut written, 2 | NESTED, &1u32.to_ne_bytes());
        assert_eq!(written, TWO);
        assert_eq!(&*text(b"ab\0\0"), "ab");
    }

    #[test]
    fn rejects_lengths_beyond_the_end_or_below_the_header() {
        let room = Attributes::new(&[9, 0, 1, 0, 1, 2, 3, 4]).next().unwrap();
        assert_eq!(room, Err(Malformed::Attribute { length: 9, room: 8 }));
        let mut short = Attributes::new(&[3, 0, 1, 0]);
        assert_eq!(short.next().unwrap(), Err(Malformed::Attribute { length: 3, room: 4 }));
        assert_eq!(short.next(), None, "an error ends the list");
    }

    #[test]
    fn no_truncation_or_length_causes_a_panic() {
        for end in 0..TWO.len() {
            for byte in 0..=255 {
                let mut bytes = TWO[..end].to_vec();
                if let Some(first) = bytes.first_mut() {
                    *first = byte;
                }
                Attributes::new(&bytes).count();
            }
        }
    }
}
