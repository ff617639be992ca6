//! Counters and histograms in shared memory, readable from outside the process.
