//! Eight IPv4 frames at once, where the CPU can: the questions of [`common_ipv4`](super::common_ipv4), each asked of
//! all eight in one instruction.
//!
//! A frame that is not of the common sort is left to the closer look; why is not asked here.

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx2;

use bm_fib::Form;

use super::Facts;
use crate::compiled::{LocalFilter, MacKey};

/// Frames at once.
pub(crate) const LANES: usize = 8;
/// Bytes that are read of each: both headers, and what else is in the last load.
pub(crate) const HEAD: usize = 42;

/// What is read of eight frames.
pub(crate) struct Eight<'a> {
    pub heads: [&'a [u8; HEAD]; LANES],
    /// Bytes of each frame.
    pub lengths: [u32; LANES],
}

/// Where to write what later stages want. Frames that are not of the common sort leave any values.
pub(crate) struct Columns<'a> {
    pub sources: &'a mut [u32; LANES],
    pub destinations: &'a mut [u32; LANES],
    pub facts: &'a mut [Facts; LANES],
}

/// Bit `i` for frame `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Untagged, for the MAC, and of the common sort.
    pub common: u8,
    /// Of those, the ones whose source may be an address of ours.
    pub suspects: u8,
}

/// Looks at eight frames; `None` where the CPU can do one at a time only.
#[inline(always)]
#[allow(unsafe_code, unused_variables)]
pub(crate) fn common_ipv4(
    form: Form,
    eight: &Eight<'_>,
    mac: MacKey,
    local: &LocalFilter,
    to: Columns<'_>,
) -> Option<Seen> {
    #[cfg(target_arch = "x86_64")]
    if form != Form::SCALAR {
        // SAFETY: every form but the scalar one has AVX2.
        return Some(unsafe { avx2::common_ipv4(eight, mac, local, to) });
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use bm_wire::checksum;
    use proptest::prelude::*;

    use super::*;
    use crate::compiled::key_of;
    use crate::validate;

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

    /// A frame with some bytes of its headers changed, perhaps summed anew, and cut.
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

    /// What one at a time finds in a frame.
    fn alone(frame: &[u8]) -> Option<validate::Packet<u32>> {
        let header = frame[14..].first_chunk()?;
        let is_ours = frame[..6] == MAC && frame[12..14] == [8, 0];
        validate::common_ipv4(header, frame.len() - 14).filter(|_| is_ours)
    }

    #[test]
    fn no_hops_leave_the_protocol_alone() {
        let mut frame = FRAME;
        frame[22] = 0;
        frame[24..26].fill(0);
        let sum = checksum::ipv4_header(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        let mut facts = [Facts::default(); LANES];
        for form in Form::all().into_iter().filter(|&form| form != Form::SCALAR) {
            let eight = Eight { heads: [frame.first_chunk().unwrap(); LANES], lengths: [60; LANES] };
            let (mut sources, mut destinations) = ([0; LANES], [0; LANES]);
            let columns =
                Columns { sources: &mut sources, destinations: &mut destinations, facts: &mut facts };
            common_ipv4(form, &eight, key_of(MAC), &LocalFilter::of(&[]), columns).unwrap();
            assert!(facts.iter().all(|facts| facts.spent[..2] == [255, 17]), "{facts:?}");
        }
    }

    proptest! {
        #[test]
        fn eight_fare_as_each_alone(frames in prop::collection::vec(frames(), LANES)) {
            let local = LocalFilter::of(&[Ipv4Addr::new(192, 0, 2, 9), Ipv4Addr::new(10, 0, 0, 1)]);
            for form in Form::all() {
                let mut eight = Eight { heads: [&[0; HEAD]; LANES], lengths: [0; LANES] };
                for (lane, frame) in frames.iter().enumerate() {
                    eight.heads[lane] = frame.first_chunk().unwrap();
                    eight.lengths[lane] = frame.len() as u32;
                }
                let (mut sources, mut destinations) = ([0; LANES], [0; LANES]);
                let mut facts = [Facts::default(); LANES];
                let columns =
                    Columns { sources: &mut sources, destinations: &mut destinations, facts: &mut facts };
                let seen = common_ipv4(form, &eight, key_of(MAC), &local, columns);
                prop_assert_eq!(seen.is_none(), form == Form::SCALAR);
                let Some(seen) = seen else { continue };
                for (lane, frame) in frames.iter().enumerate() {
                    let is = |bits: u8| bits >> lane & 1 == 1;
                    let expected = alone(frame);
                    prop_assert_eq!(is(seen.common), expected.is_some(), "{:02x?}", frame);
                    let suspect = expected.is_some_and(|packet| local.may_hold(packet.source));
                    prop_assert_eq!(is(seen.suspects), suspect);
                    if let Some(packet) = expected {
                        let (source, destination) = (sources[lane], destinations[lane]);
                        prop_assert_eq!(validate::Packet { source, destination, facts: facts[lane] }, packet);
                    }
                }
            }
        }
    }
}
