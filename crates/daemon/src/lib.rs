//! The daemon of `brickmoon up`: starts the router from its configuration, and hands all packets back to Linux at the end.
//!
//! ```text
//! lifecycle: start, signals, end ─┬─► observe: answers to requests at the control socket ─┐
//!                                 └─► router: carries out plans ◄─────────────────────────┘
//!
//! Config ─► ports open (no packets yet) ─► control: tables ready ─► workers, slow path ─► ports take packets
//! ```
//!
//! The end takes the reverse order: Linux gets all packets again first, then the threads end.

#![forbid(unsafe_code)]

mod cluster;
mod configuration;
mod guard;
mod ipsec;
mod lifecycle;
pub mod log;
mod namespace_claim;
mod observe;
mod options;
pub mod plan;
mod ports;
mod router;
mod switches;
mod workers;

pub use configuration::{check, described};
pub use guard::watcher::run as watch_tables;
pub use ipsec::TunDevices;
pub use lifecycle::up;
pub use namespace_claim::NamespaceClaim;
pub use options::{Options, PathOption};
pub use ports::open::{Rings, open as open_ports};
pub use ports::open_port::{OpenDevice, OpenPort};
pub use workers::threads::{WorkerContext, slow_path};

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even after a panic: its contents are still the best available data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An unpredictable number.
pub fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}
