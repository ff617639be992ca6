//! ARP for IPv4 over Ethernet (RFC 826).
//!
//! Only the slow path sees ARP, so a message is a struct with `parse` and `emit`, without a view.

use crate::bytes::{be16, be32, put16, put32};
use crate::ethernet::{self, Mac, ethertype};
use crate::malformed::{Malformed, NoRoom, room};

mod at {
    use std::ops::Range;
    pub const HARDWARE_TYPE: Range<usize> = 0..2;
    pub const PROTOCOL_TYPE: Range<usize> = 2..4;
    pub const HARDWARE_LEN: usize = 4;
    pub const PROTOCOL_LEN: usize = 5;
    pub const OPERATION: Range<usize> = 6..8;
    pub const SENDER_MAC: Range<usize> = 8..14;
    pub const SENDER_ADDRESS: Range<usize> = 14..18;
    pub const TARGET_MAC: Range<usize> = 18..24;
    pub const TARGET_ADDRESS: Range<usize> = 24..28;
}

/// Bytes of a message; Ethernet pads it.
pub const LEN: usize = at::TARGET_ADDRESS.end;

const ETHERNET: u16 = 1;

/// Operations.
pub mod operation {
    /// Who has the target address?
    pub const REQUEST: u16 = 1;
    /// The sender has.
    pub const REPLY: u16 = 2;
}

/// An ARP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Operation, of `operation`.
    pub operation: u16,
    /// Link-layer address of the sender.
    pub sender_mac: Mac,
    /// Protocol address of the sender; zero in a probe (RFC 5227).
    pub sender: u32,
    /// Link-layer address of the target; without meaning in a request.
    pub target_mac: Mac,
    /// Protocol address of the target.
    pub target: u32,
}

impl Arp {
    /// Reads a message. One with a multicast sender is refused: RFC 1812 3.3.2 forbids trusting it.
    pub fn parse(message: &[u8]) -> Result<Self, Malformed> {
        let message = message.get(..LEN).ok_or(Malformed::Short)?;
        let format = (
            be16(&message[at::HARDWARE_TYPE]),
            be16(&message[at::PROTOCOL_TYPE]),
            message[at::HARDWARE_LEN],
            message[at::PROTOCOL_LEN],
        );
        if format != (ETHERNET, ethertype::IPV4, 6, 4) {
            return Err(Malformed::Kind);
        }
        let sender_mac = Mac::read(&message[at::SENDER_MAC]);
        if sender_mac.is_multicast() {
            return Err(Malformed::Address);
        }
        Ok(Self {
            operation: be16(&message[at::OPERATION]),
            sender_mac,
            sender: be32(&message[at::SENDER_ADDRESS]),
            target_mac: Mac::read(&message[at::TARGET_MAC]),
            target: be32(&message[at::TARGET_ADDRESS]),
        })
    }

    /// A request for `target`.
    pub fn request(sender_mac: Mac, sender: u32, target: u32) -> Self {
        Self { operation: operation::REQUEST, sender_mac, sender, target_mac: Mac::default(), target }
    }

    /// The reply to a request: `mac` has the requested address.
    pub fn reply(&self, mac: Mac) -> Self {
        Self {
            operation: operation::REPLY,
            sender_mac: mac,
            sender: self.target,
            target_mac: self.sender_mac,
            target: self.sender,
        }
    }

    /// Writes the message; returns its length.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let message = room(buffer, LEN)?;
        put16(&mut message[at::HARDWARE_TYPE], ETHERNET);
        put16(&mut message[at::PROTOCOL_TYPE], ethertype::IPV4);
        message[at::HARDWARE_LEN] = 6;
        message[at::PROTOCOL_LEN] = 4;
        put16(&mut message[at::OPERATION], self.operation);
        message[at::SENDER_MAC].copy_from_slice(&self.sender_mac.0);
        put32(&mut message[at::SENDER_ADDRESS], self.sender);
        message[at::TARGET_MAC].copy_from_slice(&self.target_mac.0);
        put32(&mut message[at::TARGET_ADDRESS], self.target);
        Ok(LEN)
    }

    /// Writes an untagged frame with the message: a request to all, a reply to its target.
    pub fn emit_frame(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let frame = room(buffer, ethernet::HEADER_LEN + LEN)?;
        let to = if self.operation == operation::REQUEST { Mac::BROADCAST } else { self.target_mac };
        let header_len = ethernet::emit(to, self.sender_mac, ethertype::ARP, frame)?;
        Ok(header_len + self.emit(&mut frame[header_len..])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Mac = Mac([2, 0, 0x5e, 0, 0x53, 1]);
    const THEIRS: Mac = Mac([2, 0, 0x5e, 0, 0x53, 2]);
    /// Who has 192.0.2.2? Tell 192.0.2.1.
    const REQUEST: [u8; 42] = [
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0x5e, 0, 0x53, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0x5e,
        0, 0x53, 1, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, 2,
    ];
    /// 192.0.2.2 is at 02:00:5e:00:53:02.
    const REPLY: [u8; 42] = [
        2, 0, 0x5e, 0, 0x53, 1, 2, 0, 0x5e, 0, 0x53, 2, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0x5e, 0, 0x53, 2,
        192, 0, 2, 2, 2, 0, 0x5e, 0, 0x53, 1, 192, 0, 2, 1,
    ];

    #[test]
    fn builds_requests_and_replies() {
        let mut buffer = [0; 60];
        let request = Arp::request(OURS, 0xc000_0201, 0xc000_0202);
        assert_eq!(request.emit_frame(&mut buffer), Ok(42));
        assert_eq!(buffer[..42], REQUEST);
        assert_eq!(Arp::parse(&buffer[14..]), Ok(request));
        assert_eq!(request.reply(THEIRS).emit_frame(&mut buffer), Ok(42));
        assert_eq!(buffer[..42], REPLY);
        assert_eq!(request.emit(&mut buffer[..27]), Err(NoRoom { needed: 28, room: 27 }));
    }

    #[test]
    fn rejects_group_addresses_and_other_formats() {
        let fault = |at: usize, byte: u8| {
            let mut message = REPLY;
            message[14 + at] = byte;
            Arp::parse(&message[14..]).err()
        };
        assert_eq!(fault(8, 3), Some(Malformed::Address));
        for (at, byte) in [(1, 6), (3, 1), (4, 8), (5, 16)] {
            assert_eq!(fault(at, byte), Some(Malformed::Kind));
        }
        assert_eq!(Arp::parse(&REPLY[14..41]), Err(Malformed::Short));
    }
}
