//! A value with key material that its library does not wipe: its memory is overwritten with zeros when it is dropped.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::slice;

use zeroize::Zeroize;

/// A value in memory of its own, which is overwritten with zeros before it is freed.
///
/// For values without pointers to key material: only the bytes of `T` itself are overwritten.
pub(crate) struct Wiped<T>(Box<MaybeUninit<T>>);

impl<T> Wiped<T> {
    /// Moves the value to the heap, where it stays.
    pub fn new(value: T) -> Self {
        Self(Box::new(MaybeUninit::new(value)))
    }

    fn wipe(&mut self) {
        // SAFETY: `new` has initialized the value, and this is called once, by `drop`: nobody can use it afterwards.
        unsafe { self.0.assume_init_drop() };
        // As a slice, since that overwrites all bytes, padding included.
        slice::from_mut(&mut *self.0).zeroize();
    }
}

impl<T> Deref for Wiped<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `new` has initialized it, and only `drop` ends that.
        unsafe { self.0.assume_init_ref() }
    }
}

impl<T> DerefMut for Wiped<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.0.assume_init_mut() }
    }
}

impl<T> Drop for Wiped<T> {
    fn drop(&mut self) {
        self.wipe();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::mem::ManuallyDrop;

    struct Counted<'a>([u8; 40], &'a Cell<u32>);

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.1.set(self.1.get() + 1);
        }
    }

    #[test]
    fn value_is_dropped_once_and_overwritten() {
        let drops = Cell::new(0);
        let mut wiped = ManuallyDrop::new(Wiped::new(Counted([7; 40], &drops)));
        let value: &Counted<'_> = &wiped;
        assert_eq!(value.0, [7; 40]);
        wiped.wipe();
        assert_eq!(drops.get(), 1);
        let bytes = wiped.0.as_ptr().cast::<u8>();
        // SAFETY: the memory is still allocated, and all of its bytes have been written.
        let bytes = unsafe { slice::from_raw_parts(bytes, size_of::<Counted<'_>>()) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        // SAFETY: the box is not used again; what it holds is not dropped with it.
        drop(unsafe { std::ptr::read(&wiped.0) });
    }
}
