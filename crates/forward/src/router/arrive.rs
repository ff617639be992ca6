//! The first stages: whose frame is it, and is it a packet that a router may pass on?
//!
//! ```text
//! sixteen at a time:  those of one family and the common sort -> the others one by one -> ask the table ahead
//! whole burst:        what is left is looked at closer
//! ```

use std::ops::Range;

use bm_frame::{Frame, Mask};
use bm_wire::{Family, ethernet, ipv4, ipv6};

use super::family::FamilyBatches;
use super::{TOGETHER, Work};
use crate::compiled::PortView;
use crate::input::{self, Arrival};
use crate::lookup::FamilyBatch;
use crate::rewrite;
use crate::tables::Tables;
use crate::validate::vectors::{self, Columns, LANES};
use crate::validate::{self, Packet};

impl Work {
    #[inline(never)]
    pub(super) fn input_and_validate(&mut self, tables: &Tables, view: &PortView) {
        let count = self.burst.len();
        let vrf = view.vrf.and_then(|vrf| tables.vrfs.get(usize::from(vrf)));
        let mut closer = Mask::NONE;
        // Most bursts are of one family, so bits are cleared for the exceptions.
        self.all = Mask::first(count);
        self.batches.ipv4.mask = self.all;
        self.arrivals[..count].fill((view.untagged.unwrap_or(0), ethernet::HEADER_LEN as u16));
        for from in (0..count).step_by(TOGETHER) {
            let group = from..count.min(from + TOGETHER);
            let ahead = group.end..count.min(group.end + TOGETHER);
            self.burst.places()[ahead].iter().flatten().for_each(Frame::prefetch);
            self.validate(tables, view, group.clone(), &mut closer);
            // The last one stands for all: other frames of its group cost at most a useless cache line.
            let (Some(vrf), Some(last)) = (vrf, group.clone().last()) else { continue };
            match () {
                () if self.batches.ipv4.mask.has(last) => {
                    vrf.ipv4.prefetch(&self.batches.ipv4.destinations[group])
                }
                () if self.batches.ipv6.mask.has(last) => {
                    vrf.ipv6.prefetch(&self.batches.ipv6.destinations[group])
                }
                () => {}
            }
        }
        self.untagged = closer.is_empty();
        if !self.untagged {
            self.look_closer(tables, view, &closer);
        }
    }

    /// The same for those that the plain path has left, one by one.
    #[inline(never)]
    pub(super) fn input_and_validate_left(&mut self, tables: &Tables, view: &PortView, left: &Mask) {
        let mut closer = Mask::NONE;
        self.all = Mask::first(self.burst.len());
        self.batches.ipv4.mask = *left;
        for place in left.iter() {
            self.arrivals[place] = (view.untagged.unwrap_or(0), ethernet::HEADER_LEN as u16);
            self.validate_one(tables, view, place, &mut closer);
        }
        self.untagged = closer.is_empty();
        if !self.untagged {
            self.look_closer(tables, view, &closer);
        }
    }

    /// Stores common frames, and marks the others in `closer`. All are assumed to be of the family of the previous
    /// ones, until none of them is.
    #[inline(always)]
    fn validate(&mut self, tables: &Tables, view: &PortView, mut places: Range<usize>, closer: &mut Mask) {
        let (count, common) = match self.family {
            Family::V4 => self.validate_ipv4(tables, view, places.clone()).unwrap_or((0, 0)),
            Family::V6 => (places.len(), self.validate_ipv6(view, places.clone())),
        };
        if count != 0 && common == 0 {
            self.family = self.family.other();
        }
        let mut others = !common & ((1u32 << count) - 1) as u16;
        while others != 0 {
            self.validate_one(tables, view, places.start + others.trailing_zeros() as usize, closer);
            others &= others - 1;
        }
        places.start += count;
        places.for_each(|place| self.validate_one(tables, view, place, closer));
    }

    /// As many eights of `places` as there are, where this CPU can: how many frames these were, and which of them
    /// are IPv4 of the common sort.
    #[inline(always)]
    fn validate_ipv4(
        &mut self,
        tables: &Tables,
        view: &PortView,
        places: Range<usize>,
    ) -> Option<(usize, u16)> {
        let Self { form, burst, batches: FamilyBatches { ipv4, .. }, suspects, sources, .. } = self;
        let first = places.start;
        let (frames, _) = burst.places()[places].as_chunks::<LANES>();
        let columns = (sources[first..].first_chunk_mut()?, columns(ipv4, first)?);
        let seen = vectors::common_ipv4(*form, frames, view.fast_ipv4, &tables.compiled.local, columns)?;
        suspects.set_sixteen(first, if view.filters { seen.common } else { seen.suspects });
        Some((frames.len() * LANES, seen.common))
    }

    /// Which of `places`, at most sixteen, are common IPv6.
    #[inline(always)]
    fn validate_ipv6(&mut self, view: &PortView, mut places: Range<usize>) -> u16 {
        let first = places.start;
        let (count, mut common) = self.validate_ipv6_eights(view, places.clone()).unwrap_or((0, 0));
        places.start += count;
        common |= self.validate_ipv6_each(view, places).checked_shl(count as u32).unwrap_or(0);
        self.batches.ipv4.mask.clear_sixteen(first, common);
        self.batches.ipv6.mask.set_sixteen(first, common);
        common
    }

    #[inline(always)]
    fn validate_ipv6_eights(&mut self, view: &PortView, places: Range<usize>) -> Option<(usize, u16)> {
        let Self { form, burst, batches: FamilyBatches { ipv6, .. }, .. } = self;
        let first = places.start;
        let (frames, _) = burst.places()[places].as_chunks::<LANES>();
        let common =
            vectors::common_ipv6(*form, frames, (view.fast_ipv6, view.closer), columns(ipv6, first)?)?;
        Some((frames.len() * LANES, common))
    }

    /// One by one, but with their bits collected.
    #[inline(always)]
    fn validate_ipv6_each(&mut self, view: &PortView, places: Range<usize>) -> u16 {
        let Self { burst, batches: FamilyBatches { ipv6, .. }, .. } = self;
        let first = places.start;
        let mut common = 0;
        for (lane, frame) in burst.places()[places].iter().enumerate() {
            let data = frame.as_ref().map_or(&[][..], Frame::data);
            if let Some(packet) = common_ipv6(view, data) {
                ipv6.note(first + lane, packet);
                common |= 1 << lane;
            }
        }
        common
    }

    #[inline(always)]
    fn validate_one(&mut self, tables: &Tables, view: &PortView, place: usize, closer: &mut Mask) {
        let Self { burst, batches: FamilyBatches { ipv4, ipv6 }, suspects, sources, .. } = self;
        let data = burst.get(place).map_or(&[][..], Frame::data);
        if let Some(packet) = common_ipv4(view, data) {
            if view.filters || tables.compiled.local.may_hold(packet.source) {
                sources[place] = packet.source;
                suspects.set(place);
            }
            ipv4.note(place, packet);
        } else if let Some(packet) = common_ipv6(view, data) {
            ipv4.mask.clear(place);
            ipv6.mask.set(place);
            ipv6.note(place, packet);
        } else {
            ipv4.mask.clear(place);
            closer.set(place);
        }
    }

    /// The same for frames that are not of the common sort.
    #[inline(never)]
    fn look_closer(&mut self, tables: &Tables, view: &PortView, places: &Mask) {
        let Self { burst, refused, batches, suspects, sources, arrivals, .. } = self;
        let FamilyBatches { ipv4, ipv6 } = batches;
        for place in places.iter() {
            let Some(frame) = burst.get(place) else { continue };
            let arrival = input::classify(&tables.compiled, view, frame.data());
            arrivals[place] = arrival.map_or((0, 0), |arrival| (arrival.interface, arrival.network));
            let accepted = arrival.and_then(|Arrival { network, family, .. }| {
                let packet = frame.data().get(usize::from(network)..).unwrap_or(&[]);
                match family {
                    Family::V4 => validate::ipv4(packet).map(|packet| {
                        sources[place] = packet.source;
                        suspects.set(place);
                        ipv4.mask.set(place);
                        ipv4.note(place, packet);
                    }),
                    Family::V6 => validate::ipv6(packet).map(|packet| {
                        ipv6.mask.set(place);
                        ipv6.note(place, packet);
                    }),
                }
            });
            if let Err(why) = accepted {
                refused.add(place, why);
            }
        }
    }
}

/// The places of sixteen packets, from `first` on.
#[inline(always)]
fn columns<A>(batch: &mut FamilyBatch<A>, first: usize) -> Option<Columns<'_, A>> {
    Some(Columns {
        destinations: batch.destinations[first..].first_chunk_mut()?,
        lengths: batch.facts.lengths[first..].first_chunk_mut()?,
        ttl: batch.facts.ttl[first..].first_chunk_mut()?,
        spent: batch.facts.spent[first..].first_chunk_mut()?,
    })
}

/// A common packet in a common frame. A single length check covers both headers.
#[inline(always)]
fn common_ipv4(view: &PortView, frame: &[u8]) -> Option<Packet<u32>> {
    let (ethernet, packet) = heads::<{ rewrite::IPV4_HEAD }, { ipv4::HEADER_LEN }>(frame)?;
    let room = frame.len() - ethernet::HEADER_LEN;
    if input::is_common_ipv4(view, ethernet) { validate::common_ipv4(packet, room) } else { None }
}

#[inline(always)]
fn common_ipv6(view: &PortView, frame: &[u8]) -> Option<Packet<u128>> {
    let (ethernet, packet) = heads::<{ rewrite::IPV6_HEAD }, { ipv6::HEADER_LEN }>(frame)?;
    let room = frame.len() - ethernet::HEADER_LEN;
    if input::is_common_ipv6(view, ethernet) {
        validate::common_ipv6(packet, room, view.closer)
    } else {
        None
    }
}

/// Both headers of an untagged frame, if they are complete.
#[inline(always)]
fn heads<const HEAD: usize, const IP: usize>(
    frame: &[u8],
) -> Option<(&[u8; ethernet::HEADER_LEN], &[u8; IP])> {
    let head = frame.first_chunk::<HEAD>()?;
    Some((head.first_chunk()?, head.last_chunk()?))
}
