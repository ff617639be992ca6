//! Eight or sixteen frames at once, if the CPU supports it: the checks of [`common_ipv4`](super::common_ipv4) and
//! [`common_ipv6`](super::common_ipv6), each done for all frames with one instruction.
//!
//! A frame that is not of the common sort is left to the closer look; why is not asked here.

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx512;
#[cfg(test)]
mod ipv6_tests;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Ipv6Headers;

use bm_fib::Form;
use bm_frame::Frame;
use bm_wire::{ethernet, ipv6};

use crate::compiled::{LocalFilter, MacKey};
use crate::validate::AheadOfFragment;

/// Frames at once.
pub(crate) const LANES: usize = 8;
/// Bytes that are read of each IPv4 frame: both headers, and the rest of the last load.
pub(crate) const HEAD: usize = 42;
/// Bytes that are read of each IPv6 frame: both headers.
const IPV6_HEAD: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN;
/// Where the destination begins there.
const IPV6_DESTINATION: usize = IPV6_HEAD - size_of::<u128>();
/// The word of IPv6 frames that starts with the type, and which bits of it matter: the type, and the version after
/// it.
const IPV6_KIND: (u32, u32) = {
    let [high, low] = ethernet::ethertype::IPV6.to_be_bytes();
    (u32::from_le_bytes([high, low, 0x60, 0]), u32::from_le_bytes([0xff, 0xff, 0xf0, 0]))
};

/// Where to write what later stages need, with a slot for each of sixteen frames. Frames that are not common leave
/// arbitrary values.
pub(crate) struct Columns<'a, A, const FRAMES: usize = { 2 * LANES }> {
    pub destinations: &'a mut [A; FRAMES],
    pub lengths: &'a mut [u16; FRAMES],
    pub ttl: &'a mut [u16; FRAMES],
    pub spent: &'a mut [[u8; 4]; FRAMES],
}

#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
impl<A> Columns<'_, A> {
    /// The slots of one of the two groups of eight.
    #[inline(always)]
    fn eight(&mut self, index: usize) -> Option<Columns<'_, A, LANES>> {
        Some(Columns {
            destinations: self.destinations.as_chunks_mut().0.get_mut(index)?,
            lengths: self.lengths.as_chunks_mut().0.get_mut(index)?,
            ttl: self.ttl.as_chunks_mut().0.get_mut(index)?,
            spent: self.spent.as_chunks_mut().0.get_mut(index)?,
        })
    }
}

/// The same for IPv4, starting with the sources, which are checked too.
pub(crate) type ColumnsIpv4<'a> = (&'a mut [u32; 2 * LANES], Columns<'a, u32>);

/// Bit `i` for frame `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Untagged, for the MAC, and of the common sort.
    pub common: u16,
    /// Those among them whose source may be an address of this machine.
    pub suspects: u16,
}

/// Checks eight or sixteen frames; `None` if there are fewer, if the CPU can only do one at a time, or if a frame is
/// missing or too short: shorter than [`HEAD`], or than both headers.
#[inline(always)]
#[allow(unsafe_code, unused_variables, unused_mut)]
pub(crate) fn common_ipv4(
    form: Form,
    frames: &[[Option<Frame>; LANES]],
    mac: MacKey,
    local: &LocalFilter,
    mut to: ColumnsIpv4<'_>,
) -> Option<Seen> {
    #[cfg(target_arch = "x86_64")]
    if form != Form::SCALAR && !frames.is_empty() {
        if form.has_avx512()
            && let Some(frames) = frames.as_flattened().first_chunk()
            // SAFETY: the form has all of AVX-512 that is asked for.
            && let Some(seen) = unsafe { avx512::common_ipv4(frames, mac, local, &mut to) }
        {
            return Some(seen);
        }
        // SAFETY: every form but the scalar one has AVX2.
        return unsafe { avx2::common_ipv4(frames, mac, local, to) };
    }
    None
}

/// The same for IPv6: bit `i` says whether frame `i` is untagged, for the MAC address, and common, which frames whose
/// next header is one of `closer` are not. `None` also if a port has no MAC address.
#[inline(always)]
#[allow(unsafe_code, unused_variables, unused_mut)]
pub(crate) fn common_ipv6(
    form: Form,
    frames: &[[Option<Frame>; LANES]],
    (mac, closer): (MacKey, AheadOfFragment),
    mut to: Columns<'_, u128>,
) -> Option<u16> {
    #[cfg(target_arch = "x86_64")]
    if form != Form::SCALAR && !frames.is_empty() {
        if form.has_avx512()
            && let Some(frames) = frames.as_flattened().first_chunk()
        {
            // SAFETY: the form has all of AVX-512 that is asked for.
            return unsafe { avx512::common_ipv6(frames, (mac, closer), &mut to) };
        }
        // SAFETY: every form but the scalar one has AVX2.
        return unsafe { avx2::common_ipv6(frames, (mac, closer), to) };
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::{Arc, OnceLock};

    use bm_frame::{FramePool, Freelist};
    use bm_wire::checksum;
    use proptest::prelude::*;

    use super::*;
    use crate::compiled::key_of;
    use crate::validate::{self, Facts};

    /// What was written for sixteen frames.
    #[derive(Default)]
    struct Found {
        sources: [u32; 2 * LANES],
        destinations: [u32; 2 * LANES],
        lengths: [u16; 2 * LANES],
        ttl: [u16; 2 * LANES],
        spent: [[u8; 4]; 2 * LANES],
    }

    impl Found {
        fn columns(&mut self) -> ColumnsIpv4<'_> {
            let columns = Columns {
                destinations: &mut self.destinations,
                lengths: &mut self.lengths,
                ttl: &mut self.ttl,
                spent: &mut self.spent,
            };
            (&mut self.sources, columns)
        }

        fn packet(&self, lane: usize) -> validate::Packet<u32> {
            let facts = Facts { length: self.lengths[lane], ttl: self.ttl[lane], spent: self.spent[lane] };
            validate::Packet { source: self.sources[lane], destination: self.destinations[lane], facts }
        }
    }

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    /// 192.0.2.9:12345 > 8.8.8.8:53, UDP, to our MAC.
    const FRAME: [u8; 60] = {
        let mut frame = [0; 60];
        let head = [
            2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 9, 8, 0, 0x45, 0, 0, 32, 0x12, 0x34, 0, 0, 64, 17, 0x96, 0x80,
            192, 0, 2, 9, 8, 8, 8, 8, 0x30, 0x39, 0, 53, 0, 12, 0, 0,
        ];
        let mut at = 0;
        while at < head.len() {
            frame[at] = head[at];
            at += 1;
        }
        frame
    };

    /// A frame with some bytes of its headers changed, possibly with a new checksum, and truncated.
    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let changes =
            prop::collection::vec((prop::sample::select((0..34).collect::<Vec<_>>()), any::<u8>()), 0..3);
        (changes, any::<bool>(), HEAD..60usize).prop_map(|(changes, mend, length)| {
            let mut frame = FRAME.to_vec();
            changes.into_iter().for_each(|(at, byte)| frame[at] = byte);
            if mend {
                let sum = checksum::ipv4_header(&frame[14..34]);
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            frame.truncate(length);
            frame
        })
    }

    /// The result for a single frame.
    fn alone(frame: &[u8]) -> Option<validate::Packet<u32>> {
        let header = frame[14..].first_chunk()?;
        let is_ours = frame[..6] == MAC && frame[12..14] == [8, 0];
        validate::common_ipv4(header, frame.len() - 14).filter(|_| is_ours)
    }

    /// Frames for all cases: their memory is never returned.
    fn list() -> Freelist {
        static DEPOT: OnceLock<Arc<FramePool>> = OnceLock::new();
        Freelist::new(DEPOT.get_or_init(|| FramePool::new(1024, 2048).unwrap()).clone(), 128)
    }

    /// Frames with these bytes, in groups of eight; a rest is ignored.
    fn eights(list: &mut Freelist, frames: &[Vec<u8>]) -> Vec<[Option<Frame>; LANES]> {
        let eights = frames.as_chunks::<LANES>().0.iter();
        eights.map(|eight| std::array::from_fn(|lane| list.allocate_with(&eight[lane]))).collect()
    }

    fn free(list: &mut Freelist, eights: Vec<[Option<Frame>; LANES]>) {
        eights.into_iter().flatten().flatten().for_each(|frame| list.free(frame));
    }

    #[test]
    fn no_hops_leave_the_protocol_alone() {
        let mut list = list();
        let mut frame = FRAME;
        frame[22] = 0;
        frame[24..26].fill(0);
        let sum = checksum::ipv4_header(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        let frames = eights(&mut list, &vec![frame.to_vec(); 2 * LANES]);
        for form in Form::all().into_iter().filter(|&form| form != Form::SCALAR) {
            let mut found = Found::default();
            common_ipv4(form, &frames, key_of(MAC), &LocalFilter::of(&[]), found.columns()).unwrap();
            assert!(found.spent.iter().all(|spent| spent[..2] == [255, 17]), "{:?}", found.spent);
        }
        free(&mut list, frames);
    }

    #[test]
    fn what_is_missing_or_short_goes_one_by_one() {
        let mut list = list();
        let mut frames = eights(&mut list, &vec![FRAME.to_vec(); 2 * LANES]);
        let seen = |frames: &[[Option<Frame>; LANES]], form| {
            common_ipv4(form, frames, key_of(MAC), &LocalFilter::of(&[]), Found::default().columns())
        };
        for form in Form::all().into_iter().filter(|&form| form != Form::SCALAR) {
            assert_eq!(seen(&frames, form), Some(Seen { common: 0xffff, suspects: 0 }));
            assert_eq!(seen(&frames[..1], form), Some(Seen { common: 0xff, suspects: 0 }));
            assert_eq!(seen(&[], form), None);
        }
        let taken = frames[1][7].take().unwrap();
        assert!(Form::all().into_iter().all(|form| seen(&frames, form).is_none()));
        frames[1][7] = Some(taken);
        frames[1][6].as_mut().unwrap().truncate(33);
        assert!(Form::all().into_iter().all(|form| seen(&frames, form).is_none()));
        free(&mut list, frames);
    }

    /// All frames for another MAC address that differs in its first two bytes, and each of them separately.
    #[test]
    fn the_first_bytes_of_the_mac_count() {
        let mut list = list();
        for first in [[3, 0], [2, 1], [9, 9]] {
            let mut frame = FRAME;
            frame[..2].copy_from_slice(&first);
            let frames = eights(&mut list, &vec![frame.to_vec(); 2 * LANES]);
            for form in Form::all().into_iter().filter(|&form| form != Form::SCALAR) {
                let seen = common_ipv4(
                    form,
                    &frames,
                    key_of(MAC),
                    &LocalFilter::of(&[]),
                    Found::default().columns(),
                );
                assert_eq!(seen, Some(Seen { common: 0, suspects: 0 }), "{first:?}");
            }
            free(&mut list, frames);
        }
    }

    #[test]
    fn a_port_without_a_mac_takes_no_frame() {
        let mut list = list();
        let mut frame = FRAME;
        frame[..6].fill(0xff);
        let frames = eights(&mut list, &vec![frame.to_vec(); 2 * LANES]);
        for form in Form::all().into_iter().filter(|&form| form != Form::SCALAR) {
            let seen =
                common_ipv4(form, &frames, MacKey::MAX, &LocalFilter::of(&[]), Found::default().columns());
            assert_eq!(seen, Some(Seen { common: 0, suspects: 0 }));
        }
        free(&mut list, frames);
    }

    proptest! {
        #[test]
        fn eight_fare_as_each_alone(frames in prop::collection::vec(frames(), 2 * LANES)) {
            let mut list = list();
            let local = LocalFilter::of(&[Ipv4Addr::new(192, 0, 2, 9), Ipv4Addr::new(10, 0, 0, 1)]);
            let held = eights(&mut list, &frames);
            for form in Form::all() {
                let mut found = Found::default();
                let seen = common_ipv4(form, &held, key_of(MAC), &local, found.columns());
                prop_assert_eq!(seen.is_none(), form == Form::SCALAR);
                let Some(seen) = seen else { continue };
                for (lane, frame) in frames.iter().enumerate() {
                    let is = |bits: u16| bits >> lane & 1 == 1;
                    let expected = alone(frame);
                    prop_assert_eq!(is(seen.common), expected.is_some(), "{:02x?}", frame);
                    let suspect = expected.is_some_and(|packet| local.may_hold(packet.source));
                    prop_assert_eq!(is(seen.suspects), suspect);
                    if let Some(packet) = expected {
                        prop_assert_eq!(found.packet(lane), packet);
                    }
                }
            }
            free(&mut list, held);
        }
    }
}
