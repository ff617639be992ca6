//! AES-GCM (RFC 4106) and ChaCha20-Poly1305 (RFC 7634): one algorithm encrypts and protects integrity.
//!
//! The nonce is the salt, which is part of the key, and the IV of the packet. The IV may be any number that is not
//! used twice with a key.

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use super::ESP_HEADER;
use crate::failure::Failure;
use crate::suite::{SALT_LEN, Suite};
use crate::wiped::Wiped;

const IV_LEN: usize = 8;
const ICV_LEN: usize = 16;
/// SPI, high and low half of an extended sequence number.
const AAD_ESN: usize = 12;

/// A key of an AEAD suite.
pub(crate) struct Aead(Wiped<Keyed>);

/// Plain values: ring keeps the expanded key in the structure itself.
struct Keyed {
    key: LessSafeKey,
    salt: [u8; SALT_LEN],
}

impl Aead {
    /// `key` has the salt behind it.
    pub fn new(suite: Suite, key: &[u8]) -> Self {
        let algorithm = match suite {
            Suite::Aes128Gcm => &AES_128_GCM,
            Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
            _ => &AES_256_GCM,
        };
        let (key, salt) = key.split_last_chunk().expect("the caller has checked the length");
        let key = UnboundKey::new(algorithm, key).expect("the caller has checked the length");
        Self(Wiped::new(Keyed { key: LessSafeKey::new(key), salt: *salt }))
    }

    /// See [`Cipher::seal`](super::Cipher::seal).
    #[inline]
    pub fn seal(&self, packet: &mut [u8], iv: u64, esn_high: Option<u32>) {
        let (packet, icv) = packet.split_last_chunk_mut::<ICV_LEN>().expect("the caller has made room");
        let (header, payload) = packet.split_at_mut(ESP_HEADER + IV_LEN);
        header[ESP_HEADER..].copy_from_slice(&iv.to_be_bytes());
        let (nonce, (aad, length)) = (self.nonce(&header[ESP_HEADER..]), additional(header, esn_high));
        let tag = self.0.key.seal_in_place_separate_tag(nonce, Aad::from(&aad[..length]), payload);
        icv.copy_from_slice(tag.expect("a packet is far shorter than the algorithm allows").as_ref());
    }

    /// See [`Cipher::open`](super::Cipher::open).
    #[inline]
    pub fn open(&self, packet: &mut [u8], esn_high: Option<u32>) -> Result<(), Failure> {
        let (header, payload) = packet.split_at_mut(ESP_HEADER + IV_LEN);
        let (nonce, (aad, length)) = (self.nonce(&header[ESP_HEADER..]), additional(header, esn_high));
        let opened = self.0.key.open_in_place(nonce, Aad::from(&aad[..length]), payload);
        opened.map(|_| ()).map_err(|_| Failure::Integrity)
    }

    #[inline]
    fn nonce(&self, iv: &[u8]) -> Nonce {
        let mut nonce = [0; SALT_LEN + IV_LEN];
        nonce[..SALT_LEN].copy_from_slice(&self.0.salt);
        nonce[SALT_LEN..].copy_from_slice(iv);
        Nonce::assume_unique_for_key(nonce)
    }
}

/// The additional data and its length: SPI and sequence number, which is 64 bits with ESN (RFC 4106 5).
#[inline]
fn additional(header: &[u8], esn_high: Option<u32>) -> ([u8; AAD_ESN], usize) {
    let mut aad = [0; AAD_ESN];
    match esn_high {
        None => aad[..ESP_HEADER].copy_from_slice(&header[..ESP_HEADER]),
        Some(high) => {
            aad[..4].copy_from_slice(&header[..4]);
            aad[4..8].copy_from_slice(&high.to_be_bytes());
            aad[8..].copy_from_slice(&header[4..ESP_HEADER]);
        }
    }
    (aad, if esn_high.is_some() { AAD_ESN } else { ESP_HEADER })
}
