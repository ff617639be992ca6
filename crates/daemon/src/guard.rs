//! What keeps the daemon safe: limits and privileges, heartbeats, systemd, and the process that watches tables after its end.

pub mod confine;
pub mod health;
pub mod notify;
pub mod watcher;
