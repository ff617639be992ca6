//! A cable that records, drops, delays, repeats and reorders messages, while daemons restart: whoever has it never makes a
//! node go back to an earlier announcement, and cannot keep it from the latest one except by dropping it.
//!
//! `BM_SEED` repeats one run, `BM_ADVERSARY_RUNS` makes more of them.

use super::*;

const TICK: u64 = 100_000_000;

/// A generator of random numbers: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Two ends, and all that was ever sent by each.
struct Cable {
    random: Random,
    ends: [Session; 2],
    recorded: [Vec<Message>; 2],
    /// What each end announces: the latest is the one with the highest number.
    announced: [u64; 2],
    /// The highest announcement of the other end that each has accepted.
    accepted: [u64; 2],
    now: u64,
}

impl Cable {
    fn new(seed: u64) -> Self {
        Self {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            ends: [session(1, 2), session(2, 1)],
            recorded: [Vec::new(), Vec::new()],
            announced: [1, 1],
            accepted: [0, 0],
            now: 0,
        }
    }

    fn entries(number: u64) -> Vec<Entry> {
        (0..130).map(own).chain((0..8).map(|at| own((number >> (8 * at)) as u8))).collect()
    }

    fn number(entries: &[Entry]) -> Option<u64> {
        let last = |entry: &Entry| match entry {
            Entry::Own(std::net::IpAddr::V4(address)) => u64::from(address.octets()[3]),
            _ => unreachable!("no others are announced"),
        };
        let number = entries.get(130..)?;
        Some((0..).zip(number).fold(0, |sum, (at, entry)| sum | last(entry) << (8 * at)))
    }

    fn deliver(&mut self, to: usize, message: Message) {
        self.ends[to].receive(message, self.now);
        let Some(number) = Self::number(self.ends[to].announced()) else { return };
        assert!(number >= self.accepted[to], "{number} after {}", self.accepted[to]);
        self.accepted[to] = number;
        self.ends[to].set_applied();
    }

    /// One tick of both daemons, on a cable that loses one of so many messages.
    fn tick(&mut self, loses_one_of: u64) {
        self.now += TICK;
        for from in 0..2 {
            let version = self.announced[from];
            let mut messages = self.ends[from].hellos(version, self.now);
            messages.extend(self.ends[from].announcement(version, &Self::entries(version), self.now));
            for message in messages {
                self.recorded[from].push(message.clone());
                if self.random.below(loses_one_of) != 0 {
                    self.deliver(1 - from, message);
                }
            }
        }
    }

    /// Some messages that were sent before, in any order.
    fn replay(&mut self) {
        for _ in 0..self.random.below(200) {
            let from = self.random.below(2) as usize;
            let count = self.recorded[from].len() as u64;
            if count > 0 {
                let message = self.recorded[from][self.random.below(count) as usize].clone();
                self.deliver(1 - from, message);
            }
        }
    }

    fn step(&mut self) {
        let end = self.random.below(2) as usize;
        match self.random.below(10) {
            0 => self.announced[end] += 1,
            // It is restarted: it has other numbers, announces the next, and has none of the other's.
            1 => {
                self.ends[end] = session(end as u16 + 1, 2 - end as u16);
                (self.announced[end], self.accepted[end]) = (self.announced[end] + 1, 0);
            }
            // Nothing gets through for a while.
            2 => (0..self.random.below(30)).for_each(|_| self.tick(1)),
            3 => self.tick(2),
            _ => self.tick(20),
        }
        self.replay();
    }
}

#[test]
fn no_recorded_message_brings_back_what_was() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let runs = number("BM_ADVERSARY_RUNS").unwrap_or(200);
    let seeds = number("BM_SEED").map_or(1..runs + 1, |seed| seed..seed + 1);
    for seed in seeds {
        println!("BM_SEED={seed}");
        let mut cable = Cable::new(seed);
        (0..60).for_each(|_| cable.step());
        // As soon as messages arrive, whatever else does, both have the latest.
        for _ in 0..25 {
            cable.tick(u64::MAX);
            cable.replay();
        }
        assert_eq!(cable.accepted, [cable.announced[1], cable.announced[0]], "BM_SEED={seed}");
    }
}
