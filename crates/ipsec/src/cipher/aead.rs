//! AES-GCM (RFC 4106) and ChaCha20-Poly1305 (RFC 7634): one algorithm encrypts and protects integrity.
//!
//! The nonce is the salt, which is part of the key, and the IV of the packet. The IV may be any number that is not
//! used twice with a key.

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

use crate::failure::Failure;
use crate::library::{Choice, Library};
use crate::multi::{Gcm, shared};
use crate::suite::{ESP_HEADER, SALT_LEN, Suite};
use crate::wiped::Wiped;

const IV_LEN: usize = 8;
/// SPI, sequence number and IV.
const FRONT: usize = ESP_HEADER + IV_LEN;
const ICV_LEN: usize = 16;
const NONCE_LEN: usize = SALT_LEN + IV_LEN;
/// SPI, high and low half of an extended sequence number.
const AAD_ESN: usize = 12;

/// A key of an AEAD suite.
pub(crate) struct Aead {
    salt: Zeroizing<[u8; SALT_LEN]>,
    /// One for each library in use.
    keys: Vec<Key>,
    /// For each class of sizes, which of them is the fastest.
    by_class: [u8; 3],
}

/// The key of one library.
enum Key {
    /// ring keeps the expanded key in the structure itself.
    Ring(Wiped<LessSafeKey>),
    IpsecMb(Gcm),
}

impl Key {
    fn new(suite: Suite, key: &[u8], library: Library) -> Self {
        let native = match library {
            Library::IpsecMb(manager) => shared().engine(manager).and_then(|engine| Gcm::new(engine, key)),
            Library::Ring | Library::RustCrypto => None,
        };
        native.map_or_else(|| Self::ring(suite, key), Self::IpsecMb)
    }

    fn ring(suite: Suite, key: &[u8]) -> Self {
        let algorithm = match suite {
            Suite::Aes128Gcm => &AES_128_GCM,
            Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
            _ => &AES_256_GCM,
        };
        let key = UnboundKey::new(algorithm, key).expect("the caller has checked the length");
        Self::Ring(Wiped::new(LessSafeKey::new(key)))
    }
}

impl Aead {
    /// `key` has the salt behind it.
    pub fn new(suite: Suite, key: &[u8], choice: Choice) -> Self {
        let (key, salt) = key.split_last_chunk().expect("the caller has checked the length");
        let mut used = Vec::new();
        let by_class = choice.libraries().map(|library| {
            let place = used.iter().position(|other| *other == library).unwrap_or(used.len());
            if place == used.len() {
                used.push(library);
            }
            place as u8
        });
        let keys = used.into_iter().map(|library| Key::new(suite, key, library)).collect();
        Self { salt: Zeroizing::new(*salt), keys, by_class }
    }

    #[inline]
    fn key(&self, length: usize) -> &Key {
        &self.keys[usize::from(self.by_class[Choice::class(length)])]
    }

    /// See [`Cipher::seal`](super::Cipher::seal).
    #[inline]
    pub fn seal(&self, packet: &mut [u8], iv: u64, esn_high: Option<u32>) {
        let key = self.key(packet.len());
        let (packet, icv) = packet.split_last_chunk_mut::<ICV_LEN>().expect("the caller has made room");
        let (header, payload) = packet.split_first_chunk_mut::<FRONT>().expect("the caller has made room");
        let iv = iv.to_be_bytes();
        header[ESP_HEADER..].copy_from_slice(&iv);
        let (nonce, (aad, length)) = (self.nonce(iv), additional(header, esn_high));
        match key {
            Key::Ring(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(&aad[..length]), payload);
                icv.copy_from_slice(tag.expect("a packet is far shorter than the algorithm allows").as_ref());
            }
            Key::IpsecMb(key) => key.seal(payload, &nonce, &aad[..length], icv),
        }
    }

    /// See [`Cipher::open`](super::Cipher::open).
    #[inline]
    pub fn open(&self, packet: &mut [u8], esn_high: Option<u32>) -> Result<(), Failure> {
        let key = self.key(packet.len());
        let (header, payload) = packet.split_first_chunk_mut::<FRONT>().expect("there is room for an IV");
        let iv = *header.last_chunk().expect("it ends with the IV");
        let (nonce, (aad, length)) = (self.nonce(iv), additional(header, esn_high));
        let is_right = match key {
            Key::Ring(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                key.open_in_place(nonce, Aad::from(&aad[..length]), payload).is_ok()
            }
            Key::IpsecMb(key) => payload
                .split_last_chunk_mut::<ICV_LEN>()
                .is_some_and(|(payload, icv)| key.open(payload, &nonce, &aad[..length], *icv)),
        };
        if is_right { Ok(()) } else { Err(Failure::Integrity) }
    }

    #[inline]
    fn nonce(&self, iv: [u8; IV_LEN]) -> [u8; NONCE_LEN] {
        let salt = u128::from(u32::from_le_bytes(*self.salt));
        eight_and_four(salt | u128::from(u64::from_le_bytes(iv)) << (8 * SALT_LEN))
    }
}

/// The additional data and its length: SPI and sequence number, which is 64 bits with ESN (RFC 4106 5).
#[inline]
fn additional(header: &[u8; FRONT], esn_high: Option<u32>) -> ([u8; AAD_ESN], usize) {
    let [spi, low] = [0, 4].map(|at| {
        let word = header[at..].first_chunk().expect("there are 16 bytes");
        u128::from(u32::from_le_bytes(*word))
    });
    match esn_high {
        None => (eight_and_four(spi | low << 32), ESP_HEADER),
        Some(high) => (eight_and_four(spi | u128::from(high.swap_bytes()) << 32 | low << 64), AAD_ESN),
    }
}

/// The first twelve bytes, stored as eight and four, which is how libraries read them: reading eight bytes that have just
/// been stored as four and four takes until both are in the cache.
#[inline]
fn eight_and_four(bytes: u128) -> [u8; 12] {
    let mut stored = [0; 12];
    stored[..8].copy_from_slice(&(bytes as u64).to_le_bytes());
    stored[8..].copy_from_slice(&((bytes >> 64) as u32).to_le_bytes());
    stored
}
