//! Delays of packets as a histogram, whose classes are at most a sixteenth wide.

use std::time::Duration;

/// Classes for each power of two.
const PARTS: u32 = 16;
const CLASSES: usize = (64 * PARTS) as usize;

/// How many packets had which delay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delays(Vec<u64>);

impl Default for Delays {
    fn default() -> Self {
        Self(vec![0; CLASSES])
    }
}

fn class(ns: u64) -> usize {
    let ns = ns.max(PARTS.into());
    let power = ns.ilog2();
    (power * PARTS + (ns >> (power - PARTS.ilog2())) as u32 % PARTS) as usize
}

/// The longest delay of a class.
fn end_ns(class: usize) -> u64 {
    let (power, part) = (class as u32 / PARTS, u64::from(class as u32 % PARTS));
    let width = (1u64 << power) / u64::from(PARTS);
    (1u64 << power) + (part + 1) * width - 1
}

impl Delays {
    /// Counts a packet.
    pub fn add(&mut self, delay: Duration) {
        self.0[class(delay.as_nanos() as u64)] += 1;
    }

    /// Counts all packets of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, count)| *sum += count);
    }

    /// The delay in microseconds that this part of the packets had at most.
    pub fn us(&self, part: f64) -> f64 {
        let wanted = (self.0.iter().sum::<u64>() as f64 * part).ceil().max(1.0) as u64;
        let mut sum = 0;
        let found = self.0.iter().position(|count| {
            sum += count;
            sum >= wanted
        });
        found.map_or(0.0, |class| end_ns(class) as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_sixteenth() {
        for ns in [16, 17, 100, 4095, 4096, 1_000_000, 123_456_789] {
            let end = end_ns(class(ns));
            assert!(end >= ns && end <= ns + ns / 16, "{ns}: {end}");
        }
        let mut delays = Delays::default();
        assert_eq!(delays.us(0.5), 0.0);
        (1..=1000).for_each(|us| delays.add(Duration::from_micros(us)));
        let mut both = delays.clone();
        both.merge(&delays);
        assert_eq!((both.us(0.5), both.us(0.999)), (delays.us(0.5), delays.us(0.999)));
        assert!((500.0..532.0).contains(&both.us(0.5)) && (999.0..1063.0).contains(&both.us(0.999)));
    }
}
