//! One measurement: traffic flat out through whatever forwards, once it runs evenly.

use std::time::{Duration, Instant};

use super::{Arrived, Generator, Programs, Sink, Stream};
use crate::alternate::Sample;
use crate::interrupt;
use crate::testbed::{Testbed, TestbedError};

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
}

/// What a measurement found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flow {
    /// Packets a second that the generator offered.
    pub offered: f64,
    /// Packets a second that arrived and were right.
    pub forwarded: f64,
    /// Bits a second that these had on the wire, with preamble, gap and frame check sequence.
    pub wire_bits: f64,
    /// Packets that arrived, good and bad.
    pub arrived: Arrived,
    /// Nanoseconds that the router's threads held a core, by `core_ns`, for each good packet.
    pub core_ns: f64,
    /// Time measured.
    pub seconds: f64,
}

/// Preamble, frame check sequence and gap of each frame on a wire.
const WIRE_BYTES_EXTRA: u64 = 8 + 4 + 12;

impl Flow {
    /// The share of the offered packets that did not arrive, 0 to 1.
    pub fn lost(&self) -> f64 {
        if self.offered > 0.0 { (1.0 - self.forwarded / self.offered).max(0.0) } else { 0.0 }
    }

    /// As a turn of a bench.
    pub fn sample(&self) -> Sample {
        Sample { items: self.arrived.good, rate: self.forwarded, ns: self.core_ns }
    }
}

impl Measure<'_> {
    /// Sends the stream and measures; `core_ns` tells how long the router has held a core so far.
    pub fn run(&self, stream: &Stream, core_ns: impl Fn() -> u64) -> Result<Flow, TestbedError> {
        let generator = Generator::start(self.programs, self.testbed, stream, self.core)?;
        interrupt::sleep(self.warm_up)?;
        let look = || -> Result<_, TestbedError> {
            Ok((Instant::now(), generator.sent().packets, self.sink.arrived()?, core_ns()))
        };
        let (began, sent, arrived, ns) = look()?;
        interrupt::sleep(self.time)?;
        let (ended, sent_then, arrived_then, ns_then) = look()?;
        generator.stop()?;
        let seconds = (ended - began).as_secs_f64();
        let arrived = arrived_then.since(&arrived);
        let bytes = arrived.bytes + arrived.good * WIRE_BYTES_EXTRA;
        Ok(Flow {
            offered: (sent_then - sent) as f64 / seconds,
            forwarded: arrived.good as f64 / seconds,
            wire_bits: bytes as f64 * 8.0 / seconds,
            arrived,
            core_ns: ns_then.saturating_sub(ns) as f64 / arrived.good.max(1) as f64,
            seconds,
        })
    }
}
