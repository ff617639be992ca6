//! A hook: code from outside the router that works on a burst at one of its stages.
//!
//! ```text
//! stage: frames, mask ──► StageHook::run ──► mask: those that go on
//!                                        └─► fates of the others: dropped, to the slow path, out of a port
//! ```
//!
//! Whoever runs stages calls [`StageHook::begin`] once a breath and [`StageHook::run`] once a burst, for those stages
//! alone that have a hook. What language a hook is written in is nobody's business here.

use bm_frame::{BURST, Burst, Frame, Mask};

/// Where in the router a hook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stage {
    /// Frames as they came in, before anything is checked.
    Ingress,
    /// Packets whose next hop is found; called once for each IP version in the burst.
    Lookup,
    /// Frames as they leave.
    Egress,
    /// Frames on the slow path's own thread, before it decides on them.
    Slow,
}

impl Stage {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Ingress, Self::Lookup, Self::Egress, Self::Slow];

    /// Name, as configuration and Lua know it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Lookup => "lookup",
            Self::Egress => "egress",
            Self::Slow => "slow",
        }
    }
}

/// A set of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages(u8);

impl Stages {
    /// No stage.
    pub const NONE: Self = Self(0);

    /// These, and `stage`.
    #[must_use]
    pub fn with(self, stage: Stage) -> Self {
        Self(self.0 | 1 << stage as u8)
    }

    /// All that are in one of the two.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether `stage` is in.
    #[inline]
    pub fn has(self, stage: Stage) -> bool {
        self.0 >> stage as u8 & 1 == 1
    }
}

/// What becomes of a frame that a hook takes off its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HookFate {
    /// To the slow path; from there, and from `egress`, where there is no way back: see the stage's runner.
    #[default]
    Punt,
    /// Dropped; the hook has counted it under a name.
    Drop,
    /// Out of the port with this index, as it is.
    Send(u16),
}

/// What a hook may ask the routing tables.
pub trait Routes {
    /// The next hop of an IPv4 address, as number; 0 where no route leads.
    fn ipv4(&self, address: u32) -> u32;
    /// The same for IPv6.
    fn ipv6(&self, address: u128) -> u32;
}

/// Tables without routes, for stages and tests that have none.
pub struct NoRoutes;

impl Routes for NoRoutes {
    fn ipv4(&self, _address: u32) -> u32 {
        0
    }

    fn ipv6(&self, _address: u128) -> u32 {
        0
    }
}

/// What stays the same memory from burst to burst: what a hook says of each frame, and the frames that it makes.
pub struct HookRoom {
    /// Of each place whose bit the hook cleared.
    pub fates: [HookFate; BURST],
    /// Next hops, by place; at `lookup` alone they mean something, and may be changed.
    pub next_hops: [u32; BURST],
    /// Frames that the hook made, and the ports that they leave through.
    pub made: Burst,
    /// The port of each made frame.
    pub made_ports: [u16; BURST],
}

impl HookRoom {
    /// Room for the largest burst.
    pub fn new() -> Box<Self> {
        Box::new(Self {
            fates: [HookFate::Punt; BURST],
            next_hops: [0; BURST],
            made: Burst::new(),
            made_ports: [0; BURST],
        })
    }
}

/// What a hook is called with.
pub struct HookBurst<'a> {
    /// The places of the burst; a place whose frame is gone is `None`, and its bit is clear.
    pub frames: &'a mut [Option<Frame>],
    /// Places that the stage has; the hook clears those that do not go on.
    pub mask: &'a mut Mask,
    /// Fates of cleared places, next hops, frames made.
    pub room: &'a mut HookRoom,
    /// At `egress`: the port that each frame leaves through.
    pub ports: &'a [u16],
    /// The port that the burst came in on; 0 at `slow`, where each frame tells its own.
    pub port: u16,
    /// At `lookup`: 4 or 6, the IP version of all packets in the mask; 0 elsewhere.
    pub family: u8,
    /// Nanoseconds of the caller's clock, which never goes back.
    pub now_ns: u64,
    /// The routing tables.
    pub routes: &'a dyn Routes,
}

/// A hook, or many, at the stages of one thread.
pub trait StageHook: Send {
    /// Once a breath, before its bursts: takes over what has changed. Says which stages have a hook now.
    fn begin(&mut self) -> Stages;

    /// Works on a burst. A hook that fails leaves the mask as it was and makes nothing.
    fn run(&mut self, stage: Stage, burst: &mut HookBurst<'_>);
}
