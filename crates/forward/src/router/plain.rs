//! The plain path through a burst, chosen once for it: no hooks, no reverse path filter, one routing table.
//!
//! ```text
//! chunk n + 1:  gather ........... check, prefetch from the table ..........
//! chunk n:             look up ................................ rewrite
//! ```
//!
//! While one chunk waits for memory, the other is processed. Frames that are not plain are left unchanged for the other
//! stages. Nothing is sent before all frames have a port, so the frames of a burst leave in the order they came.

use bm_fib::Fib;
use bm_frame::Mask;
use bm_wire::Family;

use super::Work;
use crate::compiled::{NO_MAC, PortView};
use crate::plain::{CHUNK, every};
use crate::tables::Tables;

/// The number of bursts that take the general path after one in which more than three quarters of the frames were not
/// plain: they are most likely similar, for example packets of a multipath route.
const NOT_PLAIN: u8 = 31;

impl Work {
    /// Rewrites the plain frames of the burst, and stores their ports; returns the places of all others.
    #[inline(always)]
    pub(super) fn plain_path(&mut self, tables: &Tables, view: &PortView, hooked: bool) -> Mask {
        let count = self.burst.len();
        let plain = !hooked && !view.filters && view.fast_ipv4 != NO_MAC && self.family == Family::V4;
        let vrf = view.vrf.and_then(|vrf| tables.vrfs.get(usize::from(vrf)));
        let Some(vrf) = vrf.filter(|_| plain && count != 0) else { return Mask::first(count) };
        if self.not_plain > 0 {
            self.not_plain -= 1;
            return Mask::first(count);
        }
        let left = self.plain_ipv4(tables, view, &*vrf.ipv4);
        if !left.is_empty() && left.count() * 4 > count * 3 {
            self.not_plain = NOT_PLAIN;
        }
        left
    }

    #[inline(never)]
    #[allow(unsafe_code)]
    fn plain_ipv4(&mut self, tables: &Tables, view: &PortView, fib: &dyn Fib<Address = u32>) -> Mask {
        let Self { form, burst, port, known, chunks: [now, next], .. } = self;
        let (mut now, mut next) = (now, next);
        let (mac, local) = (view.fast_ipv4, &tables.compiled.local);
        let mut left = [0; 4];
        let frames = burst.places_mut();
        let start = CHUNK.min(frames.len());
        now.gather(&mut frames[..start]);
        // SAFETY: the frames are in the burst, and nothing happens to them in between; the same below.
        unsafe { now.check(*form, mac, local) };
        for first in (0..frames.len()).step_by(CHUNK) {
            let end = frames.len().min(first + CHUNK);
            let ahead = end..frames.len().min(end + CHUNK);
            let more = !ahead.is_empty();
            if more {
                next.gather(&mut frames[ahead]);
            }
            let (destinations, hops) = now.lookup();
            fib.lookup_burst(destinations, hops);
            if more {
                // SAFETY: see above.
                unsafe { next.check(*form, mac, local) };
                fib.prefetch(next.lookup().0);
            }
            // SAFETY: see above.
            let done =
                unsafe { now.rewrite(tables, known, (&mut frames[first..end], &mut port[first..end])) };
            left[first / 64] |= u64::from(every(end - first) & !done) << (first % 64);
            std::mem::swap(&mut now, &mut next);
        }
        Mask::from_words(left)
    }
}
