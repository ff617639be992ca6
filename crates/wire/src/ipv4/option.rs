//! IPv4 options: their kinds, an iterator that is safe for any bytes, and which options fragments inherit.

use crate::malformed::Malformed;

/// End of list: what follows is padding.
pub const END: u8 = 0;
/// One byte of padding.
pub const NO_OPERATION: u8 = 1;
pub const RECORD_ROUTE: u8 = 7;
/// Internet Timestamp.
pub const TIMESTAMP: u8 = 68;
/// Loose Source and Record Route.
pub const LOOSE_SOURCE_ROUTE: u8 = 131;
/// Strict Source and Record Route.
pub const STRICT_SOURCE_ROUTE: u8 = 137;
/// Router Alert (RFC 2113).
pub const ROUTER_ALERT: u8 = 148;

/// The bit of the kind for "copy into every fragment" (RFC 791 3.1).
const COPIED: u8 = 0x80;

/// An option of an IPv4 header (RFC 791 3.1), its length checked against the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpOption<'a> {
    /// Kind, copy bit included.
    pub kind: u8,
    /// Where it begins, from the first byte of the options.
    pub offset: usize,
    /// All its bytes, kind and length included.
    pub bytes: &'a [u8],
}

impl<'a> IpOption<'a> {
    /// Whether fragments after the first carry it too.
    pub fn is_copied(&self) -> bool {
        self.kind & COPIED != 0
    }

    /// What follows kind and length.
    pub fn data(&self) -> &'a [u8] {
        self.bytes.get(2..).unwrap_or(&[])
    }
}

/// A walk over options. It ends at "end of list", at the end of the bytes, or after the first broken length.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Options<'a> {
    /// Walks the options of a header.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<IpOption<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.offset..)?;
        let length = match rest {
            [] | [END, ..] => return None,
            [NO_OPERATION, ..] => 1,
            // The length includes kind and length, so a value below two would never advance.
            [_, length, ..] if *length >= 2 => usize::from(*length),
            _ => 0,
        };
        let offset = self.offset;
        let whole = rest.get(..length).filter(|bytes| !bytes.is_empty());
        self.offset = if whole.is_some() { offset + length } else { self.bytes.len() };
        Some(whole.map(|bytes| IpOption { kind: bytes[0], offset, bytes }).ok_or(Malformed::Option))
    }
}

/// Writes the options for fragments after the first; returns their number of bytes, a multiple of 4.
///
/// Broken options end the list, as the walk does.
pub fn copied_into_fragments(options: &[u8], buffer: &mut [u8; 40]) -> usize {
    buffer.fill(END);
    let mut length = 0;
    for option in Options::new(&options[..options.len().min(40)]).flatten().filter(IpOption::is_copied) {
        buffer[length..][..option.bytes.len()].copy_from_slice(option.bytes);
        length += option.bytes.len();
    }
    length.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing, Record Route with one free slot, Router Alert, padding.
    const MIXED: [u8; 16] = [1, 7, 7, 4, 0, 0, 0, 0, 148, 4, 0, 0, 0, 0xff, 0xff, 0xff];

    fn kinds(bytes: &[u8]) -> Vec<Result<(u8, usize), Malformed>> {
        Options::new(bytes).map(|option| option.map(|option| (option.kind, option.offset))).collect()
    }

    #[test]
    fn walks_to_the_end_of_the_list() {
        let found = [Ok((NO_OPERATION, 0)), Ok((RECORD_ROUTE, 1)), Ok((ROUTER_ALERT, 8))];
        assert_eq!(kinds(&MIXED), found);
        let record = Options::new(&MIXED).nth(1).unwrap().unwrap();
        assert_eq!(record.data(), [4, 0, 0, 0, 0]);
        assert!(!record.is_copied());
    }

    #[test]
    fn stops_at_a_broken_length() {
        for broken in [&[7, 0, 0, 0][..], &[7, 1, 0, 0], &[7, 5, 0, 0], &[7]] {
            assert_eq!(kinds(broken), [Err(Malformed::Option)], "{broken:?}");
        }
        assert_eq!(
            kinds(&[1, 131, 3, 4, 68, 9]),
            [Ok((1, 0)), Ok((LOOSE_SOURCE_ROUTE, 1)), Err(Malformed::Option)]
        );
    }

    #[test]
    fn fragments_inherit_options_with_the_copy_bit() {
        let mut buffer = [0xff; 40];
        assert_eq!(copied_into_fragments(&MIXED, &mut buffer), 4);
        assert_eq!(buffer[..5], [148, 4, 0, 0, 0]);
        // A source route of one address: 7 bytes, padded to 8.
        assert_eq!(copied_into_fragments(&[131, 7, 4, 10, 0, 0, 1, 0], &mut buffer), 8);
        assert_eq!(buffer[..8], [131, 7, 4, 10, 0, 0, 1, 0]);
        assert_eq!(copied_into_fragments(&[7, 7, 4, 0, 0, 0, 0, 0], &mut buffer), 0);
    }
}
