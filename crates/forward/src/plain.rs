//! The plain path of IPv4: forwards ordinary packets, 32 at a time in columns, and reads each byte of a frame once.
//!
//! ```text
//! gather:   frame -> pointer to its bytes, their number                    (a column each)
//! check:    headers -> plain or not, destination, length, new TTL and checksum
//!           look up the destinations (any FIB structure)
//! rewrite:  next hop known, packet within the MTU -> three stores; otherwise not plain after all
//! ```
//!
//! A frame that is not plain is left unchanged, and its bit is not set: the stages of [`crate::router`] then handle it.
//! They are the general path, and what this one is tested against. A frame may be left to them without need, which only
//! costs time, but a frame that is called plain must pass all their checks.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;
#[cfg(test)]
mod tests;

use bm_fib::{Form, NextHop};
use bm_frame::Frame;
use bm_wire::ethernet;

use crate::compiled::{LocalFilter, MacKey};
use crate::rewrite::IPV4_HEAD as HEAD;
use crate::rewrite::fast::{IPV4_SPENT, Known, KnownHops};
use crate::tables::Tables;

/// Frames that go through the columns together.
pub(crate) const CHUNK: usize = 32;
/// Frames that a vector form checks at once.
const LANES: usize = 8;

/// Lanes without a frame point here: not a packet, and never written.
static NOTHING: [u8; HEAD] = [0; HEAD];

/// Pointers to the headers of frames: at least [`HEAD`] bytes each.
struct Heads([*mut u8; CHUNK]);

// SAFETY: nothing is read or written through these pointers but within a call of [`Chunk::check`] or
// [`Chunk::rewrite`], whose caller promises that the frames gathered are still its own.
unsafe impl Send for Heads {}

/// Up to 32 frames as columns, with a lane for each.
///
/// Not shared: laid out for vectors.
#[repr(C, align(64))]
pub(crate) struct Chunk {
    heads: Heads,
    /// Lengths of the frames in bytes.
    frame_lengths: [u16; CHUNK],
    /// Lengths of the packets in bytes.
    lengths: [u16; CHUNK],
    destinations: [u32; CHUNK],
    /// The words with the TTL and the checksum, after forwarding.
    spent: [u32; CHUNK],
    hops: [NextHop; CHUNK],
    count: usize,
    /// A bit for each lane that is plain so far.
    plain: u32,
    /// Whether a plain frame has padding.
    padded: bool,
}

/// What a form of the check found.
struct Checked {
    plain: u32,
    padded: bool,
}

impl Chunk {
    pub const fn new() -> Self {
        Self {
            heads: Heads([std::ptr::null_mut(); CHUNK]),
            frame_lengths: [0; CHUNK],
            lengths: [0; CHUNK],
            destinations: [0; CHUNK],
            spent: [0; CHUNK],
            hops: [NextHop::NONE; CHUNK],
            count: 0,
            plain: 0,
            padded: false,
        }
    }

    /// Stores pointers to the bytes of up to 32 frames, and prefetches them.
    #[inline(always)]
    pub fn gather(&mut self, frames: &mut [Option<Frame>]) {
        self.count = frames.len().min(CHUNK);
        let heads = self.heads.0.as_chunks_mut::<LANES>().0.iter_mut();
        let mut lanes = heads.zip(self.frame_lengths.as_chunks_mut::<LANES>().0);
        let (eights, rest) = frames.as_chunks_mut::<LANES>();
        for (frames, (heads, lengths)) in eights.iter_mut().zip(&mut lanes) {
            for lane in 0..LANES {
                (heads[lane], lengths[lane]) = place_of(&mut frames[lane]);
            }
        }
        if let Some((heads, lengths)) = lanes.next().filter(|_| !rest.is_empty()) {
            // The forms check whole groups.
            for lane in 0..LANES {
                (heads[lane], lengths[lane]) = rest.get_mut(lane).map_or_else(nothing, place_of);
            }
        }
    }

    /// Finds out which frames are plain: untagged IPv4 for `mac`, complete, not a fragment, without options, with a TTL
    /// above 1, between two unicast addresses, and not from an address that `local` may contain.
    ///
    /// # Safety
    /// The frames gathered last are still the caller's, and unchanged in their place and length.
    #[inline]
    pub unsafe fn check(&mut self, form: Form, mac: MacKey, local: &LocalFilter) {
        let groups = self.count.div_ceil(LANES);
        // SAFETY: `gather` has filled whole groups, with frames of at least `HEAD` bytes or with `NOTHING`, and the
        // caller promises that they are still there. Every form but the scalar one has AVX2.
        let checked = unsafe {
            match form {
                #[cfg(target_arch = "x86_64")]
                form if form != Form::SCALAR => avx2::check(self, groups, mac, local),
                _ => portable::check(self, groups, mac, local),
            }
        };
        (self.plain, self.padded) = (checked.plain, checked.padded);
    }

    /// The columns of a lookup.
    #[inline(always)]
    pub fn lookup(&mut self) -> (&[u32], &mut [NextHop]) {
        (&self.destinations[..self.count], &mut self.hops[..self.count])
    }

    /// Rewrites the plain frames whose next hop forwards and whose packet fits the MTU, and stores their ports. Returns
    /// a bit for each. All others are unchanged. `frames` are those that were gathered.
    ///
    /// # Safety
    /// As for [`check`](Self::check), which was called for these frames.
    #[inline]
    pub unsafe fn rewrite(
        &mut self,
        tables: &Tables,
        known: &mut KnownHops,
        (frames, ports): (&mut [Option<Frame>], &mut [u16]),
    ) -> u32 {
        let mut done = self.plain;
        for (group, ports) in ports.chunks_mut(LANES).enumerate().take(CHUNK / LANES) {
            let first = group * LANES;
            let plain = self.plain >> first & 0xff;
            let written = match ports.first_chunk_mut() {
                // SAFETY: these lanes are plain, so they have frames, which are the caller's.
                Some(ports) if plain == 0xff => unsafe { self.rewrite_group(known, group, ports) },
                _ => 0,
            };
            if written < LANES {
                let left = plain & 0xff << written;
                // SAFETY: the same.
                let refused = unsafe { self.rewrite_each(tables, known, (first, left), ports) };
                done &= !(refused << first);
            }
        }
        if self.padded {
            self.cut_padding(done, frames);
        }
        done
    }

    /// Rewrites eight frames, or the first of them: up to one whose next hop is not known yet, or does not take it.
    /// Returns how many.
    ///
    /// # Safety
    /// The frames of these lanes are the caller's.
    #[inline(always)]
    unsafe fn rewrite_group(&self, known: &KnownHops, group: usize, ports: &mut [u16; LANES]) -> usize {
        let Some(hops) = self.hops.as_chunks::<LANES>().0.get(group) else { return 0 };
        for lane in 0..LANES {
            // SAFETY: the caller's promise.
            if !unsafe {
                self.rewrite_lane(known.place_of(hops[lane]), group * LANES + lane, &mut ports[lane])
            } {
                return lane;
            }
        }
        LANES
    }

    /// Rewrites those of eight frames whose bit is set, one by one, and returns the bits of those that are not plain
    /// after all.
    ///
    /// # Safety
    /// The frames of these lanes are the caller's.
    #[inline(never)]
    unsafe fn rewrite_each(
        &self,
        tables: &Tables,
        known: &mut KnownHops,
        (first, mut left): (usize, u32),
        ports: &mut [u16],
    ) -> u32 {
        let mut refused = 0;
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            let known = known.of(tables, self.hops[first + lane]);
            // SAFETY: the caller's promise.
            if !unsafe { self.rewrite_lane(known, first + lane, &mut ports[lane]) } {
                refused |= 1 << lane;
            }
            left &= left - 1;
        }
        refused
    }

    /// Rewrites the frame of a lane, unless `known` is about another next hop or its packet is too long for it.
    ///
    /// # Safety
    /// The frame of the lane is the caller's.
    #[inline(always)]
    unsafe fn rewrite_lane(&self, known: &Known, lane: usize, port: &mut u16) -> bool {
        if known.hop != self.hops[lane] || self.lengths[lane] > known.mtu {
            return false;
        }
        // SAFETY: a plain lane's head are the first `HEAD` bytes of a frame that the caller owns, and no reference
        // to them exists.
        let head = unsafe { &mut *self.heads.0[lane].cast::<[u8; HEAD]>() };
        head[..8].copy_from_slice(&known.start.to_le_bytes());
        head[8..12].copy_from_slice(&known.rest);
        head[IPV4_SPENT..IPV4_SPENT + 4].copy_from_slice(&self.spent[lane].to_le_bytes());
        *port = known.port;
        true
    }

    /// Cuts off what follows the packet: the padding of a short frame.
    #[inline(never)]
    fn cut_padding(&self, done: u32, frames: &mut [Option<Frame>]) {
        for (lane, frame) in frames.iter_mut().enumerate().take(self.count) {
            if let Some(frame) = frame.as_mut().filter(|_| done >> lane & 1 == 1) {
                frame.truncate(self.lengths[lane].wrapping_add(ethernet::HEADER_LEN as u16));
            }
        }
    }
}

/// Pointer to the bytes of a frame that has both headers, and their number; prefetches them.
#[inline(always)]
fn place_of(frame: &mut Option<Frame>) -> (*mut u8, u16) {
    match frame {
        Some(frame) if frame.len() >= HEAD => {
            frame.prefetch();
            (frame.data_mut().as_mut_ptr(), frame.len() as u16)
        }
        _ => nothing(),
    }
}

#[cold]
fn nothing() -> (*mut u8, u16) {
    (NOTHING.as_ptr().cast_mut(), 0)
}

/// The bits of the first `count` lanes.
#[inline(always)]
pub(crate) fn every(count: usize) -> u32 {
    u32::MAX.unbounded_shr((CHUNK - count.min(CHUNK)) as u32)
}
