//! ESP of any payload, without IP headers: for programs that build the packets around it themselves.
//!
//! ```text
//! | ESP header, IV | payload | padding, trailer | ICV |
//!  '--- FRONT ---'            '----- back(length) ----'
//! ```
//!
//! The suite is AES-128-GCM with extended sequence numbers. IVs are sequence numbers, exclusive or a mask, as of
//! [`Outbound`](crate::Outbound).

use std::ops::Range;

use bm_wire::protocol;

use crate::choice;
use crate::cipher::Cipher;
use crate::encrypt::write_trailer;
use crate::failure::Failure;
use crate::replay::{WINDOW_MAX, Window};
use crate::sa::Direction;
use crate::secret::Secret;
use crate::suite::{ESP_HEADER, Suite};

const SUITE: Suite = Suite::Aes128Gcm;
/// Bytes in front of the payload.
pub const FRONT: usize = ESP_HEADER + 8;
/// Bytes of the key, with the salt behind it.
pub const KEY: usize = 20;

/// Encrypts.
pub struct PayloadSender {
    cipher: Cipher,
    spi: u32,
    iv_mask: u64,
    /// The number of the last packet.
    number: u64,
}

/// Decrypts.
pub struct PayloadReceiver {
    cipher: Cipher,
    spi: u32,
    window: Window,
    resync: Resync,
    /// Packets in a row whose ICV was wrong.
    failures: u32,
}

/// When and how to find out that the high half of sequence numbers has advanced unseen (RFC 4303, A3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resync {
    /// After how many failures in a row.
    pub after: u32,
    /// How many high halves are tried for each further packet.
    pub attempts: u32,
}

/// Bytes behind a payload of this length.
pub fn back(length: usize) -> usize {
    SUITE.padding(length) + 2 + SUITE.icv_len()
}

fn cipher(key: &[u8; KEY], direction: Direction) -> Cipher {
    Cipher::new(SUITE, &Secret::new(key), &Secret::none(), choice::of(SUITE, direction))
}

impl PayloadSender {
    /// A sender whose first packet has the number 1. `iv_mask` must be random: another sender with the same key, such as
    /// that of the same program after a restart, then uses other IVs, except with a probability of at most 2^-32 if both
    /// stay below 2^32 packets.
    pub fn new(spi: u32, key: &[u8; KEY], iv_mask: u64) -> Self {
        Self { cipher: cipher(key, Direction::Out), spi, iv_mask, number: 0 }
    }

    /// Makes an ESP packet of `packet`, in which [`FRONT`] bytes are in front of a payload of `length` bytes, and
    /// [`back`] bytes behind it.
    ///
    /// # Errors
    /// [`Failure::Malformed`] if `packet` has another length; [`Failure::SequenceOverflow`].
    pub fn seal(&mut self, packet: &mut [u8], length: usize, next_header: u8) -> Result<(), Failure> {
        if packet.len() != FRONT + length + back(length) {
            return Err(Failure::Malformed);
        }
        let number = self.number.checked_add(1).ok_or(Failure::SequenceOverflow)?;
        self.number = number;
        packet[..4].copy_from_slice(&self.spi.to_be_bytes());
        packet[4..ESP_HEADER].copy_from_slice(&(number as u32).to_be_bytes());
        write_trailer(packet, SUITE, length, next_header);
        self.cipher.seal(packet, number ^ self.iv_mask, Some((number >> 32) as u32));
        Ok(())
    }
}

impl PayloadReceiver {
    /// A receiver with a window of at least `window` packets, but no more than [`WINDOW_MAX`].
    pub fn new(spi: u32, key: &[u8; KEY], window: u32, resync: Resync) -> Self {
        let window = Window::new(window.clamp(1, WINDOW_MAX), true);
        Self { cipher: cipher(key, Direction::In), spi, window, resync, failures: 0 }
    }

    /// Decrypts an ESP packet in place: where its payload is, and its next header. After a failure its contents are
    /// undefined.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn open(&mut self, packet: &mut [u8]) -> Result<(Range<usize>, u8), Failure> {
        let encrypted = packet.len().checked_sub(FRONT + SUITE.icv_len()).ok_or(Failure::TooShort)?;
        if encrypted < 2 || !encrypted.is_multiple_of(SUITE.alignment()) {
            return Err(Failure::TooShort);
        }
        let [spi, low] = [0, 4].map(|at| u32::from_be_bytes([0, 1, 2, 3].map(|byte| packet[at + byte])));
        if spi != self.spi {
            return Err(Failure::NoSa);
        }
        let mut number = self.window.check(low)?;
        // A failed attempt destroys the packet.
        let copy = (self.failures >= self.resync.after).then(|| packet.to_vec());
        if let Err(failure) = self.cipher.open(packet, Some((number >> 32) as u32)) {
            self.failures = self.failures.saturating_add(1);
            number = copy.and_then(|copy| self.resynchronize(packet, &copy, number)).ok_or(failure)?;
        }
        self.failures = 0;
        self.window.advance(number);
        // What is in the padding is not checked: Snabb leaves there what was in memory.
        let [padding, next_header] = [2, 1].map(|back| packet[FRONT + encrypted - back]);
        let length = (encrypted - 2).checked_sub(padding.into()).ok_or(Failure::Padding)?;
        // RFC 4303 2.6.
        if next_header == protocol::NO_NEXT {
            return Err(Failure::Dummy);
        }
        Ok((FRONT..FRONT + length, next_header))
    }

    /// Tries the high halves after that of `number`.
    fn resynchronize(&self, packet: &mut [u8], copy: &[u8], number: u64) -> Option<u64> {
        let mut numbers =
            (1..=u64::from(self.resync.attempts)).map_while(|more| number.checked_add(more << 32));
        numbers.find(|number| {
            packet.copy_from_slice(copy);
            self.cipher.open(packet, Some((number >> 32) as u32)).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY_OF_TEST: [u8; KEY] = [7; KEY];
    const SPI: u32 = 0x1001;
    const MASK: u64 = 0x1234_5678_9abc_def0;
    const RESYNC: Resync = Resync { after: 3, attempts: 4 };

    fn receiver() -> PayloadReceiver {
        PayloadReceiver::new(SPI, &KEY_OF_TEST, 64, RESYNC)
    }

    fn sealed(sender: &mut PayloadSender, payload: &[u8]) -> Vec<u8> {
        sealed_as(sender, payload, 41)
    }

    fn sealed_as(sender: &mut PayloadSender, payload: &[u8], next_header: u8) -> Vec<u8> {
        let mut packet = vec![0; FRONT];
        packet.extend(payload);
        packet.resize(FRONT + payload.len() + back(payload.len()), 0);
        sender.seal(&mut packet, payload.len(), next_header).unwrap();
        packet
    }

    #[test]
    fn payloads_of_all_lengths_survive() {
        let (mut sender, mut receiver) = (PayloadSender::new(SPI, &KEY_OF_TEST, MASK), receiver());
        for length in 0..200u8 {
            let payload: Vec<u8> = (0..length).collect();
            let packet = sealed(&mut sender, &payload);
            assert!(packet.len().is_multiple_of(4));
            let mut opened = packet.clone();
            let (range, next_header) = receiver.open(&mut opened).unwrap();
            assert_eq!((&opened[range], next_header), (&payload[..], 41));
            assert_eq!(receiver.open(&mut packet.clone()), Err(Failure::Replay));
        }
        // A changed packet, one with another SPI, a part of one, and a dummy are refused.
        let packet = sealed(&mut sender, b"payload");
        for (at, failure) in [(0, Failure::NoSa), (packet.len() - 1, Failure::Integrity)] {
            let mut bad = packet.clone();
            bad[at] ^= 1;
            assert_eq!(receiver.open(&mut bad), Err(failure));
        }
        assert_eq!(receiver.open(&mut packet[..FRONT + 16].to_vec()), Err(Failure::TooShort));
        assert!(receiver.open(&mut packet.clone()).is_ok());
        assert_eq!(receiver.open(&mut sealed_as(&mut sender, b"", 59)), Err(Failure::Dummy));
        assert_eq!(sender.seal(&mut [0; 20], 8, 41), Err(Failure::Malformed));
    }

    #[test]
    fn senders_with_the_same_key_have_other_ivs() {
        let [one, other] =
            [1, 2].map(|mask| sealed(&mut PayloadSender::new(SPI, &KEY_OF_TEST, mask), b"same"));
        assert_eq!(one[..ESP_HEADER], other[..ESP_HEADER]);
        assert!(one[ESP_HEADER..FRONT] != other[ESP_HEADER..FRONT] && one[FRONT..] != other[FRONT..]);
    }

    #[test]
    fn an_inbound_sa_takes_what_a_sender_makes() {
        // The IP header in front, as a program would add it.
        use crate::{Direction, Inbound, Sa, SaId, locate};
        let id = SaId { spi: SPI, destination: "192.0.2.2".parse().unwrap() };
        let source = "192.0.2.1".parse().unwrap();
        let key = Secret::new(&KEY_OF_TEST);
        let sa = Sa { encryption_key: key, esn: true, ..Sa::new(Direction::In, id, source, SUITE) };
        let mut inner = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let sum = bm_wire::checksum::checksum(&inner).to_be_bytes();
        inner[10..12].copy_from_slice(&sum);
        let mut sender = PayloadSender::new(SPI, &KEY_OF_TEST, MASK);
        let mut esp = vec![0; FRONT];
        esp.extend(&inner);
        esp.resize(FRONT + inner.len() + back(inner.len()), 0);
        sender.seal(&mut esp, inner.len(), 4).unwrap();
        let mut packet =
            vec![0x45, 0, 0, 20 + esp.len() as u8, 0, 0, 0, 0, 64, 50, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
        let sum = bm_wire::checksum::checksum(&packet).to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
        packet.extend(&esp);
        let located = locate(&packet).unwrap();
        let esp = match located {
            crate::Located::Esp(esp) => esp,
            other => panic!("{other:?}"),
        };
        let length = packet.len();
        let mut buffer = crate::Buffer::new(&mut packet, 0..length).unwrap();
        Inbound::new(&sa, 0).unwrap().decrypt(&mut buffer, &esp, 0).unwrap();
        assert_eq!(buffer.data(), inner);
    }

    #[test]
    fn the_high_half_is_found_after_failures() {
        let (mut sender, mut receiver) = (PayloadSender::new(SPI, &KEY_OF_TEST, MASK), receiver());
        receiver.open(&mut sealed(&mut sender, b"first")).unwrap();
        // 13 billion packets were lost.
        sender.number += 3 << 32;
        for _ in 0..RESYNC.after {
            let packet = sealed(&mut sender, b"later");
            assert_eq!(receiver.open(&mut packet.clone()), Err(Failure::Integrity));
        }
        for _ in 0..2 {
            let mut packet = sealed(&mut sender, b"later");
            let (range, _) = receiver.open(&mut packet).unwrap();
            assert_eq!(&packet[range], b"later");
        }
        // Replays do not count, and a packet that cannot be decrypted does no harm.
        let replay = sealed(&mut sender, b"once");
        receiver.open(&mut replay.clone()).unwrap();
        for _ in 0..2 * RESYNC.after {
            assert_eq!(receiver.open(&mut replay.clone()), Err(Failure::Replay));
        }
        assert_eq!(receiver.failures, 0);
        for _ in 0..2 * RESYNC.after {
            let mut bad = sealed(&mut sender, b"bad");
            bad[FRONT] ^= 1;
            assert_eq!(receiver.open(&mut bad), Err(Failure::Integrity));
        }
        assert!(receiver.open(&mut sealed(&mut sender, b"good")).is_ok());
    }
}
