//! Why bytes are not a valid packet, and why a packet cannot be built.
//!
//! One small enum for all layers: the caller knows which layer it called, and counts drops by both. It has no
//! operands, because it is made on the data path, where it is never printed.

use std::fmt;

/// Why bytes are not the header that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// Fewer bytes than the fixed header has.
    Short,
    /// The version field is of another protocol.
    Version,
    /// The header's length field is below the fixed header, or beyond the available bytes.
    HeaderLen,
    /// The total length field is below the header length.
    TotalLen,
    /// The total length field is above the available bytes: the packet is truncated.
    Truncated,
    /// The checksum does not fit the bytes.
    Checksum,
    /// An option has an impossible length: zero, below its own header, or beyond the end.
    Option,
    /// More IPv6 extension headers than anybody sends.
    Chain,
    /// A type, code, or format that this view does not read.
    Kind,
    /// The hop limit shows that a router was crossed where none may be (RFC 4861).
    HopLimit,
    /// An address that may not be there.
    Address,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "shorter than its fixed header",
            Self::Version => "of another IP version",
            Self::HeaderLen => "with an impossible header length",
            Self::TotalLen => "with a length shorter than its header",
            Self::Truncated => "truncated: its length field exceeds the bytes present",
            Self::Checksum => "with a wrong checksum",
            Self::Option => "with an option of impossible length",
            Self::Chain => "with too many extension headers",
            Self::Kind => "of an unknown type or format",
            Self::HopLimit => "not from this link, as its hop limit shows",
            Self::Address => "with an address that is not allowed there",
        })
    }
}

impl std::error::Error for Malformed {}

/// A builder's buffer is too small; nothing useful was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Bytes that the packet needs.
    pub needed: usize,
    /// Bytes that the buffer has.
    pub room: usize,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the packet needs {} bytes, the buffer has {}", self.needed, self.room)
    }
}

impl std::error::Error for NoRoom {}

/// The first `needed` bytes of `buffer`.
pub(crate) fn room(buffer: &mut [u8], needed: usize) -> Result<&mut [u8], NoRoom> {
    let room = buffer.len();
    buffer.get_mut(..needed).ok_or(NoRoom { needed, room })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_short_buffers_have_both_sizes() {
        let error = room(&mut [0; 20], 28).unwrap_err();
        assert_eq!(error.to_string(), "the packet needs 28 bytes, the buffer has 20");
    }
}
