//! Hooks on the slow path's thread: they see what workers passed on, before it is decided again.
//!
//! A frame that a hook does not remove is handled according to its bytes, which the hook may have changed. A punted
//! one goes to Linux, which comes after the slow path as the slow path comes after the fast one.

use bm_frame::{BURST, Burst, Frame, Mask};
use bm_graph::{HookBurst, HookFate, HookRoom, Stage, StageHook};
use bm_link::Consumer;
use bm_stats::{Entry, Reason};

use super::{Core, Now};
use crate::hook::TableRoutes;
use crate::tables::Tables;
use crate::verdict::Verdict;

/// The hooks, with room for a burst.
pub(super) struct SlowHooks {
    hook: Box<dyn StageHook>,
    burst: Burst,
    room: Box<HookRoom>,
}

impl SlowHooks {
    pub fn new(hook: Box<dyn StageHook>) -> Box<Self> {
        Box::new(Self { hook, burst: Burst::new(), room: HookRoom::new() })
    }

    /// Called once per step; `None` if there is no hook now.
    pub fn begin(&mut self) -> Option<&mut Self> {
        self.hook.begin().has(Stage::Slow).then_some(self)
    }

    /// Takes a burst from `queue` through the hooks and handles it. Returns the number of frames.
    pub fn take(&mut self, core: &mut Core, tables: &Tables, queue: &mut Consumer<Frame>, now: Now) -> usize {
        let Self { hook, burst, room, .. } = self;
        let mut linux_only = 0;
        for _ in 0..BURST {
            let Some(frame) = queue.pop() else { break };
            if frame.meta().verdict == Verdict::LinuxOnly as u16 {
                core.take(tables, frame, now);
                linux_only += 1;
                continue;
            }
            // Cannot be: the burst is not full.
            burst.push(frame).unwrap_or_else(|frame| core.lose(frame, Reason::SlowPathFull));
        }
        let count = burst.len();
        if count == 0 {
            return linux_only;
        }
        let before = Mask::first(count);
        let mut mask = before;
        hook.run(
            Stage::Slow,
            &mut HookBurst {
                frames: burst.places_mut(),
                mask: &mut mask,
                room,
                ports: &[],
                port: 0,
                family: 0,
                now_ns: now.monotonic_ns,
                routes: &TableRoutes::of(tables, 0),
            },
        );
        for place in before.iter() {
            let Some(frame) = burst.take(place) else { continue };
            if mask.has(place) {
                core.take(tables, frame, now);
                continue;
            }
            core.count(&frame, Entry::Received);
            match room.fates[place] {
                HookFate::Punt | HookFate::Linux => core.deliver(frame),
                HookFate::DropUnseen => core.lose(frame, Reason::HookFailed),
                HookFate::Drop => core.lose(frame, Reason::Hook),
                HookFate::Send(port) => core.send(frame, port),
            }
        }
        burst.reset();
        let HookRoom { made, made_ports, .. } = &mut **room;
        for (frame, &port) in made.drain().zip(made_ports.iter()) {
            core.count(&frame, Entry::Originated);
            core.send(frame, port);
        }
        count + linux_only
    }
}
