//! Metrics for Prometheus from the counters in shared memory.

#![forbid(unsafe_code)]
