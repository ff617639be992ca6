//! Programs that sample: the kernel accepts each kind, and samples say what came in and where it left.

use super::tagged::{tagged, trunk};
use super::*;
use bm_bpf::samples::{Sample, SampleDrop, SampleReader};
use bm_filter::{Filters, Rate};
use bm_wire::ReversePath;
use std::sync::Arc;

/// The interface through which all packets of these tests leave.
const OUT_IFINDEX: u32 = 77;

impl Lab {
    fn sample(&mut self, one_in: u32, filters: Option<Filters>) {
        self.configuration.sample_one_in = one_in;
        self.configuration.filters = filters.map(Arc::new);
        self.publish();
    }

    /// Passes a frame, each of which is sampled; what became of it is known.
    fn check_sample(&mut self, reader: &SampleReader, frame: &[u8], out: u32, drop: Option<SampleDrop>) {
        self.pass(frame);
        let (ifindex, length, header) = (self.ifindex, frame.len() as u32, frame.to_vec());
        let expected = Sample { ifindex, out, length, frames: 1, missed: 0, drop, header };
        assert_eq!(reader.poll(Duration::ZERO).unwrap(), [expected]);
    }
}

/// One test, since all samples of a process are in one ring.
#[test]
fn samples_say_what_came_in_and_where_it_left() {
    let Some(mut untagged) = lab() else { return };
    let reader = SampleReader::open().unwrap();
    let hop = untagged.hop(1);
    untagged.set4("198.51.100.0/24", hop);
    for filters in [None, Some(Filters::default())] {
        untagged.sample(1, filters);
        untagged.check_sample(&reader, &IPV4, OUT_IFINDEX, None);
        untagged.check_sample(&reader, &IPV6, 0, None);
    }
    untagged.sample(1, Some(Filters { drop_unmatched: true, ..Filters::default() }));
    untagged.check_sample(&reader, &IPV4, 0, Some(SampleDrop::Filter));
    // The first of a source is forwarded; the next ones are too many.
    let rate = Some(Rate { packets: 1, burst: 1, lengths: [32, 64] });
    untagged.sample(1, Some(Filters { rate, ..Filters::default() }));
    untagged.check_sample(&reader, &IPV4, OUT_IFINDEX, None);
    untagged.check_sample(&reader, &IPV4, 0, Some(SampleDrop::RateLimit));
    untagged.configuration.interfaces[0].check = ReversePath::Loose;
    untagged.sample(1, Some(Filters { drop_tiny_fragments: true, ..Filters::default() }));
    untagged.check_sample(&reader, &IPV4, 0, Some(SampleDrop::ReversePath));
    let tiny = with(&with(&IPV4, 20, &[0x20, 0]), 23, &[6]);
    untagged.configuration.interfaces[0].check = ReversePath::Off;
    untagged.sample(1, Some(Filters { drop_tiny_fragments: true, ..Filters::default() }));
    untagged.check_sample(&reader, &tiny, 0, Some(SampleDrop::TinyFragment));
    let nowhere = untagged.hops.add(Action::Blackhole, Gateway::default(), 0).unwrap();
    untagged.set6("2001:db8:2::/48", nowhere);
    untagged.sample(1, None);
    untagged.check_sample(&reader, &IPV6, 0, Some(SampleDrop::Blackhole));
    // What was dropped before does not count for the next.
    untagged.check_sample(&reader, &IPV4, OUT_IFINDEX, None);
    untagged.sample(0, None);
    (0..100).for_each(|_| drop(untagged.pass(&IPV4)));
    assert_eq!(reader.poll(Duration::ZERO).unwrap(), []);
    untagged.sample(10, None);
    (0..1000).for_each(|_| drop(untagged.pass(&IPV4)));
    let samples = reader.poll(Duration::ZERO).unwrap();
    assert!((60..140).contains(&samples.len()), "{} samples", samples.len());
    // All but those since the last one, on each CPU that has run the program.
    let frames: u32 = samples.iter().map(|sample| sample.frames).sum();
    assert!((700..=1000).contains(&frames), "{frames} frames");
    drop(untagged);
    let Some((mut vlans, plain, nine)) = trunk() else { return };
    let in_seven = tagged(&IPV4, &[(0x8100, 7)]);
    for filters in [None, Some(Filters::default())] {
        vlans.sample(1, filters);
        for hop in [plain, nine] {
            vlans.set4("198.51.100.0/24", hop);
            vlans.check_sample(&reader, &IPV4, OUT_IFINDEX, None);
            vlans.check_sample(&reader, &in_seven, OUT_IFINDEX, None);
        }
    }
}
