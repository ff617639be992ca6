//! What encrypts and checks one ESP packet, with the keys of one SA.
//!
//! ```text
//! | SPI | sequence | IV | payload, padding, pad length, next header | ICV |
//! '-- additional data --'   '------------- encrypted --------------'         AES-GCM, ChaCha20-Poly1305: `aead`
//! '------------------------- HMAC, and then the high half of an ESN ----'    AES-CBC with HMAC: `cbc`
//! ```
//!
//! AES-GCM and ChaCha20-Poly1305 are those of ring, AES-CBC and HMAC those of RustCrypto; see docs/decisions/0035-ipsec.md.

mod aead;
mod cbc;

use crate::failure::Failure;
use crate::secret::Secret;
use crate::suite::Suite;
use aead::Aead;
use cbc::Cbc;
use sha1::Sha1;
use sha2::Sha256;

/// Bytes of SPI and sequence number.
pub(crate) const ESP_HEADER: usize = 8;

/// The keys of an SA, ready for use. They are wiped when it is dropped.
pub(crate) enum Cipher {
    Aead(Aead),
    Sha256(Cbc<hmac::Hmac<Sha256>>),
    Sha1(Cbc<hmac::Hmac<Sha1>>),
}

impl Cipher {
    /// Prepares keys, whose lengths have been checked.
    pub fn new(suite: Suite, encryption: &Secret, integrity: &Secret) -> Self {
        match suite {
            Suite::Aes128Gcm | Suite::Aes256Gcm | Suite::ChaCha20Poly1305 => {
                Self::Aead(Aead::new(suite, encryption.bytes()))
            }
            Suite::Aes128Sha256 | Suite::Aes256Sha256 => {
                Self::Sha256(Cbc::new(encryption.bytes(), integrity.bytes(), suite.icv_len()))
            }
            Suite::Aes128Sha1 | Suite::Aes256Sha1 => {
                Self::Sha1(Cbc::new(encryption.bytes(), integrity.bytes(), suite.icv_len()))
            }
        }
    }

    /// Encrypts a packet from its SPI to its ICV, in which everything but the IV and ICV is in place, and writes these.
    /// `iv` is a number that was never used with these keys; `esn_high` is the high half of an extended number.
    #[inline]
    pub fn seal(&self, packet: &mut [u8], iv: u64, esn_high: Option<u32>) {
        match self {
            Self::Aead(aead) => aead.seal(packet, iv, esn_high),
            Self::Sha256(cbc) => cbc.seal(packet, cbc.iv(iv), esn_high),
            Self::Sha1(cbc) => cbc.seal(packet, cbc.iv(iv), esn_high),
        }
    }

    /// Checks the ICV of a packet, and decrypts it if that is right. The packet has room for IV and ICV, and what is
    /// between them is whole blocks.
    ///
    /// # Errors
    /// [`Failure::Integrity`].
    #[inline]
    pub fn open(&self, packet: &mut [u8], esn_high: Option<u32>) -> Result<(), Failure> {
        match self {
            Self::Aead(aead) => aead.open(packet, esn_high),
            Self::Sha256(cbc) => cbc.open(packet, esn_high),
            Self::Sha1(cbc) => cbc.open(packet, esn_high),
        }
    }
}

#[cfg(test)]
mod tests;
