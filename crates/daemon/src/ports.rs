//! Ports: devices that are opened, and interfaces in Linux that may disappear and come back.

pub mod dpdk;
pub mod kernel_ports;
pub mod open;
pub mod open_port;
pub mod presence;
pub mod probe;
pub mod replaceable;
pub mod spare;
