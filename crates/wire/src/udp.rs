//! UDP (RFC 768).

use crate::bytes::{be16, put16};
use crate::checksum::{Pseudo, udp_field};
use crate::malformed::{Malformed, NoRoom, room};
use crate::protocol;

mod at {
    use std::ops::Range;
    pub const SOURCE_PORT: Range<usize> = 0..2;
    pub const DESTINATION_PORT: Range<usize> = 2..4;
    pub const LENGTH: Range<usize> = 4..6;
    pub const CHECKSUM: Range<usize> = 6..8;
    pub const PAYLOAD: usize = 8;
}

/// Bytes of the header.
pub const HEADER_LEN: usize = at::PAYLOAD;

/// A UDP datagram: the payload of its packet. Its existence proves that it is complete.
#[derive(Clone, Copy, Debug)]
pub struct Udp<B>(B);

impl<B: AsRef<[u8]>> Udp<B> {
    /// Checks the header and the length field.
    #[inline]
    pub fn parse(datagram: B) -> Result<Self, Malformed> {
        let bytes = datagram.as_ref();
        if bytes.len() < HEADER_LEN {
            return Err(Malformed::Short);
        }
        match usize::from(be16(&bytes[at::LENGTH])) {
            length if length < HEADER_LEN => Err(Malformed::TotalLen),
            length if length > bytes.len() => Err(Malformed::Truncated),
            _ => Ok(Self(datagram)),
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

    /// Bytes of header and payload.
    #[inline]
    pub fn length(&self) -> u16 {
        be16(&self.0.as_ref()[at::LENGTH])
    }

    /// The checksum field; zero means none.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(&self.0.as_ref()[at::CHECKSUM])
    }

    /// Whether the checksum is right between these addresses; IPv4 may leave it out, IPv6 may not.
    pub fn checksum_ok(&self, pseudo: &Pseudo) -> bool {
        match (self.checksum(), pseudo) {
            (0, pseudo) => matches!(pseudo, Pseudo::V4 { .. }),
            _ => pseudo.checksum(protocol::UDP, self.datagram()) == 0,
        }
    }

    /// What follows the header, within the length field.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.datagram()[at::PAYLOAD..]
    }

    fn datagram(&self) -> &[u8] {
        let bytes = self.0.as_ref();
        &bytes[..usize::from(self.length()).clamp(HEADER_LEN, bytes.len())]
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Udp<B> {
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
        let checksum = udp_field(pseudo.checksum(protocol::UDP, self.datagram()));
        self.set_checksum(checksum);
    }
}

/// Writes header, payload and checksum; returns their length.
pub fn emit(
    pseudo: &Pseudo,
    source_port: u16,
    destination_port: u16,
    payload: &[u8],
    buffer: &mut [u8],
) -> Result<usize, NoRoom> {
    let needed = HEADER_LEN + payload.len();
    let length = u16::try_from(needed).map_err(|_| NoRoom { needed, room: usize::from(u16::MAX) })?;
    let datagram = room(buffer, needed)?;
    put16(&mut datagram[at::SOURCE_PORT], source_port);
    put16(&mut datagram[at::DESTINATION_PORT], destination_port);
    put16(&mut datagram[at::LENGTH], length);
    put16(&mut datagram[at::CHECKSUM], 0);
    datagram[at::PAYLOAD..].copy_from_slice(payload);
    let checksum = udp_field(pseudo.checksum(protocol::UDP, datagram));
    put16(&mut datagram[at::CHECKSUM], checksum);
    Ok(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: Pseudo = Pseudo::V4 { source: 0x0a00_0001, destination: 0x0a00_0002 };
    const V6: Pseudo = Pseudo::V6 { source: 0xfd00 << 112 | 1, destination: 0xfd00 << 112 | 2 };
    /// 1000 > 2000, "hi", between the addresses of `V4`.
    const HI: [u8; 10] = [0x03, 0xe8, 0x07, 0xd0, 0, 10, 0x77, 0xb6, b'h', b'i'];

    #[test]
    fn reads_what_it_emits() {
        let mut buffer = [0xff; 12];
        assert_eq!(emit(&V4, 1000, 2000, b"hi", &mut buffer), Ok(10));
        assert_eq!(buffer[..10], HI);
        // Two bytes of padding, which the length leaves out.
        let datagram = Udp::parse(buffer).unwrap();
        assert_eq!(
            (datagram.source_port(), datagram.destination_port(), datagram.length()),
            (1000, 2000, 10)
        );
        assert_eq!(datagram.payload(), b"hi");
        assert!(datagram.checksum_ok(&V4) && !datagram.checksum_ok(&V6));
        assert_eq!(emit(&V4, 1, 2, b"hi", &mut buffer[..9]), Err(NoRoom { needed: 10, room: 9 }));
    }

    #[test]
    fn rejects_impossible_lengths() {
        let fault = |length: u8, bytes: usize| {
            let mut datagram = HI;
            datagram[5] = length;
            Udp::parse(&datagram[..bytes]).err()
        };
        assert_eq!(fault(10, 7), Some(Malformed::Short));
        assert_eq!(fault(7, 10), Some(Malformed::TotalLen));
        assert_eq!(fault(11, 10), Some(Malformed::Truncated));
        assert_eq!(fault(8, 10), None);
    }

    #[test]
    fn zero_means_no_checksum_only_in_ipv4() {
        let mut datagram = Udp::parse(HI).unwrap();
        datagram.set_checksum(0);
        assert!(datagram.checksum_ok(&V4) && !datagram.checksum_ok(&V6));
        datagram.set_destination_port(2001);
        datagram.fill_checksum(&V6);
        assert!(datagram.checksum_ok(&V6));
    }

    /// Over all payloads of one word, both families: right, and never zero.
    #[test]
    fn a_computed_checksum_is_never_zero() {
        for pseudo in [V4, V6] {
            let mut minus_zero = 0;
            for word in 0..=u16::MAX {
                let mut buffer = [0; 10];
                emit(&pseudo, 1000, 2000, &word.to_be_bytes(), &mut buffer).unwrap();
                let datagram = Udp::parse(buffer).unwrap();
                assert!(datagram.checksum() != 0 && datagram.checksum_ok(&pseudo), "word {word:#x}");
                minus_zero += u32::from(datagram.checksum() == 0xffff);
            }
            assert_eq!(minus_zero, 1);
        }
    }
}
