//! The router app: fast path, slow path, host path.

#![forbid(unsafe_code)]

mod compiled;
mod entrance;
mod input;
mod lookup;
mod output;
mod rewrite;
mod router;
mod source;
pub mod tables;
mod validate;
mod verdict;

pub use entrance::Entrance;
pub use router::{Router, RouterPort};
pub use verdict::{Refusal, Verdict};
