//! Bytes of keys: never printed, and overwritten with zeros when they are freed.

use std::fmt;

use zeroize::Zeroizing;

/// A key. `Debug` shows its length only.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Box<[u8]>>);

/// A text that is not a key in hexadecimal. It does not say what the text is, which may be most of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be hexadecimal, two digits for each byte")]
pub struct NotHex;

impl Secret {
    /// A copy of `bytes`; the caller wipes its own.
    pub fn new(bytes: &[u8]) -> Self {
        Self(Zeroizing::new(bytes.into()))
    }

    /// No key, for what a suite does not need.
    pub fn none() -> Self {
        Self::new(&[])
    }

    /// Reads hexadecimal digits, with or without `0x` in front as `ip xfrm` prints them.
    ///
    /// # Errors
    /// [`NotHex`] for other characters, or an odd number of digits.
    pub fn from_hex(text: &str) -> Result<Self, NotHex> {
        let digits = text.strip_prefix("0x").unwrap_or(text).as_bytes();
        let (pairs, odd) = digits.as_chunks::<2>();
        // Made in its final size: a vector that grows would leave copies behind.
        let mut bytes = Zeroizing::new(vec![0; pairs.len()].into_boxed_slice());
        let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(NotHex);
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
        }
        if odd.is_empty() { Ok(Self(bytes)) } else { Err(NotHex) }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_hexadecimal_and_prints_nothing() {
        let key = Secret::from_hex("0x00ffA5").unwrap();
        assert_eq!(key.bytes(), [0, 0xff, 0xa5]);
        assert_eq!(Secret::from_hex("00ffa5"), Ok(key.clone()));
        assert_eq!(format!("{key:?} {:?}", Secret::none()), "Secret(3 bytes) Secret(0 bytes)");
        assert_eq!(
            [Secret::from_hex("0"), Secret::from_hex("0g"), Secret::from_hex("é")],
            [const { Err(NotHex) }; 3]
        );
    }
}
