//! The last stage of a burst: its frames go to the links of their ports, to the slow path, or are dropped.

use bm_frame::{AnyFrame, BURST, Burst};
use bm_graph::Io;
use bm_stats::Reason;

use super::Work;
use crate::entrance::Entrance;
use crate::hook::Hooks;
use crate::output::{NO_OUTPUT, Tally};

impl Work {
    /// The last stage: every frame of the burst goes somewhere, in the order they came.
    #[inline(never)]
    pub(super) fn leave(
        &mut self,
        io: &mut Io<'_>,
        mut tally: Tally<'_>,
        entrance: &mut Entrance,
        outputs: &[u16],
        hooks: Option<&mut Hooks>,
    ) {
        for place in self.refused.mask.iter() {
            let Some(mut frame) = self.burst.take(place) else { continue };
            let meta = frame.meta_mut();
            (meta.interface, meta.network) = self.arrivals[place];
            meta.chosen = hooks.as_ref().is_some_and(|hooks| hooks.chose(place)).into();
            meta.next_hop = if self.batches.ipv4.mask.has(place) {
                self.batches.ipv4.hops[place]
            } else {
                self.batches.ipv6.hops[place]
            }
            .0;
            tally.refuse(io, entrance, outputs, frame, self.refused.why(place));
        }
        if let Some(hooks) = hooks {
            hooks.send_made(io, outputs, &mut tally);
        }
        let sent = self.send(io, outputs);
        tally.sent(sent);
        let left = (self.burst.len() + self.mbufs.len()).saturating_sub(sent);
        // Bits are counted only where it matters: as a rule all are sent.
        if left > 0 && left > self.refused.mask.count() {
            self.write_headers();
            self.lose_rest(io, &tally, outputs);
        }
        tally.close();
        self.burst.reset();
        self.mbufs.reset();
    }

    /// Sends what was not refused to the links of its ports; returns how many frames.
    fn send(&mut self, io: &mut Io<'_>, outputs: &[u16]) -> usize {
        let Self { burst, mbufs, port, leaving, leaving_mbufs, refused, .. } = self;
        let all = refused.mask.is_empty();
        if mbufs.is_empty() {
            send(io, (burst, leaving), (port, outputs), all)
        } else {
            send(io, (mbufs, leaving_mbufs), (port, outputs), all)
        }
    }

    /// Drops the frames for which there was no room.
    #[cold]
    fn lose_rest(&mut self, io: &mut Io<'_>, tally: &Tally<'_>, outputs: &[u16]) {
        for (place, frame) in self.burst.places_mut().iter_mut().enumerate() {
            let Some(frame) = frame.take() else { continue };
            let output = outputs.get(usize::from(self.port[place])).copied().unwrap_or(NO_OUTPUT);
            tally.lose(io, frame, if output == NO_OUTPUT { Reason::NoOutput } else { Reason::LinkFull });
        }
    }
}

/// Sends the frames of a burst to the links of their `ports`; `all` means that none is missing. Returns how many.
#[inline(always)]
fn send<F: AnyFrame>(
    io: &mut Io<'_>,
    (burst, leaving): (&mut Burst<F>, &mut Burst<F>),
    (ports, outputs): (&[u16; BURST], &[u16]),
    all: bool,
) -> usize {
    let ports = &ports[..burst.len()];
    let output = |&port: &u16| outputs.get(usize::from(port)).copied().unwrap_or(NO_OUTPUT);
    let Some(first) = ports.first() else { return 0 };
    // Frames of one port often all leave through one other port.
    let others: u16 = ports.iter().fold(0, |others, port| others | (port ^ first));
    if others == 0 && all {
        return io.transmit_burst(usize::from(output(first)), burst);
    }
    io.scatter(burst, ports, outputs, leaving)
}
