//! The control plane: configuration, and the kernel's tables compiled into ours.

#![forbid(unsafe_code)]

pub mod compile;
pub mod config;
pub mod driver;
pub mod nftables;
pub mod watcher;
