//! Mixed traffic: both families in turn, or IPv4 with one odd packet in a hundred.
//!
//! The router of the other cases, with ports that write whole frames, so that packets of any kind can arrive.
//! Odd packets go to the slow path, which does not run here: its queue takes the first of them, and the rest are
//! dropped. So the figures are the worker's time per packet that arrives. `over_plain` compares it with IPv4 alone, or
//! for both families with the mean of IPv4 alone and IPv6 alone.

use std::collections::VecDeque;
use std::sync::Arc;

use bm_frame::{BURST, Burst, Frame, Freelist};
use bm_port::Port;
use bm_testbed::addresses::Pattern;
use bm_wire::checksum;

use super::bed::{Batching, Bed, BenchFamily, FRAMES, PORTS};
use super::loop_port::Sample;
use super::packet::{FRAME, Packet, arriving, port_mac};
use super::running::RunningEngine;
use super::{BREATHS, BenchError, SAMPLE_BREATHS, expected, rounded, routable};
use crate::alternate::{Subject, Turns, alternate};
use crate::report::Row;

/// The name of the case.
pub(super) const CASE: &str = "mix-full-prefix";
/// One packet in this many is odd.
const ODD: usize = 100;

/// The kinds of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mix {
    Ipv4,
    Ipv6,
    /// Both families in turn.
    Both,
    /// IPv4, some of it with options.
    Options,
    /// IPv4, some of it with a TTL of 1.
    Ttl,
    /// IPv4 that arrives with a priority tag.
    TagIn,
}

impl Mix {
    pub const ALL: [Self; 6] = [Self::Ipv4, Self::Ipv6, Self::Both, Self::Options, Self::Ttl, Self::TagIn];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Both => "mixed",
            Self::Options => "options",
            Self::Ttl => "ttl",
            Self::TagIn => "tag-in",
        }
    }

    /// A port whose frames arrive again, at most `burst` at a time.
    fn port(
        self,
        bed: &Bed,
        index: usize,
        frames: Vec<Frame>,
        sample: Arc<Sample>,
        burst: usize,
    ) -> Box<dyn Port> {
        let mut waiting = VecDeque::with_capacity(2 * FRAMES);
        waiting.extend(frames);
        let loses = matches!(self, Self::Options | Self::Ttl);
        let arrivals = self.arrivals(bed, index);
        Box::new(WholeFrames { waiting, arrivals, next: 0, burst, loses, index, sample })
    }

    /// The frames that arrive at a port, again and again.
    fn arrivals(self, bed: &Bed, port: usize) -> Box<[[u8; FRAME]]> {
        let (ipv4, ipv6) = (frames::<u32>(bed, port), frames::<u128>(bed, port));
        match self {
            Self::Ipv4 => ipv4.collect(),
            Self::Ipv6 => ipv6.collect(),
            Self::Both => ipv4.zip(ipv6).flat_map(|(ipv4, ipv6)| [ipv4, ipv6]).collect(),
            // Three bytes of "no operation", and "end of options".
            Self::Options => change_odd(ipv4, |frame| {
                frame[14] = 0x46;
                frame[34..38].copy_from_slice(&[1, 1, 1, 0]);
            }),
            Self::Ttl => change_odd(ipv4, |frame| frame[22] = 1),
            Self::TagIn => ipv4.map(tagged).collect(),
        }
    }
}

/// The frame of a packet four bytes shorter, with a tag for its priority (VLAN 0).
fn tagged(mut frame: [u8; FRAME]) -> [u8; FRAME] {
    u32::set_length(&mut frame, FRAME as u16 - 4);
    seal(&mut frame);
    frame.copy_within(12..FRAME - 4, 16);
    frame[12..16].copy_from_slice(&[0x81, 0, 0x20, 0]);
    frame
}

/// Whether the packet at this position is odd, in a mix with odd packets.
fn is_odd(place: usize) -> bool {
    place % ODD == ODD / 2
}

/// All these frames, with a change to the odd ones.
fn change_odd(frames: impl Iterator<Item = [u8; FRAME]>, change: fn(&mut [u8; FRAME])) -> Box<[[u8; FRAME]]> {
    let mut frames: Box<[_]> = frames.collect();
    for (_, frame) in frames.iter_mut().enumerate().filter(|(place, _)| is_odd(*place)) {
        change(frame);
        seal(frame);
    }
    frames
}

/// Frames of one family to destinations within its prefixes.
fn frames<A: BenchFamily>(bed: &Bed, port: usize) -> impl Iterator<Item = [u8; FRAME]> + use<A> {
    let destinations: Arc<[A]> = routable(Pattern::Prefix, A::table(bed));
    // The ports begin at different positions, so that they do not send the same packet at a time.
    let begin = destinations.len() / PORTS.len() * port;
    (0..destinations.len()).filter_map(move |place| {
        let destination = destinations[(begin + place) % destinations.len()];
        arriving(destination, port_mac(port), FRAME as u16).first_chunk().copied()
    })
}

/// Fills in the checksum of an IPv4 header, with its options.
fn seal(frame: &mut [u8; FRAME]) {
    let header = 14..14 + usize::from(frame[14] & 0xf) * 4;
    frame[24..26].fill(0);
    let sum = checksum::checksum(&frame[header]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// A loopback port: the frames that it sends come in again, each as the next of `arrivals`.
struct WholeFrames {
    waiting: VecDeque<Frame>,
    arrivals: Box<[[u8; FRAME]]>,
    next: usize,
    /// Maximum number of frames received at a time.
    burst: usize,
    /// Whether some of the frames do not come back, and are replaced.
    loses: bool,
    index: usize,
    sample: Arc<Sample>,
}

impl Port for WholeFrames {
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        let count = burst.vacant_mut().len().min(self.waiting.len()).min(self.burst);
        for place in &mut burst.vacant_mut()[..count] {
            let Some(mut frame) = self.waiting.pop_front() else { break };
            // At the usual place of the slot, whatever was added to the frame.
            frame.copy_from(&self.arrivals[self.next]).expect("every slot has room for it");
            *place = Some(frame);
            if self.loses && is_odd(self.next) {
                self.waiting.extend(frames.allocate());
            }
            self.next = if self.next + 1 == self.arrivals.len() { 0 } else { self.next + 1 };
        }
        burst.occupy(count);
    }

    fn transmit(&mut self, burst: &mut Burst, _frames: &mut Freelist) -> usize {
        self.sample.look(self.index, burst.places());
        self.waiting.extend(burst.drain());
        0
    }

    fn close(&mut self, frames: &mut Freelist) {
        self.waiting.drain(..).for_each(|frame| frames.free(frame));
    }
}

/// A port of plain IPv4 whose frames may come back with a tag.
pub(super) fn ipv4_port(bed: &Bed, index: usize, frames: Vec<Frame>, sample: Arc<Sample>) -> Box<dyn Port> {
    Mix::Ipv4.port(bed, index, frames, sample, BURST)
}

/// The router, with one kind of traffic.
pub(super) fn router(bed: &Bed, mix: Mix, batching: Batching) -> Result<RunningEngine, BenchError> {
    bed.router_of_ports(batching, |index, frames, sample| {
        mix.port(bed, index, frames, sample, batching.receive.min(BURST))
    })
}

/// Runs the router for a while and compares the frames that leave with the expected ones; every frame must be in an
/// account.
pub(super) fn check(bed: &Bed, mix: Mix, running: &mut RunningEngine) -> Result<(), BenchError> {
    running.sample.begin();
    (0..SAMPLE_BREATHS).for_each(|_| _ = running.engine.breathe());
    let case = format!("{CASE} {}", mix.name());
    if let Err(counters) = running.check_closed() {
        return Err(BenchError::Lost { case, counters });
    }
    let samples = running.sample.end();
    if samples.is_empty() {
        return Err(BenchError::NothingLeft { case });
    }
    for (port, found) in samples {
        let lengths = &[FRAME as u16, FRAME as u16 - 4];
        let expected = match found.get(12) {
            Some(0x86) => expected(&bed.ipv6, port, lengths, &found),
            _ => expected(&bed.ipv4, port, lengths, &found),
        };
        let expected = expected.unwrap_or_default();
        if expected != found {
            return Err(BenchError::Wrong { case, expected, found });
        }
    }
    Ok(())
}

/// Runs breaths, and returns how many frames arrived.
fn breathe(running: &mut RunningEngine) -> u64 {
    let before = running.received();
    (0..BREATHS).for_each(|_| _ = running.engine.breathe());
    running.received() - before
}

/// Measures all kinds in turn.
pub(super) fn measure(bed: &Bed, turns: Turns) -> Result<Vec<Row>, BenchError> {
    let mut routers = Vec::new();
    for mix in Mix::ALL {
        routers.push(router(bed, mix, Batching::default())?);
    }
    check_all(bed, &mut routers)?;
    let mut works: Vec<_> = routers.iter_mut().map(|running| || breathe(running)).collect();
    let mut subjects: Vec<Subject<'_>> = Mix::ALL
        .iter()
        .zip(&mut works)
        .map(|(mix, work)| (mix.name(), work as &mut dyn FnMut() -> u64))
        .collect();
    let measured = alternate(turns, &mut subjects);
    check_all(bed, &mut routers)?;
    let rows: Vec<_> = measured.iter().map(|measured| Row::mpps("forward", CASE, measured)).collect();
    let (ipv4, both) = (rows[0].ns, (rows[0].ns + rows[1].ns) / 2.0);
    let rows = Mix::ALL.into_iter().zip(rows).map(|(mix, row)| match mix {
        Mix::Ipv4 | Mix::Ipv6 => row,
        Mix::Both => row.clone().with("over_plain", rounded(row.ns / both)),
        Mix::Options | Mix::Ttl | Mix::TagIn => row.clone().with("over_plain", rounded(row.ns / ipv4)),
    });
    Ok(rows.collect())
}

fn check_all(bed: &Bed, routers: &mut [RunningEngine]) -> Result<(), BenchError> {
    Mix::ALL.iter().zip(routers).try_for_each(|(&mix, running)| check(bed, mix, running))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_testbed::tables::{TableOptions, generate};
    use std::time::Duration;

    #[test]
    fn every_kind_is_forwarded_but_for_what_is_odd() {
        let options = TableOptions { ipv4: 5_000, ipv6: 2_000, ..TableOptions::default() };
        let bed = Bed::new(generate(&options).unwrap(), Bed::frame_pool_of(4).unwrap()).unwrap();
        for mix in Mix::ALL {
            let mut running = router(&bed, mix, Batching::default()).unwrap();
            check(&bed, mix, &mut running).unwrap();
            let (received, left) = (running.received(), running.received() - running.forwarded());
            let odd = if matches!(mix, Mix::Options | Mix::Ttl) { received / ODD as u64 } else { 0 };
            assert!(received > 1000 && left.abs_diff(odd) <= 2, "{}: {left} of {received}", mix.name());
        }
        let turns = Turns { runs: 3, slot: Duration::from_millis(2), warm_up: Duration::from_millis(1) };
        let rows = measure(&bed, turns).unwrap();
        let compared: Vec<_> = rows.iter().map(|row| row.detail.contains_key("over_plain")).collect();
        assert_eq!(compared, [false, false, true, true, true, true]);
        assert!(rows.iter().all(|row| row.case == CASE && row.median > 0.0));
    }
}
