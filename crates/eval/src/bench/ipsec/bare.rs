//! The ciphers of a suite, called as directly as their libraries allow.

use aes::{Aes128, Aes256};
use bm_ipsec::{Library, Suite};
use cbc::cipher::array::Array;
use cbc::cipher::typenum::U16;
use cbc::cipher::{BlockModeDecrypt, BlockModeEncrypt, InnerIvInit};
use hmac::{Hmac, KeyInit, Mac};
use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use sha1::Sha1;
use sha2::Sha256;

type Block = Array<u8, U16>;

/// Bytes behind the payload for any tag.
pub const TAG_MAX: usize = 16;

/// A suite with its keys, in one library.
pub enum Bare {
    Ring(Box<LessSafeKey>),
    RustCrypto {
        aes: Aes,
        mac: Box<Hash>,
    },
    /// Bursts, through the calls that `bm_ipsec` uses itself.
    IpsecMb(Box<bm_ipsec::Bare>),
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

impl Bare {
    pub fn new(suite: Suite, library: Library) -> Self {
        if let Library::IpsecMb(_) = library {
            return Self::IpsecMb(Box::new(bm_ipsec::Bare::new(suite, library)));
        }
        let aes = match suite.encryption_key_len() {
            16 => Aes::Aes128(Box::new(Aes128::new(&[1; 16].into()))),
            _ => Aes::Aes256(Box::new(Aes256::new(&[1; 32].into()))),
        };
        let hash = match suite.integrity_key_len() {
            20 => Hash::Sha1(Hmac::new_from_slice(&[2; 20]).expect("any length will do")),
            _ => Hash::Sha256(Hmac::new_from_slice(&[2; 32]).expect("any length will do")),
        };
        match suite {
            Suite::Aes128Gcm => Self::aead(&AES_128_GCM, &[1; 16]),
            Suite::Aes256Gcm => Self::aead(&AES_256_GCM, &[1; 32]),
            Suite::ChaCha20Poly1305 => Self::aead(&CHACHA20_POLY1305, &[1; 32]),
            _ => Self::RustCrypto { aes, mac: Box::new(hash) },
        }
    }

    fn aead(algorithm: &'static Algorithm, key: &[u8]) -> Self {
        let key = UnboundKey::new(algorithm, key).expect("the length is right");
        Self::Ring(Box::new(LessSafeKey::new(key)))
    }

    /// Bytes of a packet and what the library adds to it, from the packet's.
    pub fn lengths(&self) -> impl Fn(usize) -> usize + use<> {
        let suite = match self {
            Self::Ring(_) | Self::RustCrypto { .. } => None,
            Self::IpsecMb(bare) => Some(bare.suite()),
        };
        move |packet| suite.map_or(packet + TAG_MAX, |suite| bm_ipsec::Bare::length(suite, packet))
    }

    /// Encrypts packets of lengths that `lengths` has returned, and writes their tags.
    #[inline]
    pub fn seal<'a>(&mut self, packets: impl Iterator<Item = &'a mut [u8]>) {
        match self {
            Self::Ring(key) => packets.for_each(|bytes| seal_aead(key, bytes)),
            Self::RustCrypto { aes, mac } => packets.for_each(|bytes| seal_cbc(aes, mac, bytes)),
            Self::IpsecMb(bare) => bare.seal_all(packets),
        }
    }

    /// Checks the tags and decrypts.
    ///
    /// # Panics
    /// If a tag is wrong: each packet is decrypted once after it was encrypted.
    #[inline]
    pub fn open<'a>(&mut self, packets: impl Iterator<Item = &'a mut [u8]>) {
        match self {
            Self::Ring(key) => packets.for_each(|bytes| {
                key.open_in_place(nonce(), Aad::from([3; 12]), bytes).expect("it was sealed with this key");
            }),
            Self::RustCrypto { aes, mac } => packets.for_each(|bytes| open_cbc(aes, mac, bytes)),
            Self::IpsecMb(bare) => assert!(bare.open_all(packets), "they were sealed with this key"),
        }
    }
}

/// Encrypts all but the last bytes, and writes the tag there. The nonce is always the same, which takes as long as one
/// that counts.
#[inline]
fn seal_aead(key: &LessSafeKey, bytes: &mut [u8]) {
    let (payload, tag) = bytes.split_last_chunk_mut::<TAG_MAX>().expect("there is room for a tag");
    let sealed = key.seal_in_place_separate_tag(nonce(), Aad::from([3; 12]), payload);
    tag.copy_from_slice(sealed.expect("a packet is short").as_ref());
}

#[inline]
fn seal_cbc(aes: &Aes, mac: &Hash, bytes: &mut [u8]) {
    let (payload, tag) = bytes.split_last_chunk_mut::<TAG_MAX>().expect("there is room for a tag");
    let (blocks, _) = Block::slice_as_chunks_mut(payload);
    let iv = Block::default();
    match aes {
        Aes::Aes128(aes) => cbc::Encryptor::inner_iv_init(&**aes, &iv).encrypt_blocks(blocks),
        Aes::Aes256(aes) => cbc::Encryptor::inner_iv_init(&**aes, &iv).encrypt_blocks(blocks),
    }
    tag.copy_from_slice(&mac.tag(payload));
}

#[inline]
fn open_cbc(aes: &Aes, mac: &Hash, bytes: &mut [u8]) {
    let (payload, tag) = bytes.split_last_chunk_mut::<TAG_MAX>().expect("there is room for a tag");
    assert_eq!(mac.tag(payload), *tag, "it was sealed with this key");
    let (blocks, _) = Block::slice_as_chunks_mut(payload);
    let iv = Block::default();
    match aes {
        Aes::Aes128(aes) => cbc::Decryptor::inner_iv_init(&**aes, &iv).decrypt_blocks(blocks),
        Aes::Aes256(aes) => cbc::Decryptor::inner_iv_init(&**aes, &iv).decrypt_blocks(blocks),
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
