//! Memory for the frames of a Lua program's ports: AF_XDP does not accept slots of any size.

use std::sync::Arc;

use bm_frame::FramePool;
use bm_port::{Copied, Port};

/// Number of slots for AF_XDP where the program's own are too large for it.
const SMALL_SLOTS: usize = 16_384;
/// Bytes of such a slot; enough for an MTU of 1514 (4096 bytes: 3562).
const SMALL: usize = 2048;

/// Memory for the frames of ports: the program's own, or a second one.
#[derive(Clone)]
pub struct PortMemory {
    /// Memory with slots that AF_XDP accepts.
    pub frame_pool: Arc<FramePool>,
    /// Whether frames are copied between this memory and the program's.
    pub copied: bool,
}

impl PortMemory {
    /// The program's own memory, or a second one if AF_XDP does not accept its slots.
    ///
    /// # Errors
    /// If the second one cannot be allocated.
    pub fn beside(frame_pool: &Arc<FramePool>) -> Result<Self, String> {
        if matches!(frame_pool.memory().slot_size(), 2048 | 4096) {
            return Ok(Self { frame_pool: frame_pool.clone(), copied: false });
        }
        let frame_pool = FramePool::new(SMALL_SLOTS, SMALL).map_err(|error| error.to_string())?;
        Ok(Self { frame_pool, copied: true })
    }

    /// Wraps a port so that it copies frames if necessary.
    pub fn port(&self, port: Box<dyn Port>) -> Box<dyn Port> {
        if self.copied { Box::new(Copied::new(port, self.frame_pool.clone())) } else { port }
    }
}
