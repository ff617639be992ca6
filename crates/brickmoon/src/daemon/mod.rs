//! `brickmoon up`: starts the router from its configuration, and hands all packets back to Linux at the end.
//!
//! ```text
//! lifecycle: start, signals, end ─┬─► answers: requests at the control socket ─┐
//!                                 └─► forwarder: carries out plans ◄───────────┘
//!
//! Config ─► ports open (no packets yet) ─► control: tables ready ─► workers, slow path ─► ports take packets
//! ```
//!
//! The end takes the reverse order: Linux gets all packets again first, then the threads end.

mod answers;
mod apps;
mod cluster;
mod configuration;
mod confine;
mod dataplane;
mod dpdk;
mod forwarder;
mod health;
mod hooks;
mod ipsec;
mod kernel_ports;
mod lifecycle;
mod limits;
mod linux_drops;
mod lock;
mod notify;
mod open_port;
mod ports;
mod presence;
mod probe;
mod queues;
mod random;
mod replaceable;
mod running;
mod sampling;
mod scripts;
mod spare;
mod statistics;
mod switches;
mod traffic;
pub mod watcher;

pub use configuration::{check, described};
pub use dataplane::{Shared, slow_path};
pub use ipsec::TunDevices;
pub use lifecycle::up;
pub use open_port::{OpenDevice, OpenPort};
pub use ports::{Rings, open as open_ports};
pub use random::random;
