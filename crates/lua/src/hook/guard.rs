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

/// A call that sleeps, and has lasted so long by the clock, hangs.
pub const HANGS_AFTER: Duration = Duration::from_millis(500);
/// One that has used so much of its processor hangs: what other threads take from it does not count.
const LOOPS_AFTER: Duration = Duration::from_millis(100);
/// One that cannot be broken off for so long never will be.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// How often the thread is asked in one look: it may be in the middle of malloc now, and not a moment later.
const ATTEMPTS: u32 = 20;

/// A call that was at work when it was looked at first.
#[derive(Clone, Copy)]
struct Seen {
    call: u64,
    since: Instant,
    /// What its thread had used of its processor then.
    used: Option<Duration>,
}

/// Watches one thread.
#[derive(Default)]
pub struct Watch {
    seen: Option<Seen>,
}

impl Watch {
    /// Looks once, at `now`. Breaks off a call that hangs; says how long it has gone on if it resists for so long that
    /// it always will.
    pub fn look(&mut self, pulse: &Pulse, now: Instant) -> Option<Duration> {
        let call = pulse.calls.load(Ordering::Relaxed);
        if call.is_multiple_of(2) {
            self.seen = None;
            return None;
        }
        let thread = pulse.thread.load(Ordering::Relaxed);
        let used = processor_time(thread);
        let Some(seen) = self.seen.filter(|seen| seen.call == call) else {
            self.seen = Some(Seen { call, since: now, used });
            return None;
        };
        let lasts = now.duration_since(seen.since);
        let worked = used.zip(seen.used).map_or(Duration::ZERO, |(used, before)| used.saturating_sub(before));
        if worked < LOOPS_AFTER && (lasts < HANGS_AFTER || is_runnable(thread)) {
            return None;
        }
        for _ in 0..ATTEMPTS {
            // SAFETY: the pulse lives; a thread that is gone gets no signal, any other looks at its own guard.
            unsafe { bm_guard_break(pulse, call) };
            std::thread::sleep(Duration::from_millis(1));
            if pulse.calls.load(Ordering::Relaxed) != call {
                return None;
            }
        }
        (lasts > STUCK_AFTER).then_some(lasts)
    }
}

/// Whether a thread only waits for its turn: then the machine is slow, and not the thread.
fn is_runnable(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // The name stands in brackets, and may hold some (proc_pid_stat(5)).
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('R'))
}

/// What a thread of this process has used of its processor; `None` if there is no such thread.
fn processor_time(thread: i32) -> Option<Duration> {
    // As in the kernel's posix-timers.h: the clock of one thread (4) by what the scheduler counted (2).
    let clock = (!thread << 3) | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a whole timespec that outlives the call, which writes nothing else.
    let failed = unsafe { libc::clock_gettime(clock, &mut time) } != 0;
    (!failed && thread > 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}
