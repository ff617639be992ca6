//! Apps, the network of apps, and the engine that runs it on a worker.
//!
//! ```text
//! Network: apps by name, links "a.output -> b.input"        (control side, checked once)
//!    | Engine::new
//! Engine: breathe = every app pulls, then every app pushes  (one worker, one core, run to completion)
//!    |        pull: ports bring frames in       push: in the order of the links, sources first
//! Worker: a thread pinned to its core that breathes, and sleeps when nothing comes
//! ```
//!
//! The engine knows no devices and no protocols. It never locks, and allocates nothing after the start.

#![deny(unsafe_code)]

mod app;
mod counters;
mod engine;
mod hook;
mod idle_poll;
mod moderation;
mod movable_queue;
mod network;
mod port_app;
mod priority;
mod replace;
mod timing;
mod worker;

pub use app::{App, Io};
pub use bm_sys::{URGENT, Waker, set_nice};
pub use counters::{AppCounter, DeviceCounter, LinkCounter, WorkerCounter};
pub use engine::{Engine, LinkReport, clock_ns};
pub use hook::{HookBurst, HookFate, HookRoom, NoRoutes, Routes, Stage, StageHook, Stages};
pub use movable_queue::{MovableQueue, QueueOwner};
pub use network::{LinkSpec, Network, NetworkError};
pub use port_app::PortApp;
pub use replace::{ReplaceablePort, Replacer};
pub use worker::{AllCounters, Idle, RealTime, Schedule, Worker, WorkerError};
