//! The sink: receives and checks every packet of the generator, and leaves all others to Linux.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder};

use super::layout::SinkState;
use super::program::{attach, system};
use super::{Programs, Stream, TRACKED_MAX};
use crate::testbed::{Testbed, TestbedError};

/// Where the sink receives packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkMode {
    /// As frames, by XDP: the cheapest for routers that send frames, as XDP forwarders do.
    Frames,
    /// As skbs, at clsact's ingress: the cheapest for routers that send skbs, as Linux and AF_XDP do.
    Skbs,
}

/// Packets that have arrived, by the result of the check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Correct in every respect.
    pub good: u64,
    /// Bytes of good frames, without the frame check sequence.
    pub bytes: u64,
    /// TTL or hop limit was not decremented by one.
    pub bad_hops: u64,
    /// The IPv4 header's checksum is wrong.
    pub bad_checksum: u64,
    /// Sent to another next hop than the table says.
    pub bad_next_hop: u64,
    /// Ports or lengths were changed.
    pub bad_shape: u64,
}

impl Arrived {
    /// All packets that are not good.
    pub fn bad(&self) -> u64 {
        self.bad_hops + self.bad_checksum + self.bad_next_hop + self.bad_shape
    }

    /// The difference from an earlier reading.
    pub fn since(&self, earlier: &Self) -> Self {
        Self::from_words(std::array::from_fn(|index| self.words()[index] - earlier.words()[index]))
    }

    fn words(&self) -> [u64; 6] {
        [self.good, self.bytes, self.bad_hops, self.bad_checksum, self.bad_next_hop, self.bad_shape]
    }

    fn from_words(words: [u64; 6]) -> Self {
        let [good, bytes, bad_hops, bad_checksum, bad_next_hop, bad_shape] = words;
        Self { good, bytes, bad_hops, bad_checksum, bad_next_hop, bad_shape }
    }
}

/// Results of tracking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowStatistics {
    /// Packets that were tracked.
    pub packets: u64,
    /// Packets that arrived after a later one of their flow.
    pub reordered: u64,
    /// The longest time between two arrivals.
    pub gap_max: Duration,
    /// When it ended, on the monotonic clock.
    pub gap_end: Duration,
    /// The longest time from sending to arrival.
    pub delay_max: Duration,
    /// The mean of these times.
    pub delay_mean: Duration,
}

/// A sink at the end of a test bed, detached on drop.
pub struct Sink<'a> {
    programs: &'a Programs,
    testbed: &'a Testbed,
    attached: SinkHook,
}

enum SinkHook {
    Frames(#[expect(dead_code, reason = "closing it detaches")] OwnedFd),
    /// The interface of the hook: the hook itself must not move between threads.
    Skbs(u32),
}

impl<'a> Sink<'a> {
    /// Attaches a sink, with its counters at zero, without tracking.
    pub fn attach(
        programs: &'a Programs,
        testbed: &'a Testbed,
        mode: SinkMode,
    ) -> Result<Self, TestbedError> {
        let index = testbed.sink.index(&testbed.interfaces.sink)?;
        let what = format!("attach the sink to {}", testbed.interfaces.sink);
        let attached = testbed.sink.enter(|| {
            let attached = match mode {
                SinkMode::Frames => attach(&programs.sink_frames, index).map(SinkHook::Frames),
                SinkMode::Skbs => {
                    let attached = hook(programs, index).create().and_then(|mut hook| hook.attach());
                    attached.map(|_| SinkHook::Skbs(index)).map_err(system)
                }
            };
            attached.map_err(TestbedError::system(what))
        })?;
        let sink = Self { programs, testbed, attached };
        sink.reset()?;
        Ok(sink)
    }

    /// Sets the counters to zero and ends tracking.
    pub fn reset(&self) -> Result<(), TestbedError> {
        self.programs.sink.set(0, SinkState::default());
        let map = &self.programs.arrivals;
        let zeroes = self.read()?.iter().map(|_| vec![0; map.value_size() as usize]).collect::<Vec<_>>();
        map.update_percpu(&0u32.to_ne_bytes(), &zeroes, MapFlags::ANY)
            .map_err(|error| TestbedError::system("reset the sink")(system(error)))
    }

    /// From now on, packets count as good if no router has changed them.
    pub fn expect_bridged(&self) {
        self.programs.sink.set(0, SinkState { is_bridged: 1, ..SinkState::default() });
    }

    /// From now on, tracks order, gaps and delays of a stream, which costs the sink some time.
    pub fn track(&self, stream: &Stream) {
        assert!(stream.destinations() <= TRACKED_MAX, "at most {TRACKED_MAX} destinations can be tracked");
        (0..stream.destinations()).for_each(|flow| self.programs.expected.set(flow, 0));
        let destinations = stream.destinations() as u32;
        self.programs.sink.set(0, SinkState { is_tracking: 1, destinations, ..SinkState::default() });
    }

    /// Packets that have arrived since the sink was attached or reset.
    pub fn arrived(&self) -> Result<Arrived, TestbedError> {
        let mut sum = [0; 6];
        for of_one_core in self.read()? {
            for (total, word) in sum.iter_mut().zip(of_one_core.as_chunks::<8>().0) {
                *total += u64::from_ne_bytes(*word);
            }
        }
        Ok(Arrived::from_words(sum))
    }

    /// Results of tracking so far.
    pub fn tracked(&self) -> FlowStatistics {
        let state = self.programs.sink.get(0);
        FlowStatistics {
            packets: state.tracked,
            reordered: state.reordered,
            gap_max: Duration::from_nanos(state.gap_ns_max),
            gap_end: Duration::from_nanos(state.gap_end_ns),
            delay_max: Duration::from_nanos(state.delay_ns_max),
            delay_mean: Duration::from_nanos(state.delay_ns_sum / state.tracked.max(1)),
        }
    }

    /// The counters of each core.
    fn read(&self) -> Result<Vec<Vec<u8>>, TestbedError> {
        let counts = self.programs.arrivals.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
        counts
            .map(Option::unwrap_or_default)
            .map_err(|error| TestbedError::system("read the sink")(system(error)))
    }
}

impl Drop for Sink<'_> {
    fn drop(&mut self) {
        if let SinkHook::Skbs(index) = self.attached {
            // Only removing both directions together removes the qdisc. If the namespace or the interface is gone,
            // so is the hook.
            let _ = self.testbed.sink.enter(|| {
                let both = TC_INGRESS | TC_EGRESS;
                Ok(hook(self.programs, index).attach_point(both).destroy().is_ok())
            });
        }
    }
}

/// The clsact hook of an interface, whether it exists or not.
fn hook(programs: &Programs, index: u32) -> TcHook {
    TcHookBuilder::new(programs.sink_skbs.as_fd())
        .ifindex(index as i32)
        .replace(true)
        .handle(1)
        .priority(1)
        .hook(TC_INGRESS)
}
