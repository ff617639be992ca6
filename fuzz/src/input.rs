//! Reads the bytes of an input as the values that a target needs. All reads succeed: past the end there are zeros.

/// The remaining bytes of an input.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// The whole input.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    /// The next two bytes, the low one first.
    pub fn number(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// Up to `count` bytes.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Bytes preceded by their length in two bytes.
    pub fn counted(&mut self) -> &'a [u8] {
        let count = self.number();
        self.bytes(count.into())
    }

    /// All remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }

    /// One of these items.
    pub fn one_of<'t, T>(&mut self, list: &'t [T]) -> &'t T {
        &list[usize::from(self.byte()) % list.len()]
    }
}
