//! The shortest way: plain frames are rewritten where they wait, and go from their link straight to the next one.
//!
//! If a frame is not plain, or a link has no room, the frames are received as a burst, and take the way of all others
//! from there.

use bm_frame::{AnyFrame, BURST, Columns, Frame, Mask, MbufFrame, PickedFrames};
use bm_graph::Io;

use super::burst::{FastBurst, FastPath};
use crate::burst::{InputPort, RoutedBurst};

/// What became of the frames that wait on a link.
pub(crate) enum LinkResult {
    /// They were left alone.
    Untried,
    /// All of them have been sent: the number of packets, and of bytes.
    AllSent(PickedFrames),
    /// `count` were rewritten, except for those at the places in `left`. Some may have been sent.
    Rewritten { count: usize, sent: PickedFrames, left: Mask },
}

impl LinkResult {
    /// How many frames to receive now.
    pub fn count(&self) -> usize {
        if let Self::Rewritten { count, .. } = self { *count } else { BURST }
    }

    /// How many of them are on their way.
    pub fn sent(&self) -> PickedFrames {
        if let Self::Rewritten { sent, .. } = self { *sent } else { PickedFrames::default() }
    }

    /// Which of them are left to the stages, if this is known.
    pub fn left(&self) -> Option<Mask> {
        if let Self::Rewritten { left, .. } = self { Some(*left) } else { None }
    }
}

impl FastPath {
    /// Forwards the frames that wait on an input, if all of them are plain. `outputs` are the links of ports.
    #[inline(always)]
    pub fn forward_waiting(
        &mut self,
        from: &InputPort<'_>,
        io: &mut Io<'_>,
        input: usize,
        outputs: &[u16],
        burst: &mut RoutedBurst,
    ) -> LinkResult {
        let mbufs = io.has_mbufs(input) && io.sends_mbufs();
        if mbufs && self.with_headers > 0 {
            return LinkResult::Untried;
        }
        let (count, left) = if mbufs {
            self.rewrite_waiting::<MbufFrame>(from, io.waiting_mut(input), burst)
        } else {
            self.rewrite_waiting::<Frame>(from, io.waiting_mut(input), burst)
        };
        let ways = Columns { keys: &burst.ports[..count], lengths: &burst.lengths[..count] };
        let sent = match left.is_empty() && burst.refused.mask.is_empty() {
            true if mbufs => io.scatter_waiting(input, ways, outputs, &mut burst.leaving_mbufs),
            true => io.scatter_waiting(input, ways, outputs, &mut burst.leaving),
            false => PickedFrames::default(),
        };
        match count {
            0 => LinkResult::Untried,
            count if count == sent.count => LinkResult::AllSent(sent),
            count => LinkResult::Rewritten { count, sent, left },
        }
    }

    /// Returns the number of frames, and the places of those that are left to the stages.
    #[inline(always)]
    fn rewrite_waiting<F: AnyFrame>(
        &mut self,
        from: &InputPort<'_>,
        frames: &mut [Option<F>],
        burst: &mut RoutedBurst,
    ) -> (usize, Mask) {
        let count = frames.len().min(BURST);
        let RoutedBurst { ports, lengths, refused, .. } = burst;
        let burst = FastBurst { frames: &mut frames[..count], ports, lengths, refused };
        (count, self.forward_frames(from, burst))
    }
}
