//! DPDK's log and its texts for errors, as brickmoon's errors quote them.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int};

use bm_sys::Mutex;

use crate::ffi;

/// Lines of DPDK's log that are kept for errors.
const LINES: usize = 6;

static RECENT: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// The text for an error number of DPDK.
pub(crate) fn error_text(error: c_int) -> String {
    ffi::bm_error_text(error.abs()).read()
}

/// DPDK's log lines since the last call.
pub(crate) fn log_lines() -> Vec<String> {
    RECENT.lock().drain(..).collect()
}

/// # Safety
/// `text` must be `length` bytes long.
pub(crate) unsafe extern "C" fn log(text: *const c_char, length: usize) {
    // SAFETY: by the contract.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
    let mut recent = RECENT.lock();
    for line in String::from_utf8_lossy(bytes).lines().filter(|line| !line.trim().is_empty()) {
        tracing::debug!("DPDK: {}", line.trim());
        recent.push_back(line.trim().into());
        if recent.len() > LINES {
            recent.pop_front();
        }
    }
}
