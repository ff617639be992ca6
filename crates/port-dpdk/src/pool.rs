//! The mempool over a frame region: one for each region, as long as the process lives.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use bm_frame::{FramePool, HEADER_STRIDE, MBUF_OFFSET, Memory, Pages};
use bm_sys::Mutex;

use crate::DpdkError;
use crate::ffi::{self, Region};
use crate::log;

/// A mempool of DPDK.
#[derive(Clone, Copy)]
pub(crate) struct Pool(*mut c_void);

// SAFETY: a mempool may be used by many threads, and is never freed.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    pub fn pointer(self) -> *mut c_void {
        self.0
    }
}

static POOLS: Mutex<Vec<(usize, Pool)>> = Mutex::new(Vec::new());

/// Describes a memory region for the shim.
pub(crate) fn region(memory: &Memory) -> Region {
    let page = if memory.pages() == Pages::Huge { 2 << 20 } else { rustix::param::page_size() };
    Region {
        slots: memory.base().as_ptr(),
        headers: memory.headers().as_ptr(),
        count: memory.slots() as u32,
        slot_size: memory.slot_size() as u32,
        stride: HEADER_STRIDE as u32,
        mbuf_offset: MBUF_OFFSET as u32,
        page,
        bytes: memory.region_bytes(),
    }
}

/// The pool over the slots of `frame_pool`, created at the first call for it.
pub(crate) fn of_frames(frame_pool: &Arc<FramePool>) -> Result<Pool, DpdkError> {
    let mut pools = POOLS.lock();
    let key = frame_pool.memory().base().as_ptr() as usize;
    if let Some((_, pool)) = pools.iter().find(|(base, _)| *base == key) {
        return Ok(*pool);
    }
    let name = CString::new(format!("bm-{key:x}")).unwrap_or_default();
    let mut made = std::ptr::null_mut();
    // The pool outlives all current owners of the frame pool.
    let kept = Arc::into_raw(frame_pool.clone()).cast_mut().cast();
    // SAFETY: the region is described correctly, all its bytes are mapped and stay so; the frame pool is never freed.
    let done = unsafe { ffi::bm_pool_make(name.as_ptr(), &region(frame_pool.memory()), kept, &mut made) };
    if done < 0 {
        return Err(DpdkError::Memory { why: log::error_text(done), log: log::log_lines() });
    }
    pools.push((key, Pool(made)));
    Ok(Pool(made))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_failed_can_be_made_again() {
        crate::eal::start(true).unwrap();
        let frame_pool = FramePool::new(64, 2048).unwrap();
        let (name, mut made) = (CString::new("bm-again").unwrap(), std::ptr::null_mut());
        let kept: *mut c_void = Arc::into_raw(frame_pool.clone()).cast_mut().cast();
        let whole = region(frame_pool.memory());
        // The last one has 192 bytes.
        let headers = whole.headers.wrapping_add(8);
        let shifted = Region { headers, ..whole };
        let mut make = |region: &Region| {
            // SAFETY: all bytes of the region are mapped, the frame pool is never freed, and nobody has frames of it.
            unsafe { ffi::bm_pool_make(name.as_ptr(), region, kept, &mut made) }
        };
        // Headers that do not begin at a line leave room for one less.
        assert_eq!(make(&shifted), -libc::ENOSPC);
        assert_eq!(make(&whole), 0);
    }
}
