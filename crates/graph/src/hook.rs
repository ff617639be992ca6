//! A hook: user code that processes a burst at one of the router's stages.
//!
//! ```text
//! stage: frames, mask ──► StageHook::run ──► mask: those that continue
//!                                        └─► fates of the others: dropped, to the slow path, out of a port
//! ```
//!
//! The code that runs a stage calls [`StageHook::begin`] once per breath and [`StageHook::run`] once per burst, only
//! for stages that have a hook. The language of a hook does not matter here.

use bm_frame::{BURST, Burst, Frame, Mask};

/// Where in the router a hook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stage {
    /// Received frames, before any check.
    Ingress,
    /// Packets whose next hop has been found; called once for each IP version in the burst.
    Lookup,
    /// Frames that are about to be sent.
    Egress,
    /// Frames on the slow path's own thread, before it handles them.
    Slow,
}

impl Stage {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Ingress, Self::Lookup, Self::Egress, Self::Slow];

    /// The name, as in the configuration and Lua.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Lookup => "lookup",
            Self::Egress => "egress",
            Self::Slow => "slow",
        }
    }
}

/// The stages that a hook wants to be called at, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages(u8);

impl Stages {
    /// No stage.
    pub const NONE: Self = Self(0);

    /// The set with `stage` added.
    #[must_use]
    pub fn with(self, stage: Stage) -> Self {
        Self(self.0 | 1 << stage as u8)
    }

    /// The union of two sets.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the set contains `stage`.
    #[inline]
    pub fn has(self, stage: Stage) -> bool {
        self.0 >> stage as u8 & 1 == 1
    }
}

/// What happens to a frame that a hook removes from the burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HookFate {
    /// It goes to the slow path; what happens at the slow path itself and at `egress`, from where that is not
    /// possible, depends on the stage.
    #[default]
    Punt,
    /// It is dropped; the hook has counted it under a reason.
    Drop,
    /// It is dropped, since a hook that must see it does not run.
    DropUnseen,
    /// It is delivered to Linux, since a hook that must see it does not run.
    Linux,
    /// It is sent unchanged from the port with this index.
    Send(u16),
}

/// The routing tables, for hooks.
pub trait Routes {
    /// The number of the next hop for an IPv4 address; 0 if there is no route.
    fn ipv4(&self, address: u32) -> u32;
    /// The number of the next hop for an IPv6 address; 0 if there is no route.
    fn ipv6(&self, address: u128) -> u32;
}

/// Empty routing tables, for stages and tests that have none.
pub struct NoRoutes;

impl Routes for NoRoutes {
    fn ipv4(&self, _address: u32) -> u32 {
        0
    }

    fn ipv6(&self, _address: u128) -> u32 {
        0
    }
}

/// Memory that is reused from burst to burst: a hook's decision for each frame, and the frames that it creates.
pub struct HookRoom {
    /// For each slot whose bit the hook cleared.
    pub fates: [HookFate; BURST],
    /// Next hops, by slot; they are meaningful only at `lookup`, and may be changed there.
    pub next_hops: [u32; BURST],
    /// Frames that the hook created.
    pub made: Burst,
    /// The port of each made frame.
    pub made_ports: [u16; BURST],
}

impl HookRoom {
    /// Memory for the largest burst.
    pub fn new() -> Box<Self> {
        Box::new(Self {
            fates: [HookFate::Punt; BURST],
            next_hops: [0; BURST],
            made: Burst::new(),
            made_ports: [0; BURST],
        })
    }
}

/// The arguments of a hook.
pub struct HookBurst<'a> {
    /// The slots of the burst; a slot without a frame is `None`, and its bit is clear.
    pub frames: &'a mut [Option<Frame>],
    /// The slots that the stage processes; the hook clears those that it removes.
    pub mask: &'a mut Mask,
    /// Decisions for cleared slots, next hops, created frames.
    pub room: &'a mut HookRoom,
    /// At `egress`: the port through which each frame leaves.
    pub ports: &'a [u16],
    /// The port on which the burst arrived; 0 at `slow`, where each frame has its own.
    pub port: u16,
    /// At `lookup`: 4 or 6, the IP version of all packets in the mask; 0 elsewhere.
    pub family: u8,
    /// Nanoseconds of the caller's monotonic clock.
    pub now_ns: u64,
    /// The routing tables.
    pub routes: &'a dyn Routes,
}

/// A hook, or several, at the stages of one thread.
pub trait StageHook: Send {
    /// Called once per breath, before its bursts: applies changes. Returns which stages have a hook now.
    fn begin(&mut self) -> Stages;

    /// Processes a burst. A hook that fails has no effect, and its frames get the fate that is configured for that.
    fn run(&mut self, stage: Stage, burst: &mut HookBurst<'_>);
}
