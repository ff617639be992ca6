//! The shortest way: plain frames are rewritten where they wait, and go from their link straight to the next one.
//!
//! If a frame is not plain, or a link has no room, the frames are received as a burst, and take the way of all others
//! from there.

use bm_frame::{AnyFrame, BURST, Columns, Frame, Mask, MbufFrame, PickedFrames};
use bm_graph::Io;

use super::Work;
use crate::compiled::PortView;
use crate::filter::PortFilter;
use crate::tables::Tables;

/// What became of the frames that wait on a link.
pub(super) enum Tried {
    /// They were left alone.
    Nothing,
    /// All of them have been sent: the number of packets, and of bytes.
    All(PickedFrames),
    /// `count` were tried; those in the mask are not plain. Some may have been sent.
    Some { count: usize, sent: PickedFrames, left: Mask },
}

impl Tried {
    /// How many frames to receive now.
    pub fn count(&self) -> usize {
        if let Self::Some { count, .. } = self { *count } else { BURST }
    }

    /// How many of them are on their way.
    pub fn sent(&self) -> PickedFrames {
        if let Self::Some { sent, .. } = self { *sent } else { PickedFrames::default() }
    }

    /// Which of them are not plain, if this is known.
    pub fn left(&self) -> Option<Mask> {
        if let Self::Some { left, .. } = self { Some(*left) } else { None }
    }
}

impl Work {
    /// Forwards the frames that wait on an input, if all of them are plain.
    #[inline(always)]
    pub(super) fn forward_waiting(
        &mut self,
        tables: &Tables,
        port: usize,
        filter: Option<&PortFilter<'_>>,
        io: &mut Io<'_>,
        (input, outputs): (usize, &[u16]),
    ) -> Tried {
        let Some(view) = tables.compiled.ports.get(port).filter(|_| !tables.stand_aside(io.now_ns)) else {
            return Tried::Nothing;
        };
        let mbufs = io.has_mbufs(input) && io.sends_mbufs();
        let (count, left) = if mbufs {
            self.rewrite_waiting::<MbufFrame>(tables, view, filter, io.waiting_mut(input))
        } else {
            self.rewrite_waiting::<Frame>(tables, view, filter, io.waiting_mut(input))
        };
        let ways = Columns { keys: &self.port[..count], lengths: &self.lengths[..count] };
        let sent = match left.is_empty() && self.refused.mask.is_empty() {
            true if mbufs => io.scatter_waiting(input, ways, outputs, &mut self.leaving_mbufs),
            true => io.scatter_waiting(input, ways, outputs, &mut self.leaving),
            false => PickedFrames::default(),
        };
        match count {
            0 => Tried::Nothing,
            count if count == sent.count => Tried::All(sent),
            count => Tried::Some { count, sent, left },
        }
    }

    /// Returns the number of frames, and the places of those that are not plain.
    #[inline(always)]
    fn rewrite_waiting<F: AnyFrame>(
        &mut self,
        tables: &Tables,
        view: &PortView,
        filter: Option<&PortFilter<'_>>,
        frames: &mut [Option<F>],
    ) -> (usize, Mask) {
        let count = frames.len().min(BURST);
        (count, self.plain_waiting(tables, view, filter, &mut frames[..count]))
    }

    /// Receives a burst; of frames described by their mbufs only if all stages can do with that.
    #[inline(always)]
    pub(super) fn receive(&mut self, io: &mut Io<'_>, input: usize, most: usize) -> usize {
        if io.has_mbufs(input) && io.sends_mbufs() {
            io.receive_some(input, &mut self.mbufs, most)
        } else {
            io.receive_some(input, &mut self.burst, most)
        }
    }
}
