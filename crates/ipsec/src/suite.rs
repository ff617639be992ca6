//! Cipher suites of ESP: their names, and the sizes of what they add to a packet.

use std::fmt;
use std::str::FromStr;

/// Encryption and integrity of an SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// AES-128-GCM with an ICV of 16 bytes (RFC 4106).
    Aes128Gcm,
    /// AES-256-GCM with an ICV of 16 bytes (RFC 4106).
    Aes256Gcm,
    /// ChaCha20-Poly1305 (RFC 7634).
    ChaCha20Poly1305,
    /// AES-128-CBC (RFC 3602) with HMAC-SHA-256-128 (RFC 4868).
    Aes128Sha256,
    /// AES-256-CBC with HMAC-SHA-256-128.
    Aes256Sha256,
    /// AES-128-CBC with HMAC-SHA-1-96 (RFC 2404), for old peers.
    Aes128Sha1,
    /// AES-256-CBC with HMAC-SHA-1-96, for old peers.
    Aes256Sha1,
}

/// Bytes of salt behind the key of a suite that has no key for integrity (RFC 4106 8.1, RFC 7634 2).
pub(crate) const SALT_LEN: usize = 4;
/// Bytes of SPI and sequence number.
pub(crate) const ESP_HEADER: usize = 8;
/// Bytes of a block of AES.
pub(crate) const AES_BLOCK: usize = 16;

impl Suite {
    /// All suites.
    pub const ALL: [Self; 7] = [
        Self::Aes128Gcm,
        Self::Aes256Gcm,
        Self::ChaCha20Poly1305,
        Self::Aes128Sha256,
        Self::Aes256Sha256,
        Self::Aes128Sha1,
        Self::Aes256Sha1,
    ];

    /// The name, as in proposals of strongSwan.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes128gcm16",
            Self::Aes256Gcm => "aes256gcm16",
            Self::ChaCha20Poly1305 => "chacha20poly1305",
            Self::Aes128Sha256 => "aes128-sha256",
            Self::Aes256Sha256 => "aes256-sha256",
            Self::Aes128Sha1 => "aes128-sha1",
            Self::Aes256Sha1 => "aes256-sha1",
        }
    }

    /// Whether one algorithm encrypts and protects integrity, so that there is one key, with a salt behind it.
    pub(crate) fn is_aead(self) -> bool {
        matches!(self, Self::Aes128Gcm | Self::Aes256Gcm | Self::ChaCha20Poly1305)
    }

    /// Bytes of the key for encryption, with the salt.
    pub fn encryption_key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16 + SALT_LEN,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32 + SALT_LEN,
            Self::Aes128Sha256 | Self::Aes128Sha1 => 16,
            Self::Aes256Sha256 | Self::Aes256Sha1 => 32,
        }
    }

    /// Bytes of the key for integrity; 0 for a suite that has none.
    pub fn integrity_key_len(self) -> usize {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm | Self::ChaCha20Poly1305 => 0,
            Self::Aes128Sha256 | Self::Aes256Sha256 => 32,
            Self::Aes128Sha1 | Self::Aes256Sha1 => 20,
        }
    }

    /// Bytes of the IV in each packet.
    pub(crate) fn iv_len(self) -> usize {
        if self.is_aead() { 8 } else { AES_BLOCK }
    }

    /// Bytes of the ICV at the end of each packet.
    pub(crate) fn icv_len(self) -> usize {
        match self {
            Self::Aes128Sha1 | Self::Aes256Sha1 => 12,
            _ => 16,
        }
    }

    /// What padding fills up: 4 bytes (RFC 4303 2.4), or a block of the cipher.
    pub fn alignment(self) -> usize {
        if self.is_aead() { 4 } else { AES_BLOCK }
    }

    /// Bytes of padding behind `length` bytes of payload.
    pub(crate) fn padding(self, length: usize) -> usize {
        // Pad length and next header count, and alignments are powers of two.
        (length + 2).wrapping_neg() & (self.alignment() - 1)
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No suite has that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownSuite(pub String);

impl fmt::Display for UnknownSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Suite::ALL.map(Suite::name).join(", ");
        write!(f, "unknown suite \"{}\": use one of {known}", self.0)
    }
}

impl std::error::Error for UnknownSuite {}

impl FromStr for Suite {
    type Err = UnknownSuite;

    fn from_str(name: &str) -> Result<Self, UnknownSuite> {
        Self::ALL.into_iter().find(|suite| suite.name() == name).ok_or_else(|| UnknownSuite(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for suite in Suite::ALL {
            assert_eq!(suite.to_string().parse(), Ok(suite));
        }
        let unknown = "des-md5".parse::<Suite>().unwrap_err().to_string();
        assert!(unknown.starts_with("unknown suite \"des-md5\": use one of aes128gcm16, "), "{unknown}");
    }

    #[test]
    fn padding_fills_up_blocks() {
        for suite in Suite::ALL {
            for length in 0..100 {
                let padding = suite.padding(length);
                assert!(
                    (length + 2 + padding).is_multiple_of(suite.alignment()) && padding < suite.alignment()
                );
            }
        }
    }
}
