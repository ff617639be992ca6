//! Capture files as a port.

use std::path::Path;
use std::time::{Duration, SystemTime};

use bm_frame::{Burst, Frame, Freelist, NoRoom};
use bm_port::{DeviceCounters, Port};

use crate::error::PcapPortError;
use crate::read::Capture;
use crate::write::Output;

/// What tells the time of each packet written, since 1970.
pub type Clock = Box<dyn FnMut() -> Duration + Send>;

/// A port that receives the packets of one capture file, and writes what it sends to another.
pub struct PcapPort {
    input: Input,
    output: Option<Output>,
    clock: Clock,
    counters: DeviceCounters,
    /// The first thing that went wrong; what comes after is mostly its consequence.
    error: Option<PcapPortError>,
}

/// Where packets come from.
enum Input {
    File(Capture),
    /// All of them, again and again.
    Loop {
        packets: Vec<Vec<u8>>,
        next: usize,
    },
    Ended,
}

impl PcapPort {
    /// A port that receives `input` once, or for ever with `repeat`, and writes `output`. What it sends
    /// without an output goes nowhere.
    ///
    /// # Errors
    /// [`PcapPortError`]: a file that cannot be opened, or is no capture of Ethernet frames. With `repeat`
    /// all of it is read here and must be well.
    pub fn new(input: Option<&Path>, output: Option<&Path>, repeat: bool) -> Result<Self, PcapPortError> {
        let since_1970 = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::with_clock(input, output, repeat, Box::new(since_1970))
    }

    /// The same with a clock of the caller's, so that the same input writes the same output.
    ///
    /// # Errors
    /// As [`PcapPort::new`].
    pub fn with_clock(
        input: Option<&Path>,
        output: Option<&Path>,
        repeat: bool,
        clock: Clock,
    ) -> Result<Self, PcapPortError> {
        let input = match input.map(Capture::open).transpose()? {
            Some(capture) if repeat => Input::Loop { packets: all(capture)?, next: 0 },
            Some(capture) => Input::File(capture),
            None => Input::Ended,
        };
        let output = output.map(Output::create).transpose()?;
        Ok(Self { input, output, clock, counters: DeviceCounters::default(), error: None })
    }

    /// Whether all packets of the input were received.
    pub fn is_done(&self) -> bool {
        match &self.input {
            Input::File(_) => false,
            Input::Loop { packets, .. } => packets.is_empty(),
            Input::Ended => true,
        }
    }

    /// The first thing that went wrong since the port was opened: the input ends there.
    pub fn error(&self) -> Option<&PcapPortError> {
        self.error.as_ref()
    }

    /// Copies the next packet into `frame`; `None` if there is none.
    fn next_into(&mut self, frame: &mut Frame) -> Option<Result<(), NoRoom>> {
        match &mut self.input {
            Input::Ended => None,
            Input::Loop { packets, next } => {
                let packet = packets.get(*next)?;
                *next = (*next + 1) % packets.len();
                Some(frame.copy_from(packet))
            }
            Input::File(capture) => match capture.next(|packet| frame.copy_from(packet)) {
                Ok(Some(copied)) => Some(copied),
                Ok(None) => {
                    self.input = Input::Ended;
                    None
                }
                Err(error) => {
                    self.input = Input::Ended;
                    note(&mut self.error, error);
                    None
                }
            },
        }
    }
}

/// Tells the log of the first error, and keeps it.
fn note(first: &mut Option<PcapPortError>, error: PcapPortError) {
    first.get_or_insert_with(|| {
        tracing::error!("{error}");
        error
    });
}

fn all(mut capture: Capture) -> Result<Vec<Vec<u8>>, PcapPortError> {
    let mut packets = Vec::new();
    while let Some(packet) = capture.next(<[u8]>::to_vec)? {
        packets.push(packet);
    }
    Ok(packets)
}

impl Port for PcapPort {
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        // As many as the burst has places for, so that a loop of oversized packets ends.
        for _ in burst.len()..bm_frame::BURST {
            let Some(mut frame) = frames.allocate() else { return };
            match self.next_into(&mut frame) {
                Some(Ok(())) => {
                    if let Err(frame) = burst.push(frame) {
                        // Cannot be: the burst was not full.
                        return frames.free(frame);
                    }
                }
                Some(Err(_larger_than_a_slot)) => {
                    frames.free(frame);
                    self.counters.receive_other += 1;
                }
                None => return frames.free(frame),
            }
        }
    }

    fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize {
        let (mut refused, count) = (0, burst.frames());
        for frame in burst.drain() {
            if let Some(output) = &mut self.output
                && let Err(error) = output.write((self.clock)(), frame.data())
            {
                refused += 1;
                note(&mut self.error, error);
            }
            frames.free(frame);
        }
        if let Some(Err(error)) = self.output.as_mut().map(Output::flush) {
            note(&mut self.error, error);
            // None of them can be said to be in the file.
            refused = count;
        }
        refused
    }

    fn device_counters(&self) -> DeviceCounters {
        self.counters
    }

    fn close(&mut self, _frames: &mut Freelist) {
        self.input = Input::Ended;
        if let Some(Err(error)) = self.output.take().map(|mut output| output.flush()) {
            note(&mut self.error, error);
        }
    }
}
