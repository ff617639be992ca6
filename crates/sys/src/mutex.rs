//! A mutex whose data stays usable after a panic of another thread.

use std::sync::{MutexGuard, PoisonError, TryLockError};

/// A mutex that is not poisoned: if a thread panics while it holds the lock, the others go on with the data as it is
/// then. So nothing may be left half-changed where something can panic.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A mutex that nobody holds.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until no other thread holds the lock, and takes it until the guard is dropped.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock if no thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_stays_usable_after_a_panic() {
        let mutex = Mutex::new(1);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let mut held = mutex.lock();
                *held = 2;
                panic!("with the lock held");
            });
            assert!(thread.join().is_err());
        });
        assert_eq!(*mutex.lock(), 2);
    }
}
