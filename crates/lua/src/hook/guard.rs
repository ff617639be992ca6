//! Calls that can be broken off from outside (`c/guard.c`), and who sees that they must be.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mlua::ffi;

/// What a guarded call gives when it was broken off; all others are LuaJIT's own.
pub const BROKEN_OFF: c_int = 1000;

/// What the supervisor sees of a thread that calls hooks. The same in `c/guard.c`.
#[repr(C)]
#[derive(Default)]
pub struct Pulse {
    /// Odd while a hook runs.
    calls: AtomicU64,
    broken: AtomicU64,
    thread: AtomicI32,
}

/// Memory for a way back, whose size only C knows.
pub struct Guard(Box<[u128]>);

unsafe extern "C" {
    fn bm_guard_install() -> c_int;
    fn bm_guard_break(pulse: *const Pulse, call: u64);
    fn bm_guard_hold(held: c_int) -> c_int;
    fn bm_guard_size() -> usize;
    fn bm_guard_call(
        guard: *mut c_void,
        pulse: *const Pulse,
        state: *mut ffi::lua_State,
        pcall: unsafe extern "C-unwind" fn(*mut ffi::lua_State, c_int, c_int, c_int) -> c_int,
        push: unsafe extern "C-unwind" fn(*mut ffi::lua_State, c_int),
        function: c_int,
        argument: c_int,
    ) -> c_int;
}

/// Installs the handler, once a process; what the system said if it refused.
pub fn install() -> std::io::Result<()> {
    static DONE: OnceLock<i32> = OnceLock::new();
    // SAFETY: a handler that looks at nothing but its thread's own guard; called once.
    match DONE.get_or_init(|| unsafe { bm_guard_install() }) {
        0 => Ok(()),
        &error => Err(std::io::Error::from_raw_os_error(error)),
    }
}

impl Guard {
    pub fn new() -> Self {
        // SAFETY: it only tells a size.
        let bytes = unsafe { bm_guard_size() };
        Self(vec![0; bytes.div_ceil(16)].into())
    }

    /// Calls the function at place `function` of `state`'s stack with the value at `argument`; the message handler
    /// is at place 1.
    ///
    /// # Safety
    /// The state is this thread's alone and its stack has these values. After [`BROKEN_OFF`] it is never touched
    /// again, not even to be closed.
    pub unsafe fn call(
        &mut self,
        pulse: &Pulse,
        state: *mut ffi::lua_State,
        function: c_int,
        argument: c_int,
    ) -> c_int {
        let guard = self.0.as_mut_ptr().cast();
        // SAFETY: the guard has the size that C wants; the rest is the caller's word.
        unsafe { bm_guard_call(guard, pulse, state, ffi::lua_pcall, ffi::lua_pushvalue, function, argument) }
    }
}

/// Runs `work`, which Lua called, without being broken off: it may hold a lock.
pub fn held<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: a store in this thread's own guard.
    let before = unsafe { bm_guard_hold(1) };
    let result = work();
    // SAFETY: as above.
    unsafe { bm_guard_hold(before) };
    result
}

/// How often the thread is asked in one look: it may be in the middle of malloc now, and not a moment later.
const ATTEMPTS: u32 = 20;

/// Watches one thread.
#[derive(Default)]
pub struct Watch {
    seen: Option<(u64, Instant)>,
}

impl Watch {
    /// Looks once. Breaks a call off that has gone on for `most`; says how long it has gone on if it resists.
    pub fn look(&mut self, pulse: &Pulse, most: Duration, now: Instant) -> Option<Duration> {
        let calls = pulse.calls.load(Ordering::Relaxed);
        let since = match self.seen {
            Some((seen, since)) if seen == calls && calls % 2 == 1 => since,
            _ => {
                self.seen = Some((calls, now));
                return None;
            }
        };
        let lasts = now.duration_since(since);
        if lasts < most {
            return None;
        }
        for _ in 0..ATTEMPTS {
            // SAFETY: the pulse lives; a thread that is gone gets no signal, any other looks at its own guard.
            unsafe { bm_guard_break(pulse, calls) };
            std::thread::sleep(Duration::from_millis(1));
            if pulse.calls.load(Ordering::Relaxed) != calls {
                return None;
            }
        }
        Some(lasts)
    }
}
