//! Random numbers without a crate for them.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// An unpredictable number.
pub fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}
