//! The number of a membership, which packets carry.

/// The number of a membership, modulo 256.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epoch(u8);

impl Epoch {
    /// The epoch with this number.
    #[inline]
    pub fn new(number: u8) -> Self {
        Self(number)
    }

    #[inline]
    pub fn number(self) -> u8 {
        self.0
    }

    /// The one after it.
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Whether it is later than another, if they are less than 128 changes apart.
    pub(crate) fn is_after(self, other: Self) -> bool {
        (1..128).contains(&self.0.wrapping_sub(other.0))
    }
}
