//! Header views over bytes: check once, then read freely.
//!
//! A view proves by its existence that the header is whole, so its accessors cannot fail. Nothing here
//! knows a device, a table or a frame; everything is sums over byte slices, in host order outside.

#![forbid(unsafe_code)]

pub mod prefix;
