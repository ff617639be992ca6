//! Events in the order of time; those of the same time in the order in which they were added.
//!
//! A wheel of buckets, each for a short time, since a long run adds and takes a thousand million events. Within a
//! bucket events are sorted when their time comes. Those that are too far in the future are kept outside the wheel.

const BUCKETS: u64 = 1 << 15;

/// Events to come.
pub struct Wheel<E> {
    buckets: Vec<Vec<(u64, E)>>,
    far: Vec<(u64, E)>,
    shift: u32,
    now: u64,
}

impl<E> Wheel<E> {
    /// A wheel whose buckets last `2^shift` ns. Events must be added at least that long before their time.
    pub fn new(shift: u32) -> Self {
        Self { buckets: (0..BUCKETS).map(|_| Vec::new()).collect(), far: Vec::new(), shift, now: 0 }
    }

    /// Adds an event; one that would be too early goes into the next bucket.
    #[inline]
    pub fn add(&mut self, at_ns: u64, event: E) {
        let bucket = (at_ns >> self.shift).max(self.now + 1);
        if bucket - self.now < BUCKETS {
            self.buckets[(bucket % BUCKETS) as usize].push((at_ns, event));
        } else {
            self.far.push((at_ns, event));
        }
    }

    /// The events of the next nonempty bucket before `until_ns`, in order. `spare` becomes the storage of another
    /// bucket.
    pub fn next(&mut self, until_ns: u64, spare: Vec<(u64, E)>) -> Option<Vec<(u64, E)>> {
        while self.now < until_ns >> self.shift {
            self.now += 1;
            if self.now.is_multiple_of(BUCKETS / 2) {
                self.bring_near();
            }
            let bucket = &mut self.buckets[(self.now % BUCKETS) as usize];
            if !bucket.is_empty() {
                let mut events = std::mem::replace(bucket, spare);
                events.sort_by_key(|(at, _)| *at);
                return Some(events);
            }
        }
        None
    }

    /// The time of the current bucket.
    pub fn now_ns(&self) -> u64 {
        self.now << self.shift
    }

    /// Moves events that are near enough into the wheel.
    fn bring_near(&mut self) {
        let (now, shift) = (self.now, self.shift);
        let near = self.far.extract_if(.., |(at, _)| (*at >> shift) < now + BUCKETS);
        for (at, event) in near {
            let bucket = (at >> shift).max(now);
            self.buckets[(bucket % BUCKETS) as usize].push((at, event));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn events_come_in_the_order_of_time() {
        let mut wheel = Wheel::new(9);
        let mut random = Random::new(1, 0);
        let mut expected: Vec<(u64, u64)> = (0..5000).map(|at| (1000 + random.below(1 << 26), at)).collect();
        expected.iter().for_each(|&(at, event)| wheel.add(at, event));
        expected.sort();
        let (mut events, mut spare) = (Vec::new(), Vec::new());
        while let Some(mut some) = wheel.next(1 << 27, spare) {
            events.append(&mut some);
            spare = some;
        }
        assert_eq!(events, expected);
    }

    #[test]
    fn events_may_add_others() {
        let mut wheel = Wheel::new(4);
        wheel.add(100, 0);
        let mut times = Vec::new();
        while let Some(events) = wheel.next(10_000_000, Vec::new()) {
            for (at, step) in events {
                times.push(at);
                wheel.add(at + 16 + step * 1000, step + 1);
            }
        }
        assert!(times.len() > 100 && times.is_sorted());
        assert_eq!(&times[..3], [100, 116, 1132]);
    }
}
