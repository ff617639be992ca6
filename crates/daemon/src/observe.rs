//! What users see of the daemon: answers to requests, counters of ports, what Linux drops, samples for collectors.

pub mod answers;
pub mod linux_drops;
pub mod sampling;
pub mod statistics;
pub mod traffic;
