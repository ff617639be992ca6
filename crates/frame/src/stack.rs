//! A worker's free frames as a struct that Lua and Rust share: the frame freed last is allocated first.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

use crate::frame::Frame;

/// The start of the stack. Lua knows it as `struct freelist`.
///
/// Shared with Lua, and with DPDK's shim for the length of a call: never while a method of [`Stack`] runs. Those
/// access it through a raw pointer each time, so nothing of it is cached across a call of either.
#[repr(C)]
pub struct StackHead {
    /// Frames in the stack.
    pub held: i32,
    /// The maximum number of frames.
    pub limit: i32,
    /// Frames that came from the frame pool, less those that were returned.
    pub traded: i64,
}

/// A stack of free frames at a fixed address.
pub(crate) struct Stack {
    head: NonNull<StackHead>,
    layout: Layout,
}

// SAFETY: the stack owns its memory and the frames in it, and frames may go to another thread.
unsafe impl Send for Stack {}

impl Stack {
    /// An empty stack for `limit` frames.
    pub fn new(limit: usize) -> Self {
        let limit = limit.min(1 << 24);
        let places = Layout::array::<Frame>(limit).expect("2^24 pointers fit in memory's range");
        let (layout, _) = Layout::new::<StackHead>().extend(places).expect("as above");
        // SAFETY: the layout holds at least the head, so its size is not zero.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(head) = NonNull::new(memory.cast::<StackHead>()) else { handle_alloc_error(layout) };
        // SAFETY: just allocated, aligned, ours alone.
        unsafe { head.write(StackHead { held: 0, limit: limit as i32, traded: 0 }) };
        Self { head, layout }
    }

    /// Its address, for Lua.
    pub fn address(&self) -> NonNull<StackHead> {
        self.head
    }

    fn head(&self) -> &StackHead {
        // SAFETY: written in `new`; Lua, which may write it, never runs at the same time as the holder's methods.
        unsafe { self.head.as_ref() }
    }

    fn head_mut(&mut self) -> &mut StackHead {
        // SAFETY: as in `head`, and `&mut self` keeps other holders out.
        unsafe { self.head.as_mut() }
    }

    fn place(&self, index: usize) -> NonNull<Frame> {
        // SAFETY: the places begin right behind the head, which is a multiple of eight bytes; callers stay below
        // the limit.
        unsafe { self.head.add(1).cast::<Frame>().add(index) }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.head().held as usize
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.head().held == self.head().limit
    }

    /// Puts a frame on top.
    ///
    /// # Errors
    /// Returns the frame if the stack is full.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.is_full() {
            return Err(frame);
        }
        // SAFETY: below the limit by the check; the place holds no frame that could be lost.
        unsafe { self.place(self.len()).write(frame) };
        self.head_mut().held += 1;
        Ok(())
    }

    /// Takes the frame on top.
    #[inline]
    pub fn pop(&mut self) -> Option<Frame> {
        if self.head().held == 0 {
            return None;
        }
        self.head_mut().held -= 1;
        // SAFETY: the place was below `held`, so it holds a frame, and no longer is, so nobody else takes it.
        Some(unsafe { self.place(self.len()).read() })
    }

    /// Records that `count` frames came from the frame pool, or were returned if it is negative.
    pub(crate) fn trade(&mut self, count: i64) {
        self.head_mut().traded += count;
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; whoever drops it has taken the frames out.
        unsafe { std::alloc::dealloc(self.head.as_ptr().cast(), self.layout) };
    }
}
