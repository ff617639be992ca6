//! What all states of a process share.

use std::sync::Arc;

use bm_frame::{FramePool, MemoryError};

use crate::modules::Tree;
use crate::natives::Natives;
use crate::report::ReportSlots;

/// Bytes of a packet that Snabb's programs may rely on.
pub const PAYLOAD: usize = 10_240;
/// Default number of slots.
const SLOTS: usize = 32_768;
/// Free packets that a worker keeps for itself: enough for several full links.
const KEEP: usize = 8192;

/// What all states of a process share: packets, modules, and what creates apps in Rust.
#[derive(Clone)]
pub struct World {
    /// Where all packets come from.
    pub frame_pool: Arc<FramePool>,
    /// Creates apps in Rust.
    pub natives: Arc<dyn Natives>,
    /// Folders with modules, searched before the binary.
    pub trees: Vec<Tree>,
    /// Where reports of the workers are requested.
    pub report_slots: ReportSlots,
    /// Free packets that each worker keeps for itself.
    pub keep: usize,
}

impl World {
    /// With memory for packets of up to `room` bytes.
    ///
    /// # Errors
    /// As for [`FramePool::new`].
    pub fn new(natives: Arc<dyn Natives>, trees: Vec<Tree>, room: usize) -> Result<Self, MemoryError> {
        let frame_pool = FramePool::new(SLOTS, slot_size(room))?;
        Ok(Self { frame_pool, natives, trees, report_slots: ReportSlots::default(), keep: KEEP })
    }
}

/// The slot size for packets of `room` bytes: one that AF_XDP supports, if possible. A larger one is an odd number of
/// cache lines, so that packets, which all start at the same offset of their slot, are spread over the sets of a
/// cache.
fn slot_size(room: usize) -> usize {
    match room + bm_frame::DATA_OFFSET {
        0..=2048 => 2048,
        2049..=4096 => 4096,
        more => (more.div_ceil(64) | 1) * 64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_fit_af_xdp_or_spread_over_the_cache() {
        assert_eq!(
            [1500, 1536, 1537, 3584, 9000, PAYLOAD].map(slot_size),
            [2048, 2048, 4096, 4096, 9536, 10_816]
        );
    }
}
