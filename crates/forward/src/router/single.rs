//! One frame through the stages of a worker, without its links, accounts and hooks: for trials.

use bm_fib::published::Epoch;
use bm_frame::Frame;

use super::Work;
use crate::tables::Tables;
use crate::verdict::Refusal;

/// The port through which a frame leaves that arrived on `port`, or why it is refused; with the frame as it then is.
pub(crate) fn route_single(
    tables: &Tables,
    port: usize,
    frame: Frame,
    now_ns: u64,
) -> Option<(Frame, Result<u16, Refusal>)> {
    let mut work = Work::new(1);
    let came_in = tables.compiled.ports.get(port).and_then(|view| view.untagged);
    work.known.arrive_on(port, came_in, Epoch::default(), now_ns);
    work.burst.push(frame).ok()?;
    work.route(tables, port, now_ns, None, None, None);
    let refused = work.refused.mask.has(0);
    let done = if refused { Err(work.refused.why(0)) } else { Ok(work.port[0]) };
    Some((work.burst.take(0)?, done))
}
