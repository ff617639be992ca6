//! TCP headers (RFC 9293), as far as a router reads them: ports, flags, and where the data begins.

use crate::bytes::{be16, be32, put16};
use crate::checksum::Pseudo;
use crate::malformed::Malformed;
use crate::protocol;

mod at {
    use std::ops::Range;
    pub const SOURCE_PORT: Range<usize> = 0..2;
    pub const DESTINATION_PORT: Range<usize> = 2..4;
    pub const SEQUENCE: Range<usize> = 4..8;
    pub(crate) const ACKNOWLEDGEMENT: Range<usize> = 8..12;
    pub const DATA_OFFSET: usize = 12;
    pub const FLAGS: usize = 13;
    pub const WINDOW: Range<usize> = 14..16;
    pub const CHECKSUM: Range<usize> = 16..18;
    pub const OPTIONS: usize = 20;
}

/// Bytes of a header without options.
pub const HEADER_LEN: usize = at::OPTIONS;

pub mod flag {
    /// Ends a direction of a connection.
    pub const FIN: u8 = 0x01;
    /// Opens a connection.
    pub const SYN: u8 = 0x02;
    /// Aborts a connection.
    pub const RST: u8 = 0x04;
    /// The acknowledgement counts.
    pub const ACK: u8 = 0x10;
    /// A part of the data is urgent.
    pub const URG: u8 = 0x20;
}

/// A TCP segment: the payload of its packet. Its existence proves that the header is complete.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<B>(B);

impl<B: AsRef<[u8]>> Tcp<B> {
    /// Checks length and data offset.
    #[inline]
    pub fn parse(segment: B) -> Result<Self, Malformed> {
        let bytes = segment.as_ref();
        if bytes.len() < HEADER_LEN {
            return Err(Malformed::Short);
        }
        let header_len = usize::from(bytes[at::DATA_OFFSET] >> 4) * 4;
        if (HEADER_LEN..=bytes.len()).contains(&header_len) {
            Ok(Self(segment))
        } else {
            Err(Malformed::HeaderLen)
        }
    }

    #[inline]
    pub fn source_port(&self) -> u16 {
        be16(&self.0.as_ref()[at::SOURCE_PORT])
    }

    #[inline]
    pub fn destination_port(&self) -> u16 {
        be16(&self.0.as_ref()[at::DESTINATION_PORT])
    }

    /// Sequence number.
    pub fn sequence(&self) -> u32 {
        be32(&self.0.as_ref()[at::SEQUENCE])
    }

    /// Acknowledgement number.
    pub fn acknowledgement(&self) -> u32 {
        be32(&self.0.as_ref()[at::ACKNOWLEDGEMENT])
    }

    /// Bytes of the header, options included: the data offset, 20 to 60.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.0.as_ref()[at::DATA_OFFSET] >> 4) * 4
    }

    #[inline]
    pub fn flags(&self) -> u8 {
        self.0.as_ref()[at::FLAGS]
    }

    /// Window, not scaled.
    pub fn window(&self) -> u16 {
        be16(&self.0.as_ref()[at::WINDOW])
    }

    /// The checksum field.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(&self.0.as_ref()[at::CHECKSUM])
    }

    /// Whether the checksum is right between these addresses.
    pub fn checksum_ok(&self, pseudo: &Pseudo) -> bool {
        pseudo.checksum(protocol::TCP, self.0.as_ref()) == 0
    }

    /// Options, up to 40 bytes.
    pub fn options(&self) -> &[u8] {
        &self.0.as_ref()[at::OPTIONS..self.header_len()]
    }

    /// What follows the header.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.0.as_ref()[self.header_len()..]
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Tcp<B> {
    /// Sets the source port; the caller updates the checksum.
    pub fn set_source_port(&mut self, port: u16) {
        put16(&mut self.0.as_mut()[at::SOURCE_PORT], port);
    }

    /// Sets the destination port; the caller updates the checksum.
    pub fn set_destination_port(&mut self, port: u16) {
        put16(&mut self.0.as_mut()[at::DESTINATION_PORT], port);
    }

    pub(crate) fn set_checksum(&mut self, checksum: u16) {
        put16(&mut self.0.as_mut()[at::CHECKSUM], checksum);
    }

    /// Computes and sets the checksum between these addresses.
    pub fn fill_checksum(&mut self, pseudo: &Pseudo) {
        self.set_checksum(0);
        let checksum = pseudo.checksum(protocol::TCP, self.0.as_ref());
        self.set_checksum(checksum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V6: Pseudo = Pseudo::V6 { source: 0xfd00 << 112 | 1, destination: 0xfd00 << 112 | 2 };
    /// 1000 > 2000, SYN with an MSS of 1440, window 64,240, between the addresses of `V6`.
    const SYN: [u8; 24] =
        [3, 0xe8, 7, 0xd0, 0, 0, 0, 1, 0, 0, 0, 0, 0x60, 2, 0xfa, 0xf0, 0x97, 0x8c, 0, 0, 2, 4, 5, 0xa0];

    #[test]
    fn reads_every_field() {
        let segment = Tcp::parse(SYN).unwrap();
        assert_eq!((segment.source_port(), segment.destination_port()), (1000, 2000));
        assert_eq!((segment.sequence(), segment.acknowledgement()), (1, 0));
        assert_eq!((segment.flags(), segment.window(), segment.header_len()), (flag::SYN, 64_240, 24));
        assert_eq!((segment.options(), segment.payload()), (&SYN[20..], &[][..]));
        assert_eq!(segment.checksum(), 0x978c);
        assert!(segment.checksum_ok(&V6));
    }

    #[test]
    fn rejects_impossible_data_offsets() {
        let fault = |offset: u8, bytes: usize| {
            let mut segment = SYN;
            segment[12] = offset << 4;
            Tcp::parse(&segment[..bytes]).err()
        };
        assert_eq!(fault(5, 19), Some(Malformed::Short));
        assert_eq!(fault(4, 24), Some(Malformed::HeaderLen));
        assert_eq!(fault(7, 24), Some(Malformed::HeaderLen));
        assert_eq!(fault(5, 20), None);
    }

    #[test]
    fn setters_keep_the_sum_fillable() {
        let mut segment = Tcp::parse(SYN).unwrap();
        segment.set_source_port(7);
        segment.set_destination_port(8);
        assert!(!segment.checksum_ok(&V6));
        segment.fill_checksum(&V6);
        assert!(segment.checksum_ok(&V6) && segment.source_port() == 7 && segment.destination_port() == 8);
    }
}
