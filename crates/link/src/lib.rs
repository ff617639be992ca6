//! Rings of frames between two apps.
//!
//! A [`Link`] joins two apps of one worker: no atomics, since the worker runs them in turn. A [`channel`]
//! joins two threads: one producer, one consumer, no locks. Both are bounded, and both give a frame back
//! when they are full, so that whoever holds it counts why it is lost.

mod asleep;
mod channel;
mod link;

pub use asleep::Asleep;
pub use channel::{Consumer, Producer, channel};
pub use link::{CAPACITY, Link, LinkStats};
