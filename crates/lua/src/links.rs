//! The pool of links: side by side, at an address that never changes, zero until they are used.

use std::io;
use std::ptr::NonNull;

use bm_link::Link;

/// The most links of a worker. Only those in use occupy memory.
pub(crate) const LINKS: usize = 4096;

/// The pool.
pub(crate) struct Links {
    base: NonNull<Link>,
    free: Vec<usize>,
    used: usize,
}

// SAFETY: the pool owns its memory; whoever holds it may take it to another thread.
unsafe impl Send for Links {}

impl Links {
    /// An empty pool.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a fresh anonymous mapping, placed by the kernel.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                LINKS * size_of::<Link>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        match NonNull::new(base.cast::<Link>()) {
            Some(base) if base.as_ptr() as isize != -1 => Ok(Self { base, free: Vec::new(), used: 0 }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The address of the first one.
    pub fn address(&self) -> *mut Link {
        self.base.as_ptr()
    }

    /// All links, used or not.
    pub fn slice(&mut self) -> &mut [Link] {
        // SAFETY: the mapping holds that many links; zero bytes are an empty link, since an absent frame is a null
        // pointer. `&mut self` keeps other holders out, and Lua waits.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), LINKS) }
    }

    /// The links that were in use at some time.
    pub fn used(&mut self) -> &mut [Link] {
        let used = self.used.min(LINKS);
        &mut self.slice()[..used]
    }

    /// A fresh link's index, or `None` if all are in use.
    pub fn take(&mut self) -> Option<usize> {
        let index = self.free.pop().or_else(|| {
            self.used += 1;
            (self.used <= LINKS).then(|| self.used - 1)
        })?;
        self.slice()[index] = Link::new();
        Some(index)
    }

    /// Returns an empty link.
    pub fn give(&mut self, index: usize) {
        self.free.push(index);
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and unreachable from now on.
        unsafe { libc::munmap(self.base.as_ptr().cast(), LINKS * size_of::<Link>()) };
    }
}
