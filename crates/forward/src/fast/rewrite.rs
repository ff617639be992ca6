//! The last step: three stores for each frame, if its next hop is cached.

use bm_frame::Frame;
use bm_wire::ethernet;

use super::chunk::Chunk;
use super::hop_cache::{CachedHop, HopCache};
use super::lanes::Lanes;
use super::{CHUNK, FastFamily, LANES, every};
use crate::stages::input::Arrival;
use crate::stages::{Facts, rewrite};
use crate::tables::Tables;
use crate::verdict::Refusal;

impl<A: FastFamily> Chunk<A> {
    /// Rewrites the plain frames whose next hop forwards and whose packet fits the MTU, and stores their ports. Returns
    /// a bit for each. All others are unchanged.
    ///
    /// # Safety
    /// As for [`check`](Self::check), which was called for these frames.
    #[inline]
    pub unsafe fn rewrite(&mut self, tables: &Tables, hop_cache: &mut HopCache, ports: &mut [u16]) -> u32 {
        let mut done = self.plain;
        for (group, ports) in ports.chunks_mut(LANES).enumerate().take(CHUNK / LANES) {
            let first = group * LANES;
            let plain = self.plain >> first & 0xff;
            // SAFETY: these lanes are plain, so they have frames, which are the caller's; the same below.
            let all = unsafe {
                match ports.first_chunk_mut::<LANES>() {
                    Some(ports) => plain == 0xff && self.rewrite_group(hop_cache, first, ports),
                    None => plain == every(ports.len()) && self.rewrite_group(hop_cache, first, ports),
                }
            };
            if !all {
                // SAFETY: see above.
                let refused = unsafe { self.rewrite_each(tables, hop_cache, first, plain, ports) };
                done &= !(refused << first);
            }
        }
        done
    }

    /// Rewrites as many frames as there are ports, up to eight; `false` if there is one whose next hop is not cached yet
    /// or does not take it. Those before it are rewritten then, which may be done again.
    ///
    /// # Safety
    /// The frames of these lanes are the caller's.
    #[inline(always)]
    unsafe fn rewrite_group(&self, hop_cache: &HopCache, first: usize, ports: &mut [u16]) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            if hop_cache.all_take(self.longest) {
                self.rewrite_lanes::<false>(hop_cache, first, ports)
            } else {
                self.rewrite_lanes::<true>(hop_cache, first, ports)
            }
        }
    }

    /// Does so frame by frame. `CHECKS` says whether a packet may be too long for a next hop that is cached.
    ///
    /// # Safety
    /// The frames of these lanes are the caller's.
    #[inline(always)]
    unsafe fn rewrite_lanes<const CHECKS: bool>(
        &self,
        hop_cache: &HopCache,
        first: usize,
        ports: &mut [u16],
    ) -> bool {
        for (lane, port) in (first..CHUNK).zip(ports) {
            let cached = hop_cache.place_of(self.hops[lane]);
            // SAFETY: the caller's promise.
            if !unsafe { self.rewrite_lane::<CHECKS>(cached, lane, port) } {
                return false;
            }
        }
        true
    }

    /// Rewrites those of the eight frames from `first` on whose bit is set, one by one, each through the member of a group
    /// that its flow belongs to. Returns the bits of those that cannot be rewritten here.
    ///
    /// # Safety
    /// The frames of these lanes are the caller's.
    #[inline(never)]
    unsafe fn rewrite_each(
        &mut self,
        tables: &Tables,
        hop_cache: &mut HopCache,
        first: usize,
        mut left: u32,
        ports: &mut [u16],
    ) -> u32 {
        let mut refused = 0;
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            let lane = first + at;
            let entry = tables.next_hops.entry(self.hops[lane]);
            if entry.is_group() {
                // SAFETY: the caller's promise.
                let hash = A::flow_hash(&tables.compiled, unsafe { self.packet(lane) }).unwrap_or(0);
                self.hops[lane] = tables.next_hops.select(entry, hash);
            }
            let cached = hop_cache.of(tables, self.hops[lane]);
            // SAFETY: the caller's promise.
            if !unsafe { self.rewrite_lane::<true>(cached, lane, &mut ports[at]) } {
                refused |= 1 << at;
            }
            left &= left - 1;
        }
        refused
    }

    /// The packet of a lane, with its padding.
    ///
    /// # Safety
    /// The lane has a frame, which is the caller's and is not written meanwhile.
    #[inline(always)]
    unsafe fn packet(&self, lane: usize) -> &[u8] {
        let Lanes { heads, frame_lengths, .. } = &self.lanes;
        // SAFETY: the frame has that length; see above.
        let frame = unsafe { std::slice::from_raw_parts(heads.0[lane], frame_lengths[lane].into()) };
        frame.get(ethernet::HEADER_LEN..).unwrap_or(&[])
    }

    /// Rewrites the frame of a plain lane as the stages do: for next hops with a tag, or why it cannot leave.
    #[inline(never)]
    pub fn rewrite_as_stages(
        &self,
        tables: &Tables,
        came_in: Option<u16>,
        lane: usize,
        frame: &mut Frame,
    ) -> Result<u16, Refusal> {
        // A plain packet has a hop left.
        let ttl_word = self.ttl_words[lane].to_le_bytes();
        let facts = Facts { length: self.lengths[lane], ttl: 2, ttl_word };
        let interface = came_in.unwrap_or(u16::MAX);
        let arrival = Arrival { interface, network: ethernet::HEADER_LEN as u16, family: A::FAMILY };
        rewrite::rewrite::<A>(tables, self.hops[lane], facts, &arrival, frame)
    }

    /// Rewrites the frame of a lane, unless `cached` is about another next hop or its packet is too long for it.
    ///
    /// # Safety
    /// The frame of the lane is the caller's.
    #[inline(always)]
    unsafe fn rewrite_lane<const CHECKS: bool>(
        &self,
        cached: &CachedHop,
        lane: usize,
        port: &mut u16,
    ) -> bool {
        if cached.hop != self.hops[lane] || CHECKS && self.lengths[lane] > cached.mtu {
            return false;
        }
        const { assert!(12 <= A::TTL_WORD_IN_FRAME && A::TTL_WORD_IN_FRAME + size_of::<u32>() <= A::HEAD) };
        let head = self.lanes.heads.0[lane];
        // SAFETY: a plain lane's head are the first `HEAD` bytes of a frame that the caller owns, and no reference
        // to them exists. All stores are within, and ask for no alignment.
        unsafe {
            head.cast::<u64>().write_unaligned(cached.start.to_le());
            head.add(8).cast::<[u8; 4]>().write(cached.rest);
            head.add(A::TTL_WORD_IN_FRAME).cast::<u32>().write_unaligned(self.ttl_words[lane].to_le());
        }
        *port = cached.port;
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
