//! Numbers in network order, read from and written to the start of a slice.
//!
//! Each panics on a slice that is too short, which a view's `parse` rules out.

/// 16 bits.
#[inline]
pub(crate) fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

/// 32 bits.
#[inline]
pub(crate) fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// 128 bits.
#[inline]
pub(crate) fn be128(bytes: &[u8]) -> u128 {
    let mut number = [0; 16];
    number.copy_from_slice(&bytes[..16]);
    u128::from_be_bytes(number)
}

/// Writes 16 bits.
#[inline]
pub(crate) fn put16(bytes: &mut [u8], number: u16) {
    bytes[..2].copy_from_slice(&number.to_be_bytes());
}

/// Writes 32 bits.
#[inline]
pub(crate) fn put32(bytes: &mut [u8], number: u32) {
    bytes[..4].copy_from_slice(&number.to_be_bytes());
}

/// Writes 128 bits.
#[inline]
pub(crate) fn put128(bytes: &mut [u8], number: u128) {
    bytes[..16].copy_from_slice(&number.to_be_bytes());
}
