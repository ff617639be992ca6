//! Calls that can be interrupted from outside (`c/guard.c`), and the threads that check whether they must be.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use mlua::ffi;

/// The status of a guarded call that was interrupted; all others are LuaJIT's own.
pub(crate) const INTERRUPTED: c_int = 1000;

/// What the supervisor sees of a thread that calls hooks. The same in `c/guard.c`.
///
/// Shared with C, with a signal handler and with the supervisor's thread at any time: only atomics, on both sides.
#[repr(C)]
#[derive(Default)]
pub struct CallState {
    /// Odd while a hook runs.
    calls: AtomicU64,
    broken: AtomicU64,
    thread: AtomicI32,
    /// Not zero if calls are first ended by an error, before they are interrupted by a jump.
    gentle: AtomicI32,
}

impl CallState {
    /// Whether a call is running.
    pub(crate) fn is_running(&self) -> bool {
        !self.calls.load(Ordering::Relaxed).is_multiple_of(2)
    }

    /// From now on calls are first ended by an error, or interrupted by a jump at once.
    pub(crate) fn set_gentle(&self, gentle: bool) {
        self.gentle.store(gentle.into(), Ordering::Relaxed);
    }
}

/// The functions of LuaJIT that a guarded call needs. The same in `c/guard.c`.
///
/// Shared with C, which reads it; it never changes.
#[repr(C)]
struct LuaCalls {
    pcall: unsafe extern "C-unwind" fn(*mut ffi::lua_State, c_int, c_int, c_int) -> c_int,
    push: unsafe extern "C-unwind" fn(*mut ffi::lua_State, c_int),
    sethook: unsafe extern "C-unwind" fn(*mut ffi::lua_State, Option<ffi::lua_Hook>, c_int, c_int) -> c_int,
    raise: ffi::lua_Hook,
}

static LUA: LuaCalls =
    LuaCalls { pcall: ffi::lua_pcall, push: ffi::lua_pushvalue, sethook: ffi::lua_sethook, raise };

/// The error of interrupted calls.
const BROKEN: &CStr = c"it did not return, and was interrupted";
/// Stack levels that are searched for the line to blame.
const LEVELS: c_int = 100;

/// Raises an error at the innermost line of the user's code.
///
/// # Safety
/// Called by LuaJIT as a hook, on the state that is at work. Nothing here has a destructor: the error leaves it.
unsafe extern "C-unwind" fn raise(state: *mut ffi::lua_State, _at: *mut ffi::lua_Debug) {
    // SAFETY: a zeroed record is one that lua_getstack fills; its strings live as long as their functions do.
    unsafe {
        ffi::lua_sethook(state, None, 0, 0);
        let mut at: ffi::lua_Debug = std::mem::zeroed();
        for level in 0..LEVELS {
            if ffi::lua_getstack(state, level, &mut at) == 0 {
                break;
            }
            ffi::lua_getinfo(state, c"Sl".as_ptr(), &mut at);
            let source = CStr::from_ptr(at.source).to_bytes();
            if source.starts_with(b"@") && !source.starts_with(b"@brickmoon/") && at.currentline > 0 {
                let form: *const c_char = c"%s:%d: %s".as_ptr();
                ffi::lua_pushfstring(state, form, at.short_src.as_ptr(), at.currentline, BROKEN.as_ptr());
                ffi::lua_error(state);
            }
        }
        ffi::lua_pushstring(state, BROKEN.as_ptr());
        ffi::lua_error(state)
    }
}

/// Memory for the jump buffer, whose size only C knows. C and its signal handler write there during a call, which
/// gets its address each time; Rust reads nothing of it.
pub struct Guard(Box<[u128]>);

// SAFETY: as in `c/guard.c`. The size is a constant. What breaks a call stores to atomics and sends a signal; a thread that
// is gone gets none, and any other looks at its own guard.
unsafe extern "C" {
    fn bm_guard_install() -> c_int;
    safe fn bm_guard_break(call_state: &CallState, call: u64);
    fn bm_guard_hold(held: c_int) -> c_int;
    safe fn bm_guard_size() -> usize;
    fn bm_guard_left_at(guard: *const c_void) -> usize;
    fn bm_guard_call(
        guard: *mut c_void,
        call_state: *const CallState,
        state: *mut ffi::lua_State,
        lua: *const LuaCalls,
        function: c_int,
        argument: c_int,
    ) -> c_int;
}

/// Installs the handler, once per process; returns the system's error if it refuses.
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
        Self(vec![0; bm_guard_size().div_ceil(16)].into())
    }

    /// Calls the function at place `function` of `state`'s stack with the value at `argument`; the message handler
    /// is at place 1.
    ///
    /// # Safety
    /// The state must belong to this thread and its stack have these values, and nothing of its runtime be borrowed. After
    /// [`INTERRUPTED`] it must never be used again, not even be closed.
    pub unsafe fn call(
        &mut self,
        call_state: &CallState,
        state: *mut ffi::lua_State,
        function: c_int,
        argument: c_int,
    ) -> c_int {
        let guard = self.0.as_mut_ptr().cast();
        // SAFETY: the guard has the size that C wants; the rest is the caller's word.
        unsafe { bm_guard_call(guard, call_state, state, &LUA, function, argument) }
    }

    /// The address at which the last interrupted call was executing.
    pub(crate) fn left_at(&self) -> usize {
        // SAFETY: the guard has the size that C wants, and no call runs.
        unsafe { bm_guard_left_at(self.0.as_ptr().cast()) }
    }
}

/// Runs `work`, which Lua called, without being interrupted: it may hold a lock.
pub(crate) fn uninterrupted<T>(work: impl FnOnce() -> T) -> T {
    let before = hold(1);
    let result = work();
    hold(before);
    result
}

/// Only for [`uninterrupted`], which passes on what was there before.
fn hold(held: c_int) -> c_int {
    // SAFETY: a store in this thread's own guard. Where it allows for interruption, nothing of Rust is on the stack above
    // the call of Lua, as before.
    unsafe { bm_guard_hold(held) }
}

/// A sleeping call that has lasted this long hangs.
pub const HANGS_AFTER: Duration = Duration::from_millis(500);
/// A call that has used this much CPU time hangs: time used by other threads does not count.
const LOOPS_AFTER: Duration = Duration::from_millis(100);
/// A call that cannot be interrupted for this long will never be.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// How often one check tries to interrupt the thread: it may be inside malloc now, but not a moment later.
const ATTEMPTS: u32 = 20;

/// A call that lasts this long has not ended although it was interrupted.
const OVERDUE_AFTER: Duration = Duration::from_secs(1);

/// The limits for a call.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// CPU time: time used by other threads does not count.
    pub loops: Duration,
    /// By the clock, if it sleeps.
    pub sleeps: Duration,
}

/// For calls that packets wait for.
const AT_WORK: Limits = Limits { loops: LOOPS_AFTER, sleeps: HANGS_AFTER };
/// Before packets flow, for files that are run and apps that are created: milliseconds of CPU time.
static LOADING_MS: AtomicU64 = AtomicU64::new(2000);
/// Before packets flow, if they sleep: by the clock.
const LOADING_SLEEPS: Duration = Duration::from_secs(30);
/// For a worker's apps that are created or changed while packets flow (to Linux, meanwhile).
pub(crate) const RELOADING: Limits =
    Limits { loops: Duration::from_millis(300), sleeps: Duration::from_secs(1) };
/// What a call may take to end by an error, once requested.
const ENDING: Limits = Limits { loops: Duration::from_millis(50), sleeps: Duration::from_millis(200) };
/// How often a call is checked that has no other supervisor.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What to do about a call that hangs while packets wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnHang {
    /// It is interrupted, and its thread continues without it.
    #[default]
    Interrupt,
    /// Nothing: it is reported as stuck after ten seconds.
    Wait,
}

/// A call that was running at the first check.
#[derive(Clone, Copy)]
struct RunningCall {
    call: u64,
    since: Instant,
    /// The CPU time of its thread then.
    used: Option<Duration>,
    /// It was requested to end; times count from then on.
    interrupted: bool,
}

/// Watches one thread.
pub struct Watch {
    seen: Option<RunningCall>,
    limits: Limits,
}

impl Default for Watch {
    fn default() -> Self {
        Self::new(AT_WORK)
    }
}

impl Watch {
    /// With its own limits.
    pub fn new(limits: Limits) -> Self {
        Self { seen: None, limits }
    }

    /// Whether the call has been running for so long at `now` that it should have been interrupted.
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.seen.is_some_and(|seen| now.duration_since(seen.since) > OVERDUE_AFTER)
    }

    /// Checks once, at `now`. Interrupts a call that hangs, if it may; returns for how long it has run if it resists so
    /// long that it will never end.
    pub fn look(&mut self, call_state: &CallState, now: Instant, on_hang: OnHang) -> Option<Duration> {
        let call = call_state.calls.load(Ordering::Relaxed);
        if call.is_multiple_of(2) {
            self.seen = None;
            return None;
        }
        let thread = call_state.thread.load(Ordering::Relaxed);
        let used = processor_time(thread);
        let Some(seen) = self.seen.filter(|seen| seen.call == call) else {
            self.seen = Some(RunningCall { call, since: now, used, interrupted: false });
            return None;
        };
        let lasts = now.duration_since(seen.since);
        let worked = used.zip(seen.used).map_or(Duration::ZERO, |(used, before)| used.saturating_sub(before));
        let limits = if seen.interrupted { ENDING } else { self.limits };
        if worked < limits.loops && (lasts < limits.sleeps || is_runnable(thread)) {
            return None;
        }
        if on_hang == OnHang::Wait {
            return (lasts > STUCK_AFTER).then_some(lasts);
        }
        if call_state.gentle.load(Ordering::Relaxed) != 0 && !seen.interrupted {
            bm_guard_break(call_state, call);
            self.seen = Some(RunningCall { call, since: now, used, interrupted: true });
            return None;
        }
        for _ in 0..ATTEMPTS {
            bm_guard_break(call_state, call);
            std::thread::sleep(Duration::from_millis(1));
            if call_state.calls.load(Ordering::Relaxed) != call {
                return None;
            }
        }
        (lasts > STUCK_AFTER).then_some(lasts)
    }
}

/// Does `work`, while another thread supervises its guarded calls by calling `look` repeatedly. A call that is
/// interrupted ends by an error if possible.
pub fn watched<T>(mut look: impl FnMut(&CallState) + Send, work: impl FnOnce(&CallState) -> T) -> T {
    let call_state = CallState::default();
    call_state.set_gentle(true);
    std::thread::scope(|scope| {
        let (over, waits) = channel::<()>();
        let call_state = &call_state;
        let thread = std::thread::Builder::new().name("bm-watch".into());
        // Without the thread there is no check, and everything else works.
        let _unwatched = thread.spawn_scoped(scope, move || {
            while waits.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                look(call_state);
            }
        });
        let result = work(call_state);
        drop(over);
        result
    })
}

/// Sets how much CPU time files and apps may use to be loaded before packets flow; two seconds by default.
pub fn limit_loading(limit: Duration) {
    LOADING_MS.store(limit.as_millis() as u64, Ordering::Relaxed);
}

/// Does `work`, which loads files or apps before packets flow, and interrupts it if it takes too long.
pub fn loading<T>(work: impl FnOnce(&CallState) -> T) -> T {
    let loops = Duration::from_millis(LOADING_MS.load(Ordering::Relaxed));
    let mut watch = Watch::new(Limits { loops, sleeps: LOADING_SLEEPS });
    // A call that cannot be interrupted does no harm yet.
    watched(move |call_state| _ = watch.look(call_state, Instant::now(), OnHang::Interrupt), work)
}

/// Whether a thread only waits for its turn: then the machine is slow, not the thread.
fn is_runnable(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // The name is in parentheses, and may contain some (proc_pid_stat(5)).
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('R'))
}

/// The CPU time of a thread of this process; `None` if there is no such thread.
fn processor_time(thread: i32) -> Option<Duration> {
    // As in the kernel's posix-timers.h: the clock of one thread (4) by the scheduler's accounting (2).
    let clock = (!thread << 3) | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a whole timespec that outlives the call, which writes nothing else.
    let failed = unsafe { libc::clock_gettime(clock, &mut time) } != 0;
    (!failed && thread > 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}
