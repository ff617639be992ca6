//! A cipher alone: the same call for all libraries, for measuring them.
//!
//! Packets are in slots of equal size. No headers, numbers or windows: only what the library does with a burst.

use crate::cipher::Cipher;
use crate::failure::Failure;
use crate::library::{Choice, Library};
use crate::multi::{BURST, Lanes, Open, Seal};
use crate::secret::Secret;
use crate::suite::{ESP_HEADER, Suite};

/// Slots are some way apart, as those of frames are.
const SLOT_MARGIN: usize = 192;
const SLOT_ALIGNMENT: usize = 64;

/// One library with keys of a suite.
pub struct Bare {
    cipher: Cipher,
    lanes: Lanes,
    suite: Suite,
}

impl Bare {
    /// Keys of the suite, and what its library needs.
    pub fn new(suite: Suite, library: Library) -> Self {
        let [encryption, integrity] =
            [suite.encryption_key_len(), suite.integrity_key_len()].map(|len| Secret::new(&vec![7; len]));
        let cipher = Cipher::new(suite, &encryption, &integrity, Choice::one(library));
        Self { cipher, lanes: Lanes::with([library]), suite }
    }

    /// Bytes for a burst of packets of `payload` bytes.
    pub(crate) fn memory(payload: usize) -> usize {
        slot(payload) * BURST
    }

    /// Encrypts a burst of packets with `payload` bytes each.
    pub(crate) fn seal(&mut self, memory: &mut [u8], payload: usize) {
        let length = Self::length(self.suite, payload);
        self.seal_all(memory.chunks_exact_mut(slot(payload)).map(|slot| &mut slot[..length]));
    }

    /// Decrypts them.
    pub(crate) fn open(&mut self, memory: &mut [u8], payload: usize) -> bool {
        let length = Self::length(self.suite, payload);
        self.open_all(memory.chunks_exact_mut(slot(payload)).map(|slot| &mut slot[..length]))
    }

    /// Bytes of an ESP packet, from its SPI to its ICV, of which this many are encrypted, or a few less to make whole
    /// blocks.
    pub fn length(suite: Suite, encrypted: usize) -> usize {
        let whole = encrypted & !(suite.alignment() - 1);
        ESP_HEADER + suite.iv_len() + whole + suite.icv_len()
    }

    /// What [`length`](Self::length) depends on.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Encrypts ESP packets of lengths that [`length`](Self::length) has returned.
    pub fn seal_all<'a>(&mut self, packets: impl Iterator<Item = &'a mut [u8]>) {
        let jobs = packets.map(|packet| Seal { packet, iv: 5, esn_high: Some(0) });
        self.cipher.seal_all(&mut self.lanes, jobs);
    }

    /// Decrypts them; returns whether all of them had the right ICV.
    pub fn open_all<'a>(&mut self, packets: impl Iterator<Item = &'a mut [u8]>) -> bool {
        let mut packets = packets.peekable();
        let mut all = true;
        while packets.peek().is_some() {
            let mut outcomes = [const { Ok::<(), Failure>(()) }; BURST];
            let jobs = packets.by_ref().take(BURST).zip(&mut outcomes);
            let jobs = jobs.map(|(packet, outcome)| Open { packet, esn_high: Some(0), outcome });
            self.cipher.open_all(&mut self.lanes, jobs);
            all &= outcomes.iter().all(Result::is_ok);
        }
        all
    }
}

fn slot(payload: usize) -> usize {
    (payload + SLOT_MARGIN).next_multiple_of(SLOT_ALIGNMENT)
}
