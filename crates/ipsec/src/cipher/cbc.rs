//! AES-CBC (RFC 3602) with HMAC-SHA-256-128 (RFC 4868) or HMAC-SHA-1-96 (RFC 2404): encrypted first, then hashed.
//!
//! The IV must be unpredictable. It is the encryption of a number that is not used twice, under the same key
//! (NIST SP 800-38A, appendix C).

use aes::{Aes128, Aes256};
use cbc::cipher::array::Array;
use cbc::cipher::typenum::U16;
use cbc::cipher::{BlockCipherEncrypt, BlockModeDecrypt, BlockModeEncrypt, InnerIvInit, KeyInit};
use hmac::Mac;

use crate::failure::Failure;
use crate::suite::{AES_BLOCK, ESP_HEADER};

type Block = Array<u8, U16>;

/// The expanded keys of both directions; both types wipe themselves.
enum Aes {
    Aes128(Box<Aes128>),
    Aes256(Box<Aes256>),
}

/// Runs an expression with whichever cipher it is.
macro_rules! with {
    ($aes:expr, $cipher:ident => $body:expr) => {
        match $aes {
            Aes::Aes128($cipher) => $body,
            Aes::Aes256($cipher) => $body,
        }
    };
}

/// Keys of a CBC suite. `M` has absorbed the key for integrity; a clone of it hashes one packet.
pub(crate) struct Cbc<M> {
    aes: Aes,
    mac: M,
    icv_len: usize,
}

impl<M: Mac + Clone + hmac::KeyInit> Cbc<M> {
    /// From keys whose lengths have been checked.
    pub fn new(encryption: &[u8], integrity: &[u8], icv_len: usize) -> Self {
        let aes = match encryption.len() {
            16 => Aes::Aes128(Box::new(Aes128::new_from_slice(encryption).expect("it has 16 bytes"))),
            _ => Aes::Aes256(Box::new(
                Aes256::new_from_slice(encryption).expect("the caller has checked the length"),
            )),
        };
        let mac = <M as hmac::KeyInit>::new_from_slice(integrity).expect("HMAC takes keys of any length");
        Self { aes, mac, icv_len }
    }

    /// The IV for a number.
    #[inline]
    pub fn iv(&self, number: u64) -> Block {
        let mut iv = Block::default();
        iv[..8].copy_from_slice(&number.to_be_bytes());
        with!(&self.aes, aes => aes.encrypt_block(&mut iv));
        iv
    }

    /// Encrypts and hashes; see [`Cipher::seal`](super::Cipher::seal).
    #[inline]
    pub fn seal(&self, packet: &mut [u8], iv: Block, esn_high: Option<u32>) {
        let (packet, icv) = packet.split_at_mut(packet.len() - self.icv_len);
        let (header, payload) = packet.split_at_mut(ESP_HEADER + AES_BLOCK);
        header[ESP_HEADER..].copy_from_slice(&iv);
        let (blocks, _) = Block::slice_as_chunks_mut(payload);
        with!(&self.aes, aes => cbc::Encryptor::inner_iv_init(&**aes, &iv).encrypt_blocks(blocks));
        icv.copy_from_slice(&self.hash(packet, esn_high).finalize().as_bytes()[..self.icv_len]);
    }

    /// Checks, then decrypts; see [`Cipher::open`](super::Cipher::open).
    #[inline]
    pub fn open(&self, packet: &mut [u8], esn_high: Option<u32>) -> Result<(), Failure> {
        let (packet, icv) = packet.split_at_mut(packet.len() - self.icv_len);
        // In constant time.
        self.hash(packet, esn_high).verify_truncated_left(icv).map_err(|_| Failure::Integrity)?;
        let (header, payload) = packet.split_at_mut(ESP_HEADER + AES_BLOCK);
        let mut iv = Block::default();
        iv.copy_from_slice(&header[ESP_HEADER..]);
        let (blocks, _) = Block::slice_as_chunks_mut(payload);
        with!(&self.aes, aes => cbc::Decryptor::inner_iv_init(&**aes, &iv).decrypt_blocks(blocks));
        Ok(())
    }

    #[inline]
    fn hash(&self, packet: &[u8], esn_high: Option<u32>) -> M {
        let mut mac = self.mac.clone();
        mac.update(packet);
        if let Some(high) = esn_high {
            // RFC 4303 2.2.1: as if it followed the packet, though it is not sent.
            mac.update(&high.to_be_bytes());
        }
        mac
    }
}
