//! DPDK's environment (EAL): started once per process, with what DPDK calls of brickmoon.

use std::ffi::{CString, c_char, c_int, c_uint};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::OnceLock;

use bm_frame::{Frame, FramePool, Freelist};

use crate::DpdkError;
use crate::ffi::{self, Calls, Header};
use crate::log::{error_text, log, log_lines};
use crate::shared;

/// With at least this many free huge pages, DPDK's own memory is on huge pages.
const HUGE_PAGES: usize = 96;
/// MiB of memory for DPDK itself: rings, and frames of drivers that require it.
const OWN_MIB: &str = "128";

/// Prefix of the EAL's folder; the process ID follows.
const FOLDER: &str = "brickmoon-";

/// Whether DPDK was started, and if so whether it uses huge pages.
static STARTED: OnceLock<Result<bool, DpdkError>> = OnceLock::new();

/// Version of the DPDK that is linked.
pub(crate) fn version() -> String {
    ffi::bm_version().read()
}

/// Starts DPDK if it does not run yet, for a device that allows DPDK's own memory to be on huge pages or not. Returns
/// whether it is on huge pages.
///
/// A device that shares memory with another process (net_virtio_user) passes it as files, eight at most, and each
/// huge page is a file of its own.
pub(crate) fn start(huge_pages: bool) -> Result<bool, DpdkError> {
    STARTED.get_or_init(|| start_aside(huge_pages && free_huge_pages() >= HUGE_PAGES)).clone()
}

/// In a separate thread, because the EAL pins the calling thread to a core of its choice.
fn start_aside(huge_pages: bool) -> Result<bool, DpdkError> {
    let started = std::thread::Builder::new().name("bm-eal".into()).spawn(move || start_here(huge_pages));
    let why = match started.map(std::thread::JoinHandle::join) {
        Ok(Ok(result)) => return result,
        Ok(Err(_)) => "the thread that starts it panicked".into(),
        Err(error) => error.to_string(),
    };
    Err(DpdkError::Eal { why, log: log_lines() })
}

fn start_here(huge_pages: bool) -> Result<bool, DpdkError> {
    let calls = Calls { refill, make_room, take, give, available, log, removed };
    let texts: Vec<CString> =
        arguments(huge_pages).into_iter().map(|text| CString::new(text).unwrap_or_default()).collect();
    // The EAL reorders its arguments, and keeps some.
    let mut pointers: Vec<*mut c_char> = texts.into_iter().map(CString::into_raw).collect();
    let count = pointers.len() as c_int;
    pointers.push(std::ptr::null_mut());
    let pointers = Box::leak(pointers.into_boxed_slice());
    // SAFETY: `count` texts that are never freed, with a null pointer behind; the calls are copied.
    let done = unsafe { ffi::bm_eal_start(count, pointers.as_mut_ptr(), &calls) };
    if done < 0 {
        return Err(DpdkError::Eal { why: error_text(done), log: log_lines() });
    }
    // SAFETY: a plain function. Whatever else of DPDK runs when the process ends, ends with it.
    unsafe { libc::atexit(remove_folder) };
    remove_old_folders();
    Ok(huge_pages)
}

/// The folder where the EAL keeps files of this process: no files with these options, but it creates the folder.
fn folder() -> PathBuf {
    PathBuf::from(ffi::bm_eal_folder().read())
}

extern "C" fn remove_folder() {
    // Files that another process left there must not be removed.
    let _kept = std::fs::remove_dir(folder());
}

/// Removes folders of processes that were killed.
fn remove_old_folders() {
    let siblings = folder().parent().map(std::fs::read_dir).into_iter().flatten().flatten().flatten();
    for sibling in siblings {
        let name = sibling.file_name().to_string_lossy().into_owned();
        let Some(process) = name.strip_prefix(FOLDER) else { continue };
        if !Path::new("/proc").join(process).exists() {
            // A folder that is not empty stays.
            let _kept = std::fs::remove_dir(sibling.path());
        }
    }
}

/// One core, because workers are not started by DPDK; no files; PCI devices only when they are named.
fn arguments(huge_pages: bool) -> Vec<String> {
    let core = std::fs::read_to_string("/proc/self/status").ok().and_then(|status| {
        let allowed =
            status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().to_string();
        Some(allowed.split([',', '-']).next()?.to_string())
    });
    let mut arguments = vec![
        "brickmoon".into(),
        format!("--lcores=0@{}", core.unwrap_or_else(|| "0".into())),
        format!("--file-prefix={FOLDER}{}", std::process::id()),
        "--no-telemetry".into(),
        "-m".into(),
        OWN_MIB.into(),
        // Matches nothing but a bridge that no driver uses: devices are probed by name later.
        "-a".into(),
        "0000:00:00.0".into(),
    ];
    if huge_pages {
        arguments.push("--in-memory".into());
    } else {
        arguments.extend(["--no-huge".into(), "--no-shconf".into()]);
    }
    arguments
}

fn free_huge_pages() -> usize {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = info.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    free.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

extern "C" fn refill(freelist: &mut Freelist) {
    freelist.refill();
}

extern "C" fn make_room(freelist: &mut Freelist) {
    freelist.make_room();
}

extern "C" fn take(frame_pool: &FramePool) -> *mut Header {
    frame_pool.take().map_or(std::ptr::null_mut(), |frame| frame.into_header().as_ptr().cast())
}

/// # Safety
/// `header` must be that of a frame of this frame pool that the caller owns, or null.
unsafe extern "C" fn give(frame_pool: &FramePool, header: *mut Header) {
    let Some(header) = NonNull::new(header.cast::<u8>()) else { return };
    // SAFETY: by the contract.
    frame_pool.give(unsafe { Frame::from_header(header) });
}

extern "C" fn available(frame_pool: &FramePool) -> c_uint {
    frame_pool.available() as c_uint
}

extern "C" fn removed(port: u16) {
    shared::removed(port);
}
