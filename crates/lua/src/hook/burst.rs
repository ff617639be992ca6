//! The burst as Lua sees it: one struct per state, at a fixed address.
//!
//! Lua reads and writes it while [`LuaBurst::with`] waits for Lua, so everything that changes is in cells
//! ([`LuaSees`]): with plain fields behind `&mut self` the compiler omitted stores that were only needed during the
//! call.

use std::cell::Cell;
use std::ffi::c_void;

use bm_frame::{BURST, Frame, Mask};
use bm_graph::{HookBurst, HookFate, Routes, Stage};

use crate::shown::LuaSees;

/// The most frames that a hook may create for one burst.
pub(crate) const MADE: usize = 64;
/// The most counters of a hook.
pub const COUNTERS: usize = 32;
/// Marks a verdict that names a port.
const SEND: u16 = 0x8000;

/// `struct brickmoon_burst` of `brickmoon/hook.lua`, field by field.
///
/// Shared with Lua from its first line on; every field that changes is a cell.
#[repr(C)]
pub struct LuaBurst {
    count: Cell<i32>,
    port: Cell<u16>,
    family: Cell<u8>,
    stage: Cell<u8>,
    now_ns: Cell<u64>,
    mask: Cell<[u64; BURST / 64]>,
    packet: Cell<*mut Option<Frame>>,
    next_hop: Cell<*mut u32>,
    out: Cell<*const u16>,
    routes: Cell<*const c_void>,
    route4: unsafe extern "C" fn(*const c_void, u32) -> u32,
    route6: unsafe extern "C" fn(*const c_void, *const u8) -> u32,
    /// The number of publications by other states, which Lua reads at any time.
    published: *const c_void,
    /// The counters of `hook.counter`, in the order of their names.
    pub counters: [Cell<u64>; COUNTERS],
    made_count: Cell<i32>,
    made_max: Cell<i32>,
    made: [Cell<Option<Frame>>; MADE],
    made_port: [Cell<u16>; MADE],
    /// 0 for the slow path, a reason's number, or [`SEND`] and a port. All 0 between two bursts.
    verdict: [Cell<u16>; BURST],
}

// SAFETY: `repr(C)`; all fields are cells but two functions and `published`, which are never written again.
unsafe impl LuaSees for LuaBurst {}

/// What `routes` points to during a call.
struct RoutesRef<'a>(&'a dyn Routes);

/// # Safety
/// Called by Lua within a call, with the value of `routes`.
unsafe extern "C" fn route4(routes: *const c_void, address: u32) -> u32 {
    if routes.is_null() {
        return 0;
    }
    // SAFETY: set by `begin` for the length of the call, null outside of it.
    unsafe { &*routes.cast::<RoutesRef<'_>>() }.0.ipv4(address)
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
        (*routes.cast::<RoutesRef<'_>>()).0.ipv6(address)
    }
}

impl LuaBurst {
    /// Without a burst.
    pub fn new(published: *const c_void) -> Self {
        Self {
            count: Cell::default(),
            port: Cell::default(),
            family: Cell::default(),
            stage: Cell::default(),
            now_ns: Cell::default(),
            mask: Cell::default(),
            packet: Cell::new(std::ptr::null_mut()),
            next_hop: Cell::new(std::ptr::null_mut()),
            out: Cell::new(std::ptr::null()),
            routes: Cell::new(std::ptr::null()),
            route4,
            route6,
            published,
            counters: [const { Cell::new(0) }; COUNTERS],
            made_count: Cell::default(),
            made_max: Cell::new(MADE as i32),
            made: [const { Cell::new(None) }; MADE],
            made_port: [const { Cell::new(0) }; MADE],
            verdict: [const { Cell::new(0) }; BURST],
        }
    }

    /// Shows a burst to Lua during `call`. Without routes every lookup fails.
    pub fn with<T>(
        &self,
        stage: Stage,
        burst: &mut HookBurst<'_>,
        now_ns: u64,
        call: impl FnOnce() -> T,
    ) -> T {
        self.count.set(burst.frames.len() as i32);
        self.port.set(burst.port);
        self.family.set(burst.family);
        self.stage.set(stage as u8);
        self.now_ns.set(now_ns);
        self.mask.set(burst.mask.words());
        self.packet.set(burst.frames.as_mut_ptr());
        self.next_hop.set(burst.room.next_hops.as_mut_ptr());
        self.out.set(burst.ports.as_ptr());
        self.made_max.set((BURST - burst.room.made.len()).min(MADE) as i32);
        let asked = RoutesRef(burst.routes);
        self.routes.set(std::ptr::from_ref(&asked).cast());
        let result = call();
        self.routes.set(std::ptr::null());
        result
    }

    /// Carries out Lua's decisions for the burst: clears the mask, stores decisions, passes on created frames.
    /// `dropped` is called with each reason's number.
    pub fn carry_out(&self, burst: &mut HookBurst<'_>, mut dropped: impl FnMut(u16)) {
        let after = Mask::from_words(self.mask.get()).and(burst.mask);
        let gone = burst.mask.without(&after);
        if !gone.is_empty() {
            for place in gone.iter() {
                burst.room.fates[place] = match self.verdict[place].take() {
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
        let made_count = self.made_count.take();
        for at in 0..(made_count.max(0) as usize).min(MADE) {
            let Some(frame) = self.made[at].take() else { continue };
            let place = burst.room.made.len();
            burst.room.made_ports[place.min(BURST - 1)] = self.made_port[at].get();
            // There is room: `made_max` was what was left.
            let _pushed = burst.room.made.push(frame);
        }
    }

    /// Discards Lua's decisions after a failure. Returns the frames that it had created.
    pub fn forget(&self) -> impl Iterator<Item = Frame> + '_ {
        self.verdict.iter().for_each(|verdict| verdict.set(0));
        self.made_count.set(0);
        self.made.iter().filter_map(Cell::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shown::ShownToLua;
    use bm_graph::HookRoom;
    use std::hint::black_box;

    /// The same next hop for every address.
    struct ConstFib(u32);

    impl Routes for ConstFib {
        fn ipv4(&self, _address: u32) -> u32 {
            self.0
        }

        fn ipv6(&self, _address: u128) -> u32 {
            self.0
        }
    }

    /// Stands in for Lua, which was given the address when its state was made and nothing else since.
    extern "C" fn hook(at: *mut LuaBurst) -> u32 {
        // SAFETY: the struct lives and its fields are cells; `routes` is set for the time of this call.
        unsafe {
            let shared = &*at;
            shared.mask.set([shared.mask.get()[0] & !(1 << 3), 0, 0, 0]);
            shared.verdict[3].set(SEND | 9);
            let found = (shared.route4)(shared.routes.get(), 1)
                + (shared.route6)(shared.routes.get(), [0; 16].as_ptr());
            found + u32::from(shared.family.get()) + shared.count.get() as u32
        }
    }

    #[test]
    fn frames_are_accessible_only_during_a_call() {
        let shared = ShownToLua::new(LuaBurst::new(std::ptr::null()));
        let (address, hook) =
            (black_box(shared.address()), black_box(hook as extern "C" fn(*mut LuaBurst) -> u32));
        let (mut frames, mut mask, mut room) = ([const { None }; 4], Mask::first(4), HookRoom::new());
        let mut burst = HookBurst {
            frames: &mut frames,
            mask: &mut mask,
            room: &mut room,
            ports: &[],
            port: 0,
            family: 6,
            now_ns: 0,
            routes: &ConstFib(50),
        };
        assert_eq!(shared.with(Stage::Lookup, &mut burst, 0, || hook(address)), 50 + 50 + 6 + 4);
        shared.carry_out(&mut burst, |_| {});
        assert_eq!((burst.mask.words()[0], room.fates[3]), (0b0111, HookFate::Send(9)));
        // After the call there are no routes: whoever asks gets none.
        // SAFETY: as for a call; a null pointer is allowed for.
        assert_eq!(unsafe { (shared.route4)(shared.routes.get(), 1) }, 0);
    }
}
