//! Destinations and frame sizes: what the packets of a bench look like.
//!
//! The pattern matters as much as the table: one flow keeps every cache warm, uniform addresses within prefixes touch
//! the whole structure, and Zipf is in between, like real traffic.

use std::fmt;
use std::str::FromStr;

use bm_wire::prefix::Prefix;

use crate::random::{Random, Seed};
use crate::tables::{Route, Space};

/// How destinations are distributed; the names are used in cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// `uniform`: over the whole address space, most of which has no route in IPv6.
    Uniform,
    /// `prefix`: a random route, then any address within it.
    Prefix,
    /// `zipf`: `FLOWS` addresses within prefixes; the one of rank r is drawn with a probability proportional to 1 / r.
    Zipf,
    /// `flow`: one address within a prefix.
    Flow,
}

/// Number of flows that the Zipf pattern draws from.
pub const FLOWS: usize = 100_000;

impl Pattern {
    /// All patterns, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Uniform, Self::Prefix, Self::Zipf, Self::Flow];

    /// The name in cases and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Prefix => "prefix",
            Self::Zipf => "zipf",
            Self::Flow => "flow",
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pattern {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|pattern| pattern.name() == text)
            .ok_or_else(|| format!("{text:?} is not a pattern: use uniform, prefix, zipf or flow"))
    }
}

/// `count` destinations, in the order in which packets are sent to them.
///
/// Without a route, every pattern falls back to the whole space.
pub fn destinations<A: Space>(pattern: Pattern, seed: Seed, count: usize, routes: &[Route<A>]) -> Vec<A> {
    let mut random = Random::new(seed);
    match pattern {
        Pattern::Uniform => (0..count).map(|_| A::any(&mut random)).collect(),
        Pattern::Prefix => (0..count).map(|_| within_any(&mut random, routes)).collect(),
        Pattern::Flow => vec![within_any(&mut random, routes); count],
        Pattern::Zipf => {
            let flows: Vec<A> = (0..FLOWS).map(|_| within_any(&mut random, routes)).collect();
            let ranks = Zipf::new(FLOWS);
            (0..count).map(|_| flows[ranks.draw(&mut random)]).collect()
        }
    }
}

fn within_any<A: Space>(random: &mut Random, routes: &[Route<A>]) -> A {
    if routes.is_empty() {
        return A::any(random);
    }
    let route = random.below(routes.len());
    within(random, routes[route].prefix)
}

fn within<A: Space>(random: &mut Random, prefix: Prefix<A>) -> A {
    let host = A::mask(prefix.length()).not();
    prefix.first().or(A::any(random).and(host))
}

/// Ranks drawn with a probability proportional to 1 / rank.
struct Zipf {
    /// Sum of the weights up to each rank.
    sums: Vec<f64>,
}

impl Zipf {
    fn new(ranks: usize) -> Self {
        let (mut sum, mut sums) = (0.0, Vec::with_capacity(ranks));
        for rank in 1..=ranks {
            sum += 1.0 / rank as f64;
            sums.push(sum);
        }
        Self { sums }
    }

    fn draw(&self, random: &mut Random) -> usize {
        let whole = self.sums.last().copied().unwrap_or_default();
        let place = random.unit() * whole;
        self.sums.partition_point(|&sum| sum <= place).min(self.sums.len() - 1)
    }
}

/// Bytes of the frame check sequence, which is not in memory.
pub const FCS_BYTES: u16 = 4;

/// The simple IMIX: of twelve frames, seven have 64 bytes, four 594 and one 1518, spread evenly.
///
/// Counted with the frame check sequence, like all sizes in names of cases. In memory a frame is four
/// bytes shorter: 60, 590 and 1514.
pub const IMIX: [u16; 12] = [64, 594, 64, 64, 594, 64, 1518, 64, 594, 64, 594, 64];

/// The sizes of the frames of a stream, counted with the frame check sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// All the same.
    Fixed(u16),
    /// `IMIX`, repeated.
    Imix,
}

impl Sizes {
    /// The usual ones for routers: those of RFC 2544 up to the largest frame of Ethernet (1,280 excepted, as in
    /// RouteBricks), and the mix.
    pub const ALL: [Self; 7] = [
        Self::Fixed(64),
        Self::Fixed(128),
        Self::Fixed(256),
        Self::Fixed(512),
        Self::Fixed(1024),
        Self::Fixed(1518),
        Self::Imix,
    ];

    /// One period of sizes of frames in memory, each at least `least`, so that the headers fit.
    pub fn in_memory(self, least: u16) -> Vec<u16> {
        let sizes = match self {
            Self::Fixed(size) => vec![size],
            Self::Imix => IMIX.to_vec(),
        };
        sizes.into_iter().map(|size| size.saturating_sub(FCS_BYTES).max(least)).collect()
    }
}

impl FromStr for Sizes {
    type Err = String;

    /// A number of bytes from 64 to 1518, or `imix`.
    fn from_str(text: &str) -> Result<Self, String> {
        let fixed = text.parse().ok().filter(|size| (64..=1518).contains(size)).map(Self::Fixed);
        let mix = (text == "imix").then_some(Self::Imix);
        fixed.or(mix).ok_or_else(|| format!("{text:?} is not a size: use 64 to 1518, or imix"))
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "{size}"),
            Self::Imix => f.write_str("imix"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::tables::{TableOptions, generate};

    fn routes() -> Vec<Route<u32>> {
        generate(&TableOptions { ipv4: 10_000, ipv6: 0, ..TableOptions::default() }).unwrap().ipv4
    }

    #[test]
    fn the_same_seed_gives_the_same_result() {
        let routes = routes();
        for pattern in Pattern::ALL {
            let draw = |seed| destinations(pattern, Seed(seed), 1_000, &routes);
            assert_eq!(draw(1), draw(1));
            assert_ne!(draw(1), draw(2), "{pattern}");
        }
    }

    #[test]
    fn all_patterns_but_uniform_stay_within_prefixes() {
        let routes = routes();
        let hits = |pattern| {
            destinations(pattern, Seed(3), 200, &routes)
                .iter()
                .filter(|&&address| routes.iter().any(|route| route.prefix.contains(address)))
                .count()
        };
        assert_eq!((hits(Pattern::Prefix), hits(Pattern::Zipf), hits(Pattern::Flow)), (200, 200, 200));
        assert!(hits(Pattern::Uniform) < 200);
    }

    #[test]
    fn zipf_follows_zipfs_law() {
        let mut count = HashMap::new();
        let drawn = destinations::<u32>(Pattern::Zipf, Seed(5), 400_000, &routes());
        drawn.iter().for_each(|address| *count.entry(address).or_insert(0u32) += 1);
        let mut counts: Vec<u32> = count.into_values().collect();
        counts.sort_unstable_by_key(|&n| std::cmp::Reverse(n));
        // The sum of 1 / r up to 100,000 is 12.09.
        assert!((31_500..34_500).contains(&counts[0]), "{}", counts[0]);
        assert!((2_900..3_800).contains(&counts[9]), "{}", counts[9]);
        assert!(counts.len() > 50_000);
        assert_eq!(destinations::<u32>(Pattern::Flow, Seed(5), 3, &[]).len(), 3);
    }

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for sizes in Sizes::ALL {
            assert_eq!(sizes.to_string().parse(), Ok(sizes));
        }
        assert!(["", "63", "1519", "IMIX", "6 4"].iter().all(|text| text.parse::<Sizes>().is_err()));
    }

    #[test]
    fn imix_is_seven_four_one() {
        let count = |size| IMIX.iter().filter(|&&s| s == size).count();
        assert_eq!((count(64), count(594), count(1518)), (7, 4, 1));
        assert_eq!(Sizes::Imix.in_memory(60)[..3], [60, 590, 60]);
        assert_eq!(Sizes::Fixed(64).in_memory(78), [78]);
    }

    #[test]
    fn names_are_read_back() {
        Pattern::ALL.iter().for_each(|pattern| assert_eq!(pattern.to_string().parse(), Ok(*pattern)));
        assert!("random".parse::<Pattern>().unwrap_err().contains("use uniform"));
    }
}
