//! Workers with their queues, the slow path beside them, and the Lua hooks and apps that they run.

pub mod apps;
pub mod data_path;
pub mod hooks;
pub mod queues;
pub mod scripts;
pub mod threads;
