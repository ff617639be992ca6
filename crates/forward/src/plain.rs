//! The plain path: forwards ordinary packets, 32 at a time in columns, and reads each byte of a frame once.
//!
//! ```text
//! gather:   frame -> pointer to its bytes, their number                    (a column each)
//! check:    headers -> plain or not, destination, length, word with the TTL as it leaves
//! filter:   filter rules and the reverse path filter, where there are such
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
mod filtering;
mod portable;
mod sorting;
#[cfg(test)]
mod tests;

use bm_fib::{Form, NextHop};
use bm_filter::{Header, Key, VectorsOn};
use bm_frame::{AnyFrame, BURST};
use bm_wire::ethernet;
use bm_wire::prefix::Address;

use crate::compiled::{LocalFilter, MacKey};
use crate::filter::PlainFilter;
use crate::rewrite::fast::{IPV4_SPENT, IPV6_SPENT, Known, KnownHops};
use crate::rewrite::{IPV4_HEAD, IPV6_HEAD};
use crate::tables::Tables;
use crate::validate::AheadOfFragment;

pub(crate) use filtering::Reverse;
pub(crate) use sorting::Sorted;

/// Frames that go through the columns together.
pub(crate) const CHUNK: usize = 32;
/// Frames that a vector form checks at once.
const LANES: usize = 8;

/// Frames of so many bytes have all that bit vectors of filters are compared with.
const WHOLE: usize = ethernet::HEADER_LEN + size_of::<Header>();

/// Lanes without a frame point here: not a packet, and never written.
static NOTHING: [u8; IPV6_HEAD] = [0; IPV6_HEAD];

/// What frames are compared with.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// The MAC address that frames of the family must be for.
    pub mac: MacKey,
    /// Sources that packets must not have, for IPv4.
    pub local: &'a LocalFilter,
    /// Next headers that packets must not have, for IPv6.
    pub closer: AheadOfFragment,
}

/// What the plain path needs to know of an address family.
pub(crate) trait PlainFamily: Address {
    /// Bytes of the headers of an untagged frame.
    const HEAD: usize;
    /// Offset of the word with the TTL.
    const SPENT: usize;

    /// As [`Chunk::check`], for this many groups of lanes.
    ///
    /// # Safety
    /// The heads of these groups refer to [`HEAD`](Self::HEAD) bytes each, which nobody changes meanwhile.
    unsafe fn check(chunk: &mut Chunk<Self>, form: Form, groups: usize, asked: Asked<'_>) -> Checked;

    /// Writes the key for filters of a plain frame, whose packet has `length` bytes, over that of another one; `false` if
    /// it needs a closer look.
    fn key(filter: &PlainFilter<'_>, frame: &[u8], length: u16, to: &mut Key) -> bool;

    /// The filter rules as bit vectors, where packets of the family can be compared with these.
    fn vectors<'a>(filter: &PlainFilter<'a>) -> Option<VectorsOn<'a>>;
}

impl PlainFamily for u32 {
    const HEAD: usize = IPV4_HEAD;
    const SPENT: usize = IPV4_SPENT;

    #[inline(always)]
    fn key(filter: &PlainFilter<'_>, frame: &[u8], length: u16, to: &mut Key) -> bool {
        filter.ipv4(frame, length, to)
    }

    #[inline(always)]
    fn vectors<'a>(filter: &PlainFilter<'a>) -> Option<VectorsOn<'a>> {
        filter.vectors()
    }

    #[inline(always)]
    unsafe fn check(chunk: &mut Chunk<Self>, form: Form, groups: usize, asked: Asked<'_>) -> Checked {
        // SAFETY: the caller's promise. Every form but the scalar one has AVX2.
        unsafe {
            match form {
                #[cfg(target_arch = "x86_64")]
                form if form != Form::SCALAR => avx2::ipv4(chunk, groups, asked),
                _ => portable::ipv4(chunk, groups, asked),
            }
        }
    }
}

impl PlainFamily for u128 {
    const HEAD: usize = IPV6_HEAD;
    const SPENT: usize = IPV6_SPENT;

    #[inline(always)]
    fn key(filter: &PlainFilter<'_>, frame: &[u8], _length: u16, to: &mut Key) -> bool {
        filter.ipv6(frame, to)
    }

    #[inline(always)]
    fn vectors<'a>(_filter: &PlainFilter<'a>) -> Option<VectorsOn<'a>> {
        None
    }

    #[inline(always)]
    unsafe fn check(chunk: &mut Chunk<Self>, form: Form, groups: usize, asked: Asked<'_>) -> Checked {
        // SAFETY: the caller's promise. Every form but the scalar one has AVX2.
        unsafe {
            match form {
                #[cfg(target_arch = "x86_64")]
                form if form != Form::SCALAR => avx2::ipv6(chunk, groups, asked),
                _ => portable::ipv6(chunk, groups, asked),
            }
        }
    }
}

/// Pointers to the headers of frames: at least [`PlainFamily::HEAD`] bytes each.
#[derive(Clone, Copy)]
struct Heads<const COUNT: usize>([*mut u8; COUNT]);

// SAFETY: nothing is read or written through these pointers but within a call of [`Chunk::check`] or
// [`Chunk::rewrite`], whose caller promises that the frames gathered are still its own.
unsafe impl<const COUNT: usize> Send for Heads<COUNT> {}

/// Where the bytes of up to 32 frames are.
///
/// Not shared: laid out for vectors.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Lanes {
    heads: Heads<CHUNK>,
    /// Lengths of the frames in bytes.
    frame_lengths: [u16; CHUNK],
    /// Places of the frames in their burst, if they are not one after the other.
    places: [u8; CHUNK],
    count: usize,
}

impl Lanes {
    fn new() -> Self {
        let heads = Heads([std::ptr::null_mut(); CHUNK]);
        Self { heads, frame_lengths: [0; CHUNK], places: [0; CHUNK], count: 0 }
    }
}

/// Up to 32 frames as columns, with a lane for each.
///
/// Not shared: laid out for vectors.
#[repr(C, align(64))]
pub(crate) struct Chunk<A> {
    lanes: Lanes,
    /// Lengths of the packets in bytes.
    lengths: [u16; CHUNK],
    destinations: [A; CHUNK],
    /// The words with the TTL and the checksum, after forwarding.
    spent: [u32; CHUNK],
    hops: [NextHop; CHUNK],
    /// For the reverse path filter: sources, and where routes to them lead.
    sources: [A; CHUNK],
    back: [NextHop; CHUNK],
    /// For filters: the keys of eight lanes, and the counter of each.
    keys: [Key; LANES],
    counters: [u16; CHUNK],
    /// A bit for each lane that is plain so far.
    plain: u32,
    /// No plain packet is longer.
    longest: u16,
    /// Whether a plain frame has padding.
    padded: bool,
}

/// What a form of the check found.
pub(crate) struct Checked {
    plain: u32,
    longest: u16,
    padded: bool,
}

impl<A: PlainFamily> Chunk<A> {
    pub fn new() -> Self {
        Self {
            lanes: Lanes::new(),
            lengths: [0; CHUNK],
            destinations: [A::default(); CHUNK],
            spent: [0; CHUNK],
            hops: [NextHop::NONE; CHUNK],
            sources: [A::default(); CHUNK],
            back: [NextHop::NONE; CHUNK],
            keys: [Key::empty(A::FAMILY); LANES],
            counters: [0; CHUNK],
            plain: 0,
            longest: 0,
            padded: false,
        }
    }

    /// Stores pointers to the bytes of up to 32 frames, and prefetches them.
    #[inline(always)]
    pub fn gather<F: AnyFrame>(&mut self, frames: &mut [Option<F>]) {
        let Lanes { heads, frame_lengths, count, .. } = &mut self.lanes;
        *count = frames.len().min(CHUNK);
        let mut lanes =
            heads.0.as_chunks_mut::<LANES>().0.iter_mut().zip(frame_lengths.as_chunks_mut::<LANES>().0);
        let (eights, rest) = frames.as_chunks_mut::<LANES>();
        for (frames, (heads, lengths)) in eights.iter_mut().zip(&mut lanes) {
            for lane in 0..LANES {
                (heads[lane], lengths[lane]) = place_of::<A, F>(&mut frames[lane]);
            }
        }
        if let Some((heads, lengths)) = lanes.next().filter(|_| !rest.is_empty()) {
            // The forms check whole groups.
            for lane in 0..LANES {
                (heads[lane], lengths[lane]) = rest.get_mut(lane).map_or_else(nothing, place_of::<A, F>);
            }
        }
    }

    /// The same for up to 32 sorted frames of the family, from the one with the number `first` on.
    #[inline(always)]
    pub fn gather_sorted(&mut self, sorted: &Sorted, first: usize) {
        sorted.gather::<A>(first, &mut self.lanes);
        let Lanes { heads, frame_lengths, count, .. } = &mut self.lanes;
        // The forms check whole groups.
        let unused = *count..count.next_multiple_of(LANES).min(CHUNK);
        let (head, length) = nothing();
        heads.0[unused.clone()].fill(head);
        frame_lengths[unused].fill(length);
    }

    /// The place of a sorted frame.
    #[inline(always)]
    pub fn place(&self, lane: usize) -> usize {
        usize::from(self.lanes.places[lane])
    }

    /// Copies what is stored by lane to the places of the sorted frames.
    #[inline(always)]
    pub fn spread(&self, by_lane: &[u16; CHUNK], by_place: &mut [u16; BURST]) {
        for (&place, &of) in self.lanes.places[..self.lanes.count.min(CHUNK)].iter().zip(by_lane) {
            by_place[usize::from(place)] = of;
        }
    }

    /// Lengths of the frames gathered last.
    #[inline(always)]
    pub fn frame_lengths(&self) -> &[u16] {
        &self.lanes.frame_lengths[..self.lanes.count.min(CHUNK)]
    }

    /// Finds out which frames are plain: untagged, for the MAC address asked for, complete, with a TTL above 1, and
    /// between two addresses that may be routed between.
    ///
    /// - IPv4: without options, not a fragment, and not from an address that may be of this machine.
    /// - IPv6: without hop-by-hop options or another header to be looked at, and both addresses in 2000::/3 or fc00::/7.
    ///
    /// # Safety
    /// The frames gathered last are still the caller's, and unchanged in their place and length.
    #[inline]
    pub unsafe fn check(&mut self, form: Form, asked: Asked<'_>) {
        let groups = self.lanes.count.div_ceil(LANES);
        // SAFETY: gathering has filled whole groups, with frames of at least `HEAD` bytes or with `NOTHING`, and the
        // caller promises that they are still there.
        let checked = unsafe { A::check(self, form, groups, asked) };
        Checked { plain: self.plain, longest: self.longest, padded: self.padded } = checked;
    }

    /// The columns of a lookup, in whole groups: what is in unused lanes may be looked up too, which is faster than
    /// single addresses at the end.
    #[inline(always)]
    pub fn lookup(&mut self) -> (&[A], &mut [NextHop]) {
        let count = self.lanes.count.next_multiple_of(LANES).min(CHUNK);
        (&self.destinations[..count], &mut self.hops[..count])
    }

    /// Rewrites the plain frames whose next hop forwards and whose packet fits the MTU, and stores their ports. Returns
    /// a bit for each. All others are unchanged.
    ///
    /// # Safety
    /// As for [`check`](Self::check), which was called for these frames.
    #[inline]
    pub unsafe fn rewrite(&mut self, tables: &Tables, known: &mut KnownHops, ports: &mut [u16]) -> u32 {
        let mut done = self.plain;
        for (group, ports) in ports.chunks_mut(LANES).enumerate().take(CHUNK / LANES) {
            let first = group * LANES;
            let plain = self.plain >> first & 0xff;
            // SAFETY: these lanes are plain, so they have frames, which are the caller's; the same below.
            let all = unsafe {
                match ports.first_chunk_mut::<LANES>() {
                    Some(ports) => plain == 0xff && self.rewrite_group(known, first, ports),
                    None => plain == every(ports.len()) && self.rewrite_group(known, first, ports),
                }
            };
            if !all {
                // SAFETY: see above.
                let refused = unsafe { self.rewrite_each(tables, known, (first, plain), ports) };
                done &= !(refused << first);
            }
        }
        done
    }

    /// Rewrites as many frames as there are ports, up to eight; `false` if there is one whose next hop is not known yet
    /// or does not take it. Those before it are rewritten then, which may be done again.
    ///
    /// # Safety
    /// The frames of these lanes are the caller's.
    #[inline(always)]
    unsafe fn rewrite_group(&self, known: &KnownHops, first: usize, ports: &mut [u16]) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            if known.all_take(self.longest) {
                self.rewrite_lanes::<false>(known, first, ports)
            } else {
                self.rewrite_lanes::<true>(known, first, ports)
            }
        }
    }

    /// The same. `CHECKS` says whether a packet may be too long for a next hop that is known.
    ///
    /// # Safety
    /// The frames of these lanes are the caller's.
    #[inline(always)]
    unsafe fn rewrite_lanes<const CHECKS: bool>(
        &self,
        known: &KnownHops,
        first: usize,
        ports: &mut [u16],
    ) -> bool {
        for (lane, port) in (first..CHUNK).zip(ports) {
            let known = known.place_of(self.hops[lane]);
            // SAFETY: the caller's promise.
            if !unsafe { self.rewrite_lane::<CHECKS>(known, lane, port) } {
                return false;
            }
        }
        true
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
            if !unsafe { self.rewrite_lane::<true>(known, first + lane, &mut ports[lane]) } {
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
    unsafe fn rewrite_lane<const CHECKS: bool>(&self, known: &Known, lane: usize, port: &mut u16) -> bool {
        if known.hop != self.hops[lane] || CHECKS && self.lengths[lane] > known.mtu {
            return false;
        }
        const { assert!(12 <= A::SPENT && A::SPENT + size_of::<u32>() <= A::HEAD) };
        let head = self.lanes.heads.0[lane];
        // SAFETY: a plain lane's head are the first `HEAD` bytes of a frame that the caller owns, and no reference
        // to them exists. All stores are within, and ask for no alignment.
        unsafe {
            head.cast::<u64>().write_unaligned(known.start.to_le());
            head.add(8).cast::<[u8; 4]>().write(known.rest);
            head.add(A::SPENT).cast::<u32>().write_unaligned(self.spent[lane].to_le());
        }
        *port = known.port;
        true
    }

    /// Cuts off what follows the packets of rewritten frames, the padding of short ones: passes their lanes, and how
    /// long they are without, to the caller.
    #[inline(always)]
    pub fn cut_padding(&self, done: u32, cut: impl FnMut(usize, u16)) {
        if self.padded {
            self.cut(done, cut);
        }
    }

    #[inline(never)]
    fn cut(&self, mut done: u32, mut cut: impl FnMut(usize, u16)) {
        while done != 0 {
            let lane = done.trailing_zeros() as usize;
            cut(lane, self.lengths[lane].wrapping_add(ethernet::HEADER_LEN as u16));
            done &= done - 1;
        }
    }
}

/// Pointer to the bytes of a frame that has both headers, and their number; prefetches them.
#[inline(always)]
fn place_of<A: PlainFamily, F: AnyFrame>(frame: &mut Option<F>) -> (*mut u8, u16) {
    match frame {
        Some(frame) if frame.len() >= A::HEAD => {
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
