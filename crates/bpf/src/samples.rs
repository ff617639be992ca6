//! Samples of received frames, which the programs of ports write into a ring: `../bpf/sample.h`.
//!
//! ```text
//! steer, bm_forward ─► samples, a ring of the process ─► SampleReader::poll ─► Sample
//! ```
//!
//! Programs that sample nothing write nothing. A full ring loses samples, which the next one counts.

use std::time::Duration;

use bm_sys::Mutex;
use libbpf_rs::libbpf_sys::{self, bpf_map_create_opts};
use libbpf_rs::{MapHandle, MapType};

use crate::RingReader;

/// The map's name in the programs.
pub const SAMPLES: &str = "samples";
/// Bytes of the ring: `SAMPLE_RING`.
const RING: u32 = 256 * 1024;
/// Bytes in front of the frame's, in `struct sample`, and the most of the frame's.
const FIXED: usize = 24;
const FRAME_MAX: usize = 128;

/// The ring of this process, once a program has needed it.
static PROCESS: Mutex<Option<MapHandle>> = Mutex::new(None);

/// Why a frame was dropped: `enum sample_drop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleDrop {
    /// By a filter rule.
    Filter,
    /// By the filter for tiny fragments.
    TinyFragment,
    /// By the filters' reverse path check.
    ReversePath,
    /// By the filters' rate limit of a source.
    RateLimit,
    /// By a blackhole route.
    Blackhole,
}

impl SampleDrop {
    /// In the order of the program's numbers, which begin with 1.
    const ALL: [Self; 5] =
        [Self::Filter, Self::TinyFragment, Self::ReversePath, Self::RateLimit, Self::Blackhole];

    fn of(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// A received frame that was sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Where it came in.
    pub ifindex: u32,
    /// The interface through which it left; 0 if that is not known, or it did not leave.
    pub out: u32,
    /// Of the whole frame.
    pub length: u32,
    /// Frames that came in there since the last sample, this one included.
    pub frames: u32,
    /// Samples that were lost meanwhile because the ring was full.
    pub missed: u32,
    /// Why it was dropped, if it was.
    pub drop: Option<SampleDrop>,
    /// The first bytes of the frame, 128 at most.
    pub header: Vec<u8>,
}

impl Sample {
    /// The sample of these bytes; `None` if they are none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let half = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let captured = usize::from(half(20)?).min(FRAME_MAX);
        Some(Self {
            ifindex: word(0)?,
            out: word(4)?,
            length: word(8)?,
            frames: word(12)?,
            missed: word(16)?,
            drop: SampleDrop::of(half(22)?),
            header: bytes.get(FIXED..FIXED + captured)?.to_vec(),
        })
    }
}

/// A handle of the ring into which the programs of this process write samples; created by the first call.
///
/// # Errors
/// The kernel's error.
pub fn samples() -> libbpf_rs::Result<MapHandle> {
    let mut ring = PROCESS.lock();
    if ring.is_none() {
        let options = bpf_map_create_opts {
            sz: size_of::<bpf_map_create_opts>() as libbpf_sys::size_t,
            ..bpf_map_create_opts::default()
        };
        *ring = Some(MapHandle::create(MapType::RingBuf, Some(SAMPLES), 0, 0, RING, &options)?);
    }
    ring.as_ref().map_or_else(|| unreachable!("it was just created"), MapHandle::try_from)
}

/// Reads the samples of this process. One at a time: two would share them.
pub struct SampleReader(RingReader<Sample>);

impl SampleReader {
    /// # Errors
    /// The kernel's error.
    pub fn open() -> libbpf_rs::Result<Self> {
        RingReader::open(&samples()?, Sample::parse).map(Self)
    }

    /// The samples that have come, after waiting for the first one for this time at most.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn poll(&self, longest: Duration) -> libbpf_rs::Result<Vec<Sample>> {
        self.0.poll(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_read_as_the_program_writes_it() {
        let words = [3u32, 4, 1514, 1000, 2].map(u32::to_ne_bytes).concat();
        let halves = [60u16, 1].map(u16::to_ne_bytes).concat();
        let bytes = [words, halves, vec![7; FRAME_MAX]].concat();
        let sample = Sample {
            ifindex: 3,
            out: 4,
            length: 1514,
            frames: 1000,
            missed: 2,
            drop: Some(SampleDrop::Filter),
            header: vec![7; 60],
        };
        assert_eq!(Sample::parse(&bytes), Some(sample));
        assert_eq!(Sample::parse(&bytes[..FIXED + 59]), None);
        assert_eq!(Sample::parse(&[]), None);
        let drops = (0..=6).map(SampleDrop::of).collect::<Vec<_>>();
        let all = SampleDrop::ALL.map(Some);
        assert_eq!(drops, [&[None][..], &all, &[None]].concat());
    }
}
