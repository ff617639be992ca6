//! Locks that survive a panic of the thread that held them.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even after a panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Still the best available data if a thread panicked while it held the lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
