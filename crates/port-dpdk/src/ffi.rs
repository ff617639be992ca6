//! The shim's functions, as `c/shim.h` declares them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;

use bm_frame::{FramePool, Freelist};

/// A C string of the shim or of DPDK. It lives at least as long as this thread, but the next call may overwrite it.
///
/// Shared with C: only C makes one.
#[repr(transparent)]
pub(crate) struct CText(NonNull<c_char>);

impl CText {
    pub fn read(&self) -> String {
        // SAFETY: only the functions below make one, with the address of such a string. It does not change during this
        // call, and no other thread has it, since a pointer is not `Send`.
        unsafe { CStr::from_ptr(self.0.as_ptr()) }.to_string_lossy().into_owned()
    }
}

/// A frame's header, opaque here.
pub enum Header {}

/// DPDK's `struct rte_mbuf`, opaque here.
pub enum Mbuf {}

/// Shared with C for the length of a call: C copies it.
#[repr(C)]
pub struct Calls {
    /// With the freelist that Rust lends to the calls below, and does not touch meanwhile.
    pub refill: extern "C" fn(&mut Freelist),
    /// As for `refill`.
    pub make_room: extern "C" fn(&mut Freelist),
    /// With the frame pool that `bm_pool_make` got, which is never freed.
    pub take: extern "C" fn(&FramePool) -> *mut Header,
    pub give: unsafe extern "C" fn(&FramePool, *mut Header),
    pub available: extern "C" fn(&FramePool) -> c_uint,
    pub log: unsafe extern "C" fn(*const c_char, usize),
    pub removed: extern "C" fn(u16),
}

/// Shared with C for the length of a call: passed by address.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Region {
    pub slots: *mut u8,
    pub headers: *mut u8,
    pub count: c_uint,
    pub slot_size: c_uint,
    pub stride: c_uint,
    pub mbuf_offset: c_uint,
    pub page: usize,
    pub bytes: usize,
}

/// Shared with C for the length of a call: passed by address.
#[repr(C)]
pub struct Info {
    pub driver: [c_char; 64],
    pub mac: [u8; 6],
    pub mtu: u16,
    pub mtu_min: u16,
    pub mtu_max: u16,
    pub receive_queues_max: u16,
    pub transmit_queues_max: u16,
    pub has_rss: u8,
}

impl Info {
    pub const EMPTY: Self = Self {
        driver: [0; 64],
        mac: [0; 6],
        mtu: 0,
        mtu_min: 0,
        mtu_max: 0,
        receive_queues_max: 0,
        transmit_queues_max: 0,
        has_rss: 0,
    };
}

/// Shared with C for the length of a call: passed by address.
#[repr(C)]
pub struct Setup {
    pub queues: u16,
    pub mtu: u16,
    pub copied: u8,
    pub is_virtual: u8,
    pub pool: *mut c_void,
}

/// Shared with C for the length of a call: passed by address.
#[repr(C)]
pub struct RssSettings {
    pub key: [u8; 64],
    pub key_bytes: u16,
    pub buckets: u16,
    pub queue: [u16; 512],
}

/// Shared with C for the length of a call: passed by address.
#[repr(C)]
#[derive(Default)]
pub struct Link {
    pub up: u8,
    pub mbps: u32,
}

/// Shared with C for the length of a call: passed by address.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub missed: u64,
    pub no_frame: u64,
    pub receive_errors: u64,
    pub transmit_errors: u64,
}

/// Shared with C for the length of a call: passed by address.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ExtendedStatistic {
    pub name: [c_char; 64],
    pub value: u64,
}

/// Shared with C for the length of a call, in which C counts: passed by address.
#[repr(C)]
pub struct Queue {
    pub port: u16,
    pub queue: u16,
    pub pool: *mut c_void,
    pub own_pool: *mut c_void,
    pub too_long: u64,
    pub no_frame: u64,
    pub invalid: u64,
    pub no_packet: u64,
    pub bytes: u64,
}

// SAFETY: as `c/shim.h` declares them. Those that are safe take numbers, for which DPDK checks whether it has such a port
// and whether the value is possible, and references to what they read or write during the call. They may be called from
// any thread at any time.
unsafe extern "C" {
    pub safe fn bm_version() -> CText;
    pub safe fn bm_error_text(error: c_int) -> CText;
    pub fn bm_eal_start(count: c_int, arguments: *mut *mut c_char, calls: *const Calls) -> c_int;
    pub safe fn bm_eal_folder() -> CText;
    pub fn bm_pool_make(
        name: *const c_char,
        region: *const Region,
        frame_pool: *mut c_void,
        pool: *mut *mut c_void,
    ) -> c_int;
    pub fn bm_device_probe(device: *const c_char, port: *mut u16) -> c_int;
    pub safe fn bm_device_info(port: u16, info: &mut Info) -> c_int;
    pub fn bm_device_setup(
        port: u16,
        setup: *const Setup,
        own_pool: *mut *mut c_void,
        step: &mut Option<CText>,
    ) -> c_int;
    pub fn bm_device_start(port: u16) -> c_int;
    pub fn bm_device_map(port: u16, region: *const Region) -> c_int;
    pub safe fn bm_device_spread(port: u16, spread: &mut RssSettings);
    pub fn bm_device_close(port: u16, own_pool: *mut c_void);
    pub fn bm_device_stop(port: u16) -> c_int;
    pub safe fn bm_device_set_mtu(port: u16, mtu: u16) -> c_int;
    pub safe fn bm_device_set_mac(port: u16, mac: &[u8; 6]) -> c_int;
    pub safe fn bm_device_add_mac(port: u16, mac: &[u8; 6]) -> c_int;
    pub safe fn bm_device_remove_mac(port: u16, mac: &[u8; 6]) -> c_int;
    pub safe fn bm_device_promiscuous(port: u16) -> c_int;
    pub safe fn bm_device_link(port: u16, link: &mut Link) -> c_int;
    pub safe fn bm_device_counts(port: u16, counts: &mut Counts) -> c_int;
    pub fn bm_device_xstats(port: u16, named: *mut ExtendedStatistic, count: c_uint) -> c_int;
    pub fn bm_flow_to_queue(
        port: u16,
        address: *const u8,
        bytes: c_uint,
        queue: u16,
        flow: *mut *mut c_void,
    ) -> c_int;
    pub fn bm_flow_remove(port: u16, flow: *mut c_void);
    pub fn bm_receive(
        queue: *mut Queue,
        stack: *mut c_void,
        freelist: *mut c_void,
        to: *mut *mut Header,
        room: c_uint,
    ) -> c_uint;
    pub fn bm_transmit(
        queue: *mut Queue,
        stack: *mut c_void,
        freelist: *mut c_void,
        places: *mut *mut Header,
        count: c_uint,
    ) -> c_uint;
    pub fn bm_receive_mbufs(
        queue: *mut Queue,
        stack: *mut c_void,
        freelist: *mut c_void,
        mbufs: *mut *mut Mbuf,
        room: c_uint,
    ) -> c_uint;
    pub fn bm_transmit_mbufs(
        queue: *mut Queue,
        stack: *mut c_void,
        freelist: *mut c_void,
        mbufs: *mut *mut Mbuf,
        count: c_uint,
    ) -> c_uint;
}
