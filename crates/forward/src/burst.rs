//! The burst that a worker's router processes: its frames, and what becomes of each.

use bm_fib::NextHop;
use bm_frame::{AnyFrame, BURST, Burst, Mask, MbufFrame};
use bm_graph::Io;
use bm_stats::Reason;

use crate::compiled::PortView;
use crate::filter::PortFilter;
use crate::hook::Hooks;
use crate::output::{NO_OUTPUT, Output};
use crate::tables::Tables;
use crate::verdict::{Refusal, RefusedFrames, Verdict};

/// The port that a burst came in on, with the tables and filters that apply.
#[derive(Clone, Copy)]
pub(crate) struct InputPort<'a> {
    pub tables: &'a Tables,
    /// Its index in [`Tables::ports`].
    pub number: usize,
    pub view: &'a PortView,
    /// The filters that its frames have not been through.
    pub filter: Option<&'a PortFilter<'a>>,
}

impl<'a> InputPort<'a> {
    /// The port with this index; or why all of its frames are refused now.
    #[inline]
    pub fn of(
        tables: &'a Tables,
        number: usize,
        filter: Option<&'a PortFilter<'a>>,
        now_ns: u64,
    ) -> Result<Self, Refusal> {
        match tables.compiled.ports.get(number) {
            None => Err(Refusal::Slow(Verdict::Host)),
            Some(_) if tables.stand_aside(now_ns) => Err(Refusal::Slow(Verdict::LinuxOnly)),
            Some(view) => Ok(Self { tables, number, view, filter }),
        }
    }
}

/// The frames of a burst, and what becomes of each.
pub(crate) struct RoutedBurst {
    /// The frames; or in `mbufs`, if only their mbufs say where their data is. Only the fast path takes those.
    pub frames: Burst,
    pub mbufs: Burst<MbufFrame>,
    pub refused: RefusedFrames,
    /// Refused frames whose metadata has a next hop that a hook chose.
    pub chosen: Mask,
    /// The port that each accepted frame leaves through.
    pub ports: [u16; BURST],
    /// Length of each frame that the fast path has accepted.
    pub lengths: [u16; BURST],
    /// Frames on their way to one of several ports; otherwise empty.
    pub leaving: Burst,
    pub leaving_mbufs: Burst<MbufFrame>,
}

impl RoutedBurst {
    pub fn new() -> Self {
        Self {
            frames: Burst::new(),
            mbufs: Burst::default(),
            refused: RefusedFrames::new(),
            chosen: Mask::NONE,
            ports: [0; BURST],
            lengths: [0; BURST],
            leaving: Burst::new(),
            leaving_mbufs: Burst::default(),
        }
    }

    /// From here on, all frames have headers that say where their data is.
    #[inline]
    pub fn write_headers(&mut self) {
        if self.mbufs.is_empty() {
            return;
        }
        let count = self.mbufs.len();
        let places = self.frames.vacant_mut().iter_mut().zip(self.mbufs.places_mut());
        places.for_each(|(to, from)| *to = from.take().map(AnyFrame::into_frame));
        self.frames.occupy(count);
        self.mbufs.reset();
    }

    /// Refuses the frame at this place. If a hook chose its next hop, the slow path gets to know which.
    pub fn refuse(&mut self, place: usize, why: Refusal, chosen: Option<NextHop>) {
        self.refused.add(place, why);
        if let (Some(next_hop), Some(frame)) = (chosen, self.frames.get_mut(place)) {
            self.chosen.set(place);
            let meta = frame.meta_mut();
            (meta.next_hop, meta.chosen) = (next_hop.0, 1);
        }
    }

    /// Refuses all frames that filters have not taken.
    #[cold]
    pub fn refuse_all(&mut self, why: Refusal, filter: Option<&PortFilter<'_>>) {
        self.write_headers();
        let mut left = Mask::first(self.frames.len());
        if let Some(filter) = filter {
            self.filter(filter, &mut left);
        }
        left.iter().for_each(|place| self.refused.add(place, why));
    }

    /// Refuses those frames that filters drop or leave to Linux, and clears their bits.
    #[inline(never)]
    pub fn filter(&mut self, filter: &PortFilter<'_>, left: &mut Mask) {
        for place in left.iter() {
            let Some(taken) = self.frames.get(place).and_then(|frame| filter.takes(frame.data())) else {
                continue;
            };
            left.clear(place);
            self.refused.add(place, taken.into());
        }
    }

    /// Every frame goes somewhere: the refused ones first, then the others in the order they came.
    #[inline(never)]
    pub fn leave(&mut self, io: &mut Io<'_>, output: &mut Output<'_>, hooks: Option<&mut Hooks>) {
        for place in self.refused.mask.iter() {
            let Some(mut frame) = self.frames.take(place) else { continue };
            if !self.chosen.has(place) {
                frame.meta_mut().chosen = 0;
            }
            output.refuse(io, frame, self.refused.why(place));
        }
        if let Some(hooks) = hooks {
            hooks.send_made(io, output);
        }
        let sent = self.send(io, output.links);
        output.sent(sent);
        let left = (self.frames.len() + self.mbufs.len()).saturating_sub(sent);
        // Bits are counted only where it matters: as a rule all are sent.
        if left > 0 && left > self.refused.mask.count() {
            self.write_headers();
            self.lose_rest(io, output);
        }
        self.frames.reset();
        self.mbufs.reset();
    }

    /// Sends what was not refused to the links of its ports; returns how many frames.
    fn send(&mut self, io: &mut Io<'_>, outputs: &[u16]) -> usize {
        let Self { frames, mbufs, ports, leaving, leaving_mbufs, refused, .. } = self;
        let all = refused.mask.is_empty();
        if mbufs.is_empty() {
            send(io, frames, leaving, ports, outputs, all)
        } else {
            send(io, mbufs, leaving_mbufs, ports, outputs, all)
        }
    }

    /// Drops the frames for which there was no room.
    #[cold]
    fn lose_rest(&mut self, io: &mut Io<'_>, output: &Output<'_>) {
        for (place, frame) in self.frames.places_mut().iter_mut().enumerate() {
            let Some(frame) = frame.take() else { continue };
            let link = output.links.get(usize::from(self.ports[place])).copied().unwrap_or(NO_OUTPUT);
            output.lose(io, frame, if link == NO_OUTPUT { Reason::NoOutput } else { Reason::LinkFull });
        }
    }
}

/// Sends the frames of a burst to the links of their `ports`; `all` means that none is missing. Returns how many.
#[inline(always)]
fn send<F: AnyFrame>(
    io: &mut Io<'_>,
    burst: &mut Burst<F>,
    leaving: &mut Burst<F>,
    ports: &[u16; BURST],
    outputs: &[u16],
    all: bool,
) -> usize {
    let ports = &ports[..burst.len()];
    let Some(first) = ports.first() else { return 0 };
    // Frames of one port often all leave through one other port.
    let others: u16 = ports.iter().fold(0, |others, port| others | (port ^ first));
    if others == 0 && all {
        let output = outputs.get(usize::from(*first)).copied().unwrap_or(NO_OUTPUT);
        return io.transmit_burst(usize::from(output), burst);
    }
    io.scatter(burst, ports, outputs, leaving)
}
