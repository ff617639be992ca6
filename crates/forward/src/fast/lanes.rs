//! Where the bytes of frames are that go through the fast path together.

use super::{CHUNK, FastFamily};

/// Lanes without a frame point here: not a packet, and never written.
pub(super) static NOTHING: [u8; <u128 as FastFamily>::HEAD] = [0; <u128 as FastFamily>::HEAD];

/// Pointers to the headers of frames: at least [`FastFamily::HEAD`] bytes each.
#[derive(Clone, Copy)]
pub(super) struct Heads<const COUNT: usize>(pub [*mut u8; COUNT]);

// SAFETY: nothing is read or written through these pointers but within a call of [`Chunk::check`] or
// [`Chunk::rewrite`], whose caller promises that the frames gathered are still its own.
unsafe impl<const COUNT: usize> Send for Heads<COUNT> {}

/// Where the bytes of up to 32 frames are.
///
/// Not shared: laid out for vectors.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Lanes {
    pub heads: Heads<CHUNK>,
    /// Lengths of the frames in bytes.
    pub frame_lengths: [u16; CHUNK],
    /// Places of the frames in their burst, if they are not one after the other.
    pub places: [u8; CHUNK],
    pub count: usize,
}

impl Lanes {
    pub fn new() -> Self {
        let heads = Heads([std::ptr::null_mut(); CHUNK]);
        Self { heads, frame_lengths: [0; CHUNK], places: [0; CHUNK], count: 0 }
    }
}

/// What a lane without a frame refers to.
#[cold]
pub(super) fn nothing() -> (*mut u8, u16) {
    (NOTHING.as_ptr().cast_mut(), 0)
}
