//! Counters in shared memory, readable from outside the process.
//!
//! ```text
//! worker: Block::add ----> [ file: header | names | values ] <---- Reader::counters : metrics, tools
//! ```
//!
//! A counter has one writer, so adding is a plain load and store: no locked instruction on the packet
//! path. Readers see each value whole, and may see two counters a moment apart. Blocks start on a cache
//! line of their own, so two workers never write to the same line.
//!
//! Absent on purpose: removing a counter. A counter exists as long as the process that created it.

mod account;
mod counters;
pub mod reason;
mod scope;
mod shared;

pub use account::{Account, Entry};
pub use counters::{CounterKind, Counters};
pub use reason::Reason;
pub use scope::Scope;
pub use shared::{Block, Reader, Registry, StatsError};
