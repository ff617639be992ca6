//! Capture files as a port.

use std::path::Path;
use std::time::{Duration, SystemTime};

use bm_frame::{Burst, Frame, Freelist, NoRoom};
use bm_port::{DeviceCounters, Port};

use crate::error::PcapPortError;
use crate::read::Capture;
use crate::write::Output;

/// The time of each written packet, since 1970.
pub type Clock = Box<dyn FnMut() -> Duration + Send>;

/// A port that receives the packets of one capture file, and writes what it sends to another.
pub struct PcapPort {
    input: Input,
    output: Option<Output>,
    clock: Clock,
    counters: DeviceCounters,
    /// The first error; later ones are mostly consequences of it.
    error: Option<PcapPortError>,
}

/// Where packets come from.
enum Input {
    File(Capture),
    /// All packets, repeatedly.
    Loop {
        packets: Vec<Vec<u8>>,
        next: usize,
    },
    Ended,
}

impl PcapPort {
    /// A port that receives `input` once, or forever with `repeat`, and writes `output`. Without an output, sent
    /// packets are discarded.
    ///
    /// # Errors
    /// [`PcapPortError`]: a file that cannot be opened, or is not a capture of Ethernet frames. With `repeat` the
    /// whole file is read here and must be valid.
    pub fn new(input: Option<&Path>, output: Option<&Path>, repeat: bool) -> Result<Self, PcapPortError> {
        let clock = Box::new(|| SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
        Self::with_clock(input, output, repeat, clock)
    }

    /// Like [`PcapPort::new`], with the caller's clock, so that the same input writes the same output.
    ///
    /// # Errors
    /// As for [`PcapPort::new`].
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

    /// Whether all packets of the input have been received.
    pub fn is_done(&self) -> bool {
        match &self.input {
            Input::File(_) => false,
            Input::Loop { packets, .. } => packets.is_empty(),
            Input::Ended => true,
        }
    }

    /// The first error since the port was opened: the input ends there.
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

/// Logs the first error, and keeps it.
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
        // At most as many as the burst has room for, so that a loop of oversized packets ends.
        for _ in burst.len()..bm_frame::BURST {
            let Some(mut frame) = frames.allocate() else { return };
            match self.next_into(&mut frame) {
                Some(Ok(())) => {
                    if let Err(frame) = burst.push(frame) {
                        // Cannot happen: the burst was not full.
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
            // It is not known whether any of them are in the file.
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
