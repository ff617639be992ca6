//! Rings of frames between two apps.
//!
//! A [`Link`] connects two apps of one worker: it needs no atomics, because the worker runs them in turn. A
//! [`channel`] connects two threads: one producer, one consumer, no locks. Both are bounded, and both return a frame
//! when they are full, so that the caller can count why it is lost.

mod asleep;
mod channel;
mod link;

pub use asleep::Asleep;
pub use channel::{Consumer, Producer, channel};
pub use link::{CAPACITY, Link, LinkStats};
