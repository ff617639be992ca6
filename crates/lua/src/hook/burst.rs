//! The burst as Lua sees it: one struct a state, at an address that never changes.

use std::ffi::c_void;

use bm_frame::{BURST, Frame, Mask};
use bm_graph::{HookBurst, HookFate, Routes, Stage};

/// Frames that a hook may make for one burst.
pub const MADE: usize = 64;
/// Counters that a hook may have.
pub const COUNTERS: usize = 32;
/// Marks a verdict that names a port.
const SEND: u16 = 0x8000;

/// `struct brickmoon_burst` of `brickmoon/hook.lua`, field by field.
#[repr(C)]
pub struct Shared {
    count: i32,
    port: u16,
    family: u8,
    stage: u8,
    now_ns: u64,
    mask: [u64; BURST / 64],
    packet: *mut Option<Frame>,
    next_hop: *mut u32,
    out: *const u16,
    routes: *const c_void,
    route4: unsafe extern "C" fn(*const c_void, u32) -> u32,
    route6: unsafe extern "C" fn(*const c_void, *const u8) -> u32,
    /// Times that another state has published something, to be read by Lua at any time.
    published: *const c_void,
    /// What `hook.counter` made, in the order of their names.
    pub counters: [u64; COUNTERS],
    made_count: i32,
    made_max: i32,
    made: [Option<Frame>; MADE],
    made_port: [u16; MADE],
    /// 0 for the slow path, a reason's number, or [`SEND`] and a port. All 0 between two bursts.
    verdict: [u16; BURST],
}

/// What `routes` points to for the length of a call.
struct Asked<'a>(&'a dyn Routes);

/// # Safety
/// Called by Lua within a call, with what `routes` holds then.
unsafe extern "C" fn route4(routes: *const c_void, address: u32) -> u32 {
    if routes.is_null() {
        return 0;
    }
    // SAFETY: set by `begin` for the length of the call, null outside of it.
    unsafe { &*routes.cast::<Asked<'_>>() }.0.ipv4(address)
}

/// # Safety
/// As [`route4`]; `address` points to 16 bytes.
unsafe extern "C" fn route6(routes: *const c_void, address: *const u8) -> u32 {
    if routes.is_null() || address.is_null() {
        return 0;
    }
    // SAFETY: as in `route4`; the bytes are Lua's word.
    unsafe {
        let address = u128::from_be_bytes(*address.cast::<[u8; 16]>());
        (*routes.cast::<Asked<'_>>()).0.ipv6(address)
    }
}

impl Shared {
    /// Without a burst.
    pub fn new(published: *const c_void) -> Box<Self> {
        Box::new(Self {
            count: 0,
            port: 0,
            family: 0,
            stage: 0,
            now_ns: 0,
            mask: [0; BURST / 64],
            packet: std::ptr::null_mut(),
            next_hop: std::ptr::null_mut(),
            out: std::ptr::null(),
            routes: std::ptr::null(),
            route4,
            route6,
            published,
            counters: [0; COUNTERS],
            made_count: 0,
            made_max: MADE as i32,
            made: [const { None }; MADE],
            made_port: [0; MADE],
            verdict: [0; BURST],
        })
    }

    /// Shows Lua a burst, for the time of `call`. Without routes there is nothing to be found.
    pub fn with<T>(
        &mut self,
        stage: Stage,
        burst: &mut HookBurst<'_>,
        now_ns: u64,
        call: impl FnOnce() -> T,
    ) -> T {
        self.count = burst.frames.len() as i32;
        self.port = burst.port;
        self.family = burst.family;
        self.stage = stage as u8;
        self.now_ns = now_ns;
        self.mask = burst.mask.words();
        self.packet = burst.frames.as_mut_ptr();
        self.next_hop = burst.room.next_hops.as_mut_ptr();
        self.out = burst.ports.as_ptr();
        self.made_max = (BURST - burst.room.made.len()).min(MADE) as i32;
        let asked = Asked(burst.routes);
        self.routes = std::ptr::from_ref(&asked).cast();
        let result = call();
        self.routes = std::ptr::null();
        result
    }

    /// Carries out what Lua said of the burst: clears the mask, notes fates, hands over the frames made. `dropped` is
    /// told of each reason's number.
    pub fn carry_out(&mut self, burst: &mut HookBurst<'_>, mut dropped: impl FnMut(u16)) {
        let after = Mask::from_words(self.mask).and(burst.mask);
        let gone = burst.mask.without(&after);
        if !gone.is_empty() {
            for place in gone.iter() {
                burst.room.fates[place] = match std::mem::take(&mut self.verdict[place]) {
                    0 => HookFate::Punt,
                    send if send & SEND != 0 => HookFate::Send(send & !SEND),
                    reason => {
                        dropped(reason);
                        HookFate::Drop
                    }
                };
            }
            *burst.mask = after;
        }
        if self.made_count > 0 {
            for at in 0..(self.made_count as usize).min(MADE) {
                let Some(frame) = self.made[at].take() else { continue };
                let place = burst.room.made.len();
                burst.room.made_ports[place.min(BURST - 1)] = self.made_port[at];
                // There is room: `made_max` was what was left.
                let _pushed = burst.room.made.push(frame);
            }
            self.made_count = 0;
        }
    }

    /// Forgets what Lua said, since it failed. Gives the frames that it had made.
    pub fn forget(&mut self) -> impl Iterator<Item = Frame> + '_ {
        self.verdict.fill(0);
        self.made_count = 0;
        self.made.iter_mut().filter_map(Option::take)
    }
}
