//! What a port is to a worker, with the in-memory and the faulty port.

#![forbid(unsafe_code)]
