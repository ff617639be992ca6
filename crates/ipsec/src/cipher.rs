//! What encrypts and checks ESP packets, with the keys of one SA.
//!
//! ```text
//! | SPI | sequence | IV | payload, padding, pad length, next header | ICV |
//! '-- additional data --'   '------------- encrypted --------------'         AES-GCM, ChaCha20-Poly1305: `aead`
//! '------------------------- HMAC, and then the high half of an ESN ----'    AES-CBC with HMAC: `cbc`, `multi`
//! ```
//!
//! Each packet of an AEAD suite is encrypted by itself, with ring or intel-ipsec-mb. Suites of CBC and HMAC gain by
//! working on several packets at once, which intel-ipsec-mb does; single packets are for RustCrypto. See
//! docs/decisions/0035-ipsec.md and 0059-ipsec-mb.md.

mod aead;
mod cbc;

use std::array;

use crate::failure::Failure;
use crate::library::{Choice, Library, Manager};
use crate::multi::{BURST, Engine, Lanes, MultiCbc, Open, Seal, shared};
use crate::secret::Secret;
use crate::suite::Suite;
use aead::Aead;
use cbc::Cbc;
use sha1::Sha1;
use sha2::Sha256;

/// The keys of an SA, ready for use. They are wiped when it is dropped.
pub(crate) struct Cipher {
    one: One,
    /// For several packets at once.
    several: Option<(Manager, MultiCbc)>,
}

/// For one packet.
enum One {
    Aead(Aead),
    Sha256(Cbc<hmac::Hmac<Sha256>>),
    Sha1(Cbc<hmac::Hmac<Sha1>>),
}

impl Cipher {
    /// Prepares keys, whose lengths have been checked, for these libraries.
    pub fn new(suite: Suite, encryption: &Secret, integrity: &Secret, choice: Choice) -> Self {
        let (encryption, integrity, icv_len) = (encryption.bytes(), integrity.bytes(), suite.icv_len());
        let one = match suite {
            Suite::Aes128Gcm | Suite::Aes256Gcm | Suite::ChaCha20Poly1305 => {
                One::Aead(Aead::new(suite, encryption, choice))
            }
            Suite::Aes128Sha256 | Suite::Aes256Sha256 => {
                One::Sha256(Cbc::new(encryption, integrity, icv_len))
            }
            Suite::Aes128Sha1 | Suite::Aes256Sha1 => One::Sha1(Cbc::new(encryption, integrity, icv_len)),
        };
        let several = match choice.libraries()[0] {
            Library::IpsecMb(manager) if !suite.is_aead() => {
                let mut lanes = shared();
                let engine = lanes.engine(manager);
                engine.and_then(|engine| MultiCbc::new(engine, encryption, integrity, icv_len))
            }
            .map(|keys| (manager, keys)),
            _ => None,
        };
        Self { one, several }
    }

    /// Encrypts a packet from its SPI to its ICV, in which everything but the IV and ICV is in place, and writes these.
    /// `iv` is a number that was never used with these keys; `esn_high` is the high half of an extended number.
    #[inline]
    pub fn seal(&self, packet: &mut [u8], iv: u64, esn_high: Option<u32>) {
        match &self.one {
            One::Aead(aead) => aead.seal(packet, iv, esn_high),
            One::Sha256(cbc) => cbc.seal(packet, cbc.iv(iv), esn_high),
            One::Sha1(cbc) => cbc.seal(packet, cbc.iv(iv), esn_high),
        }
    }

    /// Checks the ICV of a packet, and decrypts it if that is right. The packet has room for IV and ICV, and what is
    /// between them is whole blocks.
    ///
    /// # Errors
    /// [`Failure::Integrity`].
    #[inline]
    pub fn open(&self, packet: &mut [u8], esn_high: Option<u32>) -> Result<(), Failure> {
        match &self.one {
            One::Aead(aead) => aead.open(packet, esn_high),
            One::Sha256(cbc) => cbc.open(packet, esn_high),
            One::Sha1(cbc) => cbc.open(packet, esn_high),
        }
    }

    /// Whether it is faster with several packets at once.
    #[inline]
    pub(crate) fn takes_several(&self, lanes: &mut Lanes) -> bool {
        self.several(lanes).is_some()
    }

    #[inline]
    fn several<'l>(&self, lanes: &'l mut Lanes) -> Option<(&MultiCbc, &'l mut Engine)> {
        let (manager, keys) = self.several.as_ref()?;
        Some((keys, lanes.engine(*manager)?))
    }

    /// Encrypts packets as [`seal`](Self::seal) does, each with a number of its own.
    #[inline]
    pub fn seal_all<'a>(&self, lanes: &mut Lanes, mut packets: impl Iterator<Item = Seal<'a>>) {
        let Some((keys, engine)) = self.several(lanes) else {
            return packets.for_each(|job| self.seal(job.packet, job.iv, job.esn_high));
        };
        loop {
            let mut burst: [Option<Seal<'_>>; BURST] = array::from_fn(|_| packets.next());
            match burst.iter().flatten().count() {
                0 => return,
                1 => burst.into_iter().flatten().for_each(|job| self.seal(job.packet, job.iv, job.esn_high)),
                _ => keys.seal(engine, &mut burst),
            }
        }
    }

    /// Checks and decrypts packets as [`open`](Self::open) does, and writes [`Failure::Integrity`] for those that are
    /// not right.
    #[inline]
    pub fn open_all<'a>(&self, lanes: &mut Lanes, mut packets: impl Iterator<Item = Open<'a>>) {
        let Some((keys, engine)) = self.several(lanes) else {
            return packets.for_each(|job| self.open_one(job));
        };
        loop {
            let mut burst: [Option<Open<'_>>; BURST] = array::from_fn(|_| packets.next());
            match burst.iter().flatten().count() {
                0 => return,
                1 => burst.into_iter().flatten().for_each(|job| self.open_one(job)),
                _ => keys.open(engine, &mut burst),
            }
        }
    }

    #[inline]
    fn open_one(&self, job: Open<'_>) {
        if let Err(failure) = self.open(job.packet, job.esn_high) {
            *job.outcome = Err(failure);
        }
    }
}

#[cfg(test)]
mod tests;
