//! Apps, the network of apps, and the engine that runs it on a worker.

#![forbid(unsafe_code)]
