//! The atomics that `published` is made of: the standard library's, or loom's when a model is run
//! (`RUSTFLAGS="--cfg loom" cargo test -p bm-fib --lib --release model`).

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU64, Ordering, fence},
};
