//! The ciphers of a suite, called as directly as their libraries allow.

use aes::{Aes128, Aes256};
use bm_ipsec::Suite;
use cbc::cipher::array::Array;
use cbc::cipher::typenum::U16;
use cbc::cipher::{BlockModeDecrypt, BlockModeEncrypt, InnerIvInit};
use hmac::{Hmac, KeyInit, Mac};
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use sha1::Sha1;
use sha2::Sha256;

type Block = Array<u8, U16>;

/// Bytes behind the payload for any tag.
pub const TAG_MAX: usize = 16;

/// A keyed suite.
pub enum Bare {
    Aead(Box<LessSafeKey>),
    Cbc { aes: Aes, mac: Box<Hash> },
}

/// The block cipher of a CBC suite, with its key.
pub enum Aes {
    Aes128(Box<Aes128>),
    Aes256(Box<Aes256>),
}

/// The integrity algorithm of a CBC suite, with its key.
pub enum Hash {
    Sha256(Hmac<Sha256>),
    Sha1(Hmac<Sha1>),
}

/// The library of a suite, as the rows name it.
pub fn library(suite: Suite) -> &'static str {
    if suite.is_aead() { "ring" } else { "RustCrypto" }
}

impl Bare {
    pub fn new(suite: Suite) -> Self {
        let aead = |algorithm, key: &[u8]| {
            let key = UnboundKey::new(algorithm, key).expect("the length is right");
            Self::Aead(Box::new(LessSafeKey::new(key)))
        };
        let aes = |length| match length {
            16 => Aes::Aes128(Box::new(Aes128::new(&[1; 16].into()))),
            _ => Aes::Aes256(Box::new(Aes256::new(&[1; 32].into()))),
        };
        let hash = |length| match length {
            20 => Hash::Sha1(Hmac::new_from_slice(&[2; 20]).expect("any length will do")),
            _ => Hash::Sha256(Hmac::new_from_slice(&[2; 32]).expect("any length will do")),
        };
        match suite {
            Suite::Aes128Gcm => aead(&AES_128_GCM, &[1; 16]),
            Suite::Aes256Gcm => aead(&AES_256_GCM, &[1; 32]),
            Suite::ChaCha20Poly1305 => aead(&CHACHA20_POLY1305, &[1; 32]),
            _ => Self::Cbc {
                aes: aes(suite.encryption_key_len()),
                mac: Box::new(hash(suite.integrity_key_len())),
            },
        }
    }

    /// Encrypts all but the last bytes, and writes the tag there. The nonce is always the same, which takes as long
    /// as one that counts.
    #[inline]
    pub fn seal(&self, bytes: &mut [u8]) {
        let (payload, tag) = bytes.split_last_chunk_mut::<TAG_MAX>().expect("there is room for a tag");
        match self {
            Self::Aead(key) => {
                let sealed = key.seal_in_place_separate_tag(nonce(), Aad::from([3; 12]), payload);
                tag.copy_from_slice(sealed.expect("a packet is short").as_ref());
            }
            Self::Cbc { aes, mac } => {
                let (blocks, _) = Block::slice_as_chunks_mut(payload);
                let iv = Block::default();
                match aes {
                    Aes::Aes128(aes) => cbc::Encryptor::inner_iv_init(&**aes, &iv).encrypt_blocks(blocks),
                    Aes::Aes256(aes) => cbc::Encryptor::inner_iv_init(&**aes, &iv).encrypt_blocks(blocks),
                }
                tag.copy_from_slice(&mac.tag(payload));
            }
        }
    }

    /// Checks the tag and decrypts.
    ///
    /// # Panics
    /// If the tag is wrong: each packet is decrypted once after it was encrypted.
    #[inline]
    pub fn open(&self, bytes: &mut [u8]) {
        match self {
            Self::Aead(key) => {
                key.open_in_place(nonce(), Aad::from([3; 12]), bytes).expect("it was sealed with this key");
            }
            Self::Cbc { aes, mac } => {
                let (payload, tag) =
                    bytes.split_last_chunk_mut::<TAG_MAX>().expect("there is room for a tag");
                assert_eq!(mac.tag(payload), *tag, "it was sealed with this key");
                let (blocks, _) = Block::slice_as_chunks_mut(payload);
                let iv = Block::default();
                match aes {
                    Aes::Aes128(aes) => cbc::Decryptor::inner_iv_init(&**aes, &iv).decrypt_blocks(blocks),
                    Aes::Aes256(aes) => cbc::Decryptor::inner_iv_init(&**aes, &iv).decrypt_blocks(blocks),
                }
            }
        }
    }
}

fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([5; 12])
}

impl Hash {
    fn tag(&self, bytes: &[u8]) -> [u8; TAG_MAX] {
        match self {
            Self::Sha256(mac) => first(mac.clone().chain_update(bytes).finalize().as_bytes()),
            Self::Sha1(mac) => first(mac.clone().chain_update(bytes).finalize().as_bytes()),
        }
    }
}

fn first(hash: &[u8]) -> [u8; TAG_MAX] {
    *hash.first_chunk().expect("hashes are longer than tags")
}
