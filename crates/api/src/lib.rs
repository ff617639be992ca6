//! The control socket's whole language: requests, replies, events.

#![forbid(unsafe_code)]
