//! A frame whose neighbor is not resolved yet.

use bm_frame::Frame;

/// A frame that waits.
pub(super) struct Waiter {
    pub frame: Frame,
    /// Created here: its TTL is not decremented, and a failure is not reported.
    pub own: bool,
}
