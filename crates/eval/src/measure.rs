//! One measurement of traffic at full rate through any forwarder, after a warm-up.

use std::time::{Duration, Instant};

use bm_testbed::interrupt;
use bm_testbed::testbed::{Testbed, TestbedError};
use bm_testbed::traffic::{Arrived, Generator, Programs, Sink, Stream};

use crate::alternate::{Sample, spread};

/// Where and how long to measure.
pub struct Measure<'a> {
    /// The test bed.
    pub testbed: &'a Testbed,
    /// The loaded programs.
    pub programs: &'a Programs,
    /// The sink, attached.
    pub sink: &'a Sink<'a>,
    /// The generator's core; `None` lets the kernel choose.
    pub core: Option<usize>,
    /// Time before the measurement, for caches and clocks.
    pub warm_up: Duration,
    /// Time of the measurement.
    pub time: Duration,
    /// Number of parts of that time that are counted separately; their spread shows how steady the flow was.
    pub slices: u32,
}

/// The result of a measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flow {
    /// One sample per part: packets that arrived and were correct, and the router's CPU time for each.
    pub samples: Vec<Sample>,
    /// Packets a second that the generator sent.
    pub offered: f64,
    /// Packets sent from the first to the last.
    pub sent: u64,
    /// How many of these arrived, correct or not.
    pub arrived: Arrived,
}

/// Preamble, frame check sequence and gap of each frame on a wire.
const WIRE_BYTES_EXTRA: f64 = 8.0 + 4.0 + 12.0;
/// Time for packets that are still in transit when the generator has ended.
const DRAIN: Duration = Duration::from_millis(50);

impl Flow {
    /// Packets that did not arrive.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.arrived.good + self.arrived.bad())
    }

    /// Their share of those sent, 0 to 1.
    pub fn lost_share(&self) -> f64 {
        self.lost() as f64 / self.sent.max(1) as f64
    }

    /// The rate of the first slice; 0 without one.
    pub fn first_rate(&self) -> f64 {
        self.samples.first().map_or(0.0, |sample| sample.rate)
    }

    /// CPU time for each packet of the first slice; 0 without one.
    pub fn first_ns(&self) -> f64 {
        self.samples.first().map_or(0.0, |sample| sample.ns)
    }

    /// The median rate: packets a second that arrived and were correct.
    pub fn forwarded(&self) -> f64 {
        spread(self.samples.iter().map(|sample| sample.rate)).median
    }

    /// The median CPU time of the router's core per packet, in nanoseconds.
    pub fn core_ns(&self) -> f64 {
        spread(self.samples.iter().map(|sample| sample.ns)).median
    }

    /// Bits a second at the median rate, as counted on a wire: with preamble, frame check sequence and gap.
    pub fn wire_bits(&self) -> f64 {
        let bytes = self.arrived.bytes as f64 / self.arrived.good.max(1) as f64;
        self.forwarded() * (bytes + WIRE_BYTES_EXTRA) * 8.0
    }
}

/// Counters at one moment of a measurement.
struct Look {
    at: Instant,
    sent: u64,
    good: u64,
    core_ns: u64,
}

impl Look {
    /// The difference from an earlier moment.
    fn since(&self, earlier: &Self) -> Sample {
        let items = self.good - earlier.good;
        let seconds = (self.at - earlier.at).as_secs_f64().max(1e-9);
        let ns = self.core_ns.saturating_sub(earlier.core_ns) as f64;
        Sample { items, rate: items as f64 / seconds, ns: ns / items.max(1) as f64 }
    }
}

impl Measure<'_> {
    /// Sends the stream and measures; `core_ns` returns how much CPU time the router's core has used.
    pub fn run(&self, stream: &Stream, core_ns: impl Fn() -> u64) -> Result<Flow, TestbedError> {
        let before = self.sink.arrived()?;
        let generator = Generator::start(self.programs, self.testbed, stream, self.core)?;
        interrupt::sleep(self.warm_up)?;
        let look = || -> Result<Look, TestbedError> {
            let good = self.sink.arrived()?.good;
            Ok(Look { at: Instant::now(), sent: generator.sent().packets, good, core_ns: core_ns() })
        };
        let mut looks = vec![look()?];
        for _ in 0..self.slices.max(1) {
            interrupt::sleep(self.time / self.slices.max(1))?;
            looks.push(look()?);
        }
        let (first, last) = (&looks[0], &looks[looks.len() - 1]);
        let offered = (last.sent - first.sent) as f64 / (last.at - first.at).as_secs_f64();
        let samples = looks.windows(2).map(|pair| pair[1].since(&pair[0])).collect();
        let sent = generator.stop()?.packets;
        interrupt::sleep(DRAIN)?;
        Ok(Flow { samples, offered, sent, arrived: self.sink.arrived()?.since(&before) })
    }
}
