//! Counting reordered packets: the input node numbers the packets of some flows, the output node looks at the numbers.
//!
//! A packet is reordered if its number is smaller than one that has already arrived (RFC 4737, section 3.3). Lost packets
//! do not count. Numbers repeat after 1,024 packets, so a packet that is late by more than 511 is not recognized.

use crate::address::{Sample, Source};

/// A flow that has been silent for so long has no packet under way.
const SILENT_NS: u64 = 100_000_000;
/// So many late packets in a row mean that the output has missed more numbers than it can tell apart.
const LATE_IN_A_ROW: u8 = 32;
/// Flows that an output follows at the same time.
const FOLLOWED: usize = 4096;

#[derive(Clone, Copy, Default)]
struct Numbered {
    flow: u32,
    next: u16,
    last_ns: u64,
}

/// Numbers the packets of up to 256 flows at an input node.
pub struct Sampler {
    flows: Vec<Numbered>,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { flows: vec![Numbered::default(); 256] }
    }
}

impl Sampler {
    /// The number of a packet, if its flow is one of those sampled. A place that is silent goes to the next flow.
    #[inline]
    pub fn sample(&mut self, flow: u32, now_ns: u64) -> Option<Sample> {
        let slot = (flow >> 24) as u8;
        let numbered = &mut self.flows[usize::from(slot)];
        let is_free = numbered.last_ns == 0 || now_ns.saturating_sub(numbered.last_ns) > SILENT_NS;
        if numbered.flow != flow {
            if !is_free {
                return None;
            }
            numbered.flow = flow;
        }
        let sequence = numbered.next;
        // One nanosecond at the very start of time is not worth a flag.
        numbered.last_ns = now_ns.max(1);
        numbered.next = (sequence + 1) % Sample::SEQUENCES;
        Some(Sample { flow: slot, sequence })
    }
}

#[derive(Clone, Copy, Default)]
struct FlowOrder {
    /// Input and flow, plus one; 0: nothing.
    key: u32,
    next: u16,
    late: u8,
}

/// Counts at an output node.
pub struct OrderCounter {
    flows: Vec<FlowOrder>,
    packets: u64,
    reordered: u64,
}

impl Default for OrderCounter {
    fn default() -> Self {
        Self { flows: vec![FlowOrder::default(); FOLLOWED], packets: 0, reordered: 0 }
    }
}

impl OrderCounter {
    /// Looks at a packet that has arrived; true if it was late.
    #[inline]
    pub fn count(&mut self, source: &Source) -> bool {
        let Some(sample) = source.sample else { return false };
        let key = (u32::from(source.input.number()) << 8 | u32::from(sample.flow)) + 1;
        let place = (key.wrapping_mul(0x9e37_79b1) >> 20) as usize % FOLLOWED;
        let followed = &mut self.flows[place];
        self.packets += 1;
        let ahead = sample.sequence.wrapping_sub(followed.next) % Sample::SEQUENCES;
        let late = followed.key == key && ahead >= Sample::SEQUENCES / 2 && followed.late < LATE_IN_A_ROW;
        if late {
            followed.late += 1;
            self.reordered += 1;
        } else {
            *followed = FlowOrder { key, next: (sample.sequence + 1) % Sample::SEQUENCES, late: 0 };
        }
        late
    }

    /// Sampled packets that have arrived.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Those that were late.
    pub fn reordered(&self) -> u64 {
        self.reordered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Node;

    fn source(input: u16, sequence: u16) -> Source {
        let input = Node::new(input).expect("a node");
        Source { input, via: None, sample: Some(Sample { flow: 9, sequence }) }
    }

    #[test]
    fn counts_late_packets_and_no_lost_ones() {
        let mut counter = OrderCounter::default();
        let late: Vec<bool> =
            [1, 2, 5, 3, 4, 6, 100].map(|sequence| counter.count(&source(1, sequence))).into();
        assert_eq!(late, [false, false, false, true, true, false, false]);
        assert!(!counter.count(&source(2, 0)), "another input");
        assert!(!counter.count(&Source { sample: None, ..source(1, 0) }));
        assert_eq!((counter.packets(), counter.reordered()), (8, 2));
    }

    #[test]
    fn numbers_wrap_and_a_long_gap_is_not_reordering_for_ever() {
        let mut counter = OrderCounter::default();
        assert!([1022, 1023, 0, 1].iter().all(|&sequence| !counter.count(&source(1, sequence))));
        let late = (0..100).filter(|at| counter.count(&source(1, 700 + at))).count();
        assert_eq!(late, usize::from(LATE_IN_A_ROW));
    }

    #[test]
    fn numbers_one_flow_a_place_until_it_is_silent() {
        let mut sampler = Sampler::default();
        let (one, other) = (0x0500_0001, 0x0500_0002);
        assert_eq!(sampler.sample(one, 0), Some(Sample { flow: 5, sequence: 0 }));
        assert_eq!(sampler.sample(other, 10), None);
        assert_eq!(sampler.sample(one, 20), Some(Sample { flow: 5, sequence: 1 }));
        assert_eq!(sampler.sample(other, 20 + SILENT_NS), None);
        assert_eq!(sampler.sample(other, 21 + SILENT_NS), Some(Sample { flow: 5, sequence: 2 }));
        (0..2000).for_each(|_| {
            sampler.sample(other, SILENT_NS);
        });
        let sequence = sampler.sample(other, SILENT_NS).map(|sample| sample.sequence);
        assert_eq!(sequence, Some(2003 % 1024));
    }
}
