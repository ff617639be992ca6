//! The control plane: reads the configuration, and compiles the kernel's tables to brickmoon's.

#![forbid(unsafe_code)]

pub mod compile;
pub mod config;
pub mod control_thread;
mod flows;
pub mod nftables;
pub mod watcher;
