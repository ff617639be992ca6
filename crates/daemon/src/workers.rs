//! Workers with their queues, the slow path beside them, and the Lua hooks and apps that they run.

pub mod apps;
pub mod dataplane;
pub mod hooks;
pub mod queues;
pub mod running;
pub mod scripts;
