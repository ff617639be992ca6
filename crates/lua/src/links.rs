//! The pool of links: side by side, at an address that never changes, zero until they are used.

use std::io;

use bm_link::Link;
use bm_sys::{Commit, Map};

/// The most links of a worker. Only those in use occupy memory.
pub(crate) const LINKS: usize = 4096;

/// The pool.
pub(crate) struct Links {
    map: Map,
    free: Vec<usize>,
    used: usize,
}

impl Links {
    /// An empty pool.
    pub fn new() -> io::Result<Self> {
        let map = Map::anonymous(LINKS * size_of::<Link>(), Commit::OnDemand)?;
        Ok(Self { map, free: Vec::new(), used: 0 })
    }

    /// The address of the first one.
    pub fn address(&self) -> *mut Link {
        self.map.start().cast().as_ptr()
    }

    /// All links, used or not.
    pub fn slice(&mut self) -> &mut [Link] {
        // SAFETY: the mapping holds that many links; zero bytes are an empty link, since an absent frame is a null
        // pointer. `&mut self` keeps other holders out, and Lua waits.
        unsafe { std::slice::from_raw_parts_mut(self.address(), LINKS) }
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
