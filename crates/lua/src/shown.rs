//! Memory that Lua reads and writes as well as we do.
//!
//! Lua keeps the address of a [`ShownToLua`] for as long as its state lives, and uses it whenever it runs: also in the
//! middle of a Rust function that called it. The compiler does not know that. It assumes that `&mut` and `Box` are
//! the only way to a value, and that `&` promises that the value does not change; a store that apparently nobody can
//! see is omitted. So:
//!
//! - what Lua sees is reached through a pointer that claims nothing for itself alone, which is what this type is;
//! - every field that Lua writes, or that we write while Lua may look, is a cell or an atomic ([`LuaSees`]).

use std::ops::Deref;
use std::ptr::NonNull;

/// Types that may be shown to Lua.
///
/// # Safety
/// The type must be `#[repr(C)]`, and every field that Lua or Rust changes while the other has the address must be a
/// `Cell`, an `UnsafeCell` or an atomic, or be accessed only through raw pointers. Only one thread at a time uses it,
/// except for atomics.
pub(crate) unsafe trait LuaSees {}

/// A value at an address that never changes, which Lua has as well.
pub(crate) struct ShownToLua<T: LuaSees>(NonNull<T>);

// SAFETY: it owns its value, as a Box would.
unsafe impl<T: LuaSees + Send> Send for ShownToLua<T> {}

impl<T: LuaSees> ShownToLua<T> {
    pub fn new(value: T) -> Self {
        // From here on there is no Box, which would promise that nobody else has the address.
        Self(NonNull::from(Box::leak(Box::new(value))))
    }

    /// Where it is, for Lua.
    pub fn address(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T: LuaSees> Deref for ShownToLua<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: made in `new`, and dropped with `self`. What others change behind the reference is in cells.
        unsafe { self.0.as_ref() }
    }
}

impl<T: LuaSees> Drop for ShownToLua<T> {
    fn drop(&mut self) {
        // SAFETY: it came from a Box in `new`; whoever holds this closes Lua first.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
