//! What a state and Rust share: free frames, links, apps in Rust, and when to stop.
//!
//! Lua accesses it through the FFI at a fixed address (`struct brickmoon` in `core/runtime.lua`): allocating, freeing
//! and passing on packets are loads and stores. Rust is called only for rare operations: an empty or full list of
//! frames, sleeping.
//!
//! Lua writes whenever it runs, so what it sees is in cells ([`LuaSees`]), and of a [`Runtime`] that Lua knows there
//! is neither `&` nor `&mut`: code with its address borrows a field only while Lua waits.

mod native;

use std::cell::{Cell, UnsafeCell};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Instant;

use bm_frame::{FramePool, Freelist, StackHead};
use bm_link::Link;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) use native::Native;

use crate::links::{LINKS, Links};
use crate::report::ReportSlot;
use crate::shown::{LuaSees, ShownToLua};

/// Longest sleep while an app must be asked again.
const SOON_NS: u64 = 100_000;

/// Set by a signal: programs end at the next breath.
pub(crate) static INTERRUPTED: AtomicI32 = AtomicI32::new(0);

/// What Lua sees. The fields are in the order of `struct brickmoon`.
///
/// Shared with Lua, and `setup` with the supervisor's thread, at any time: only cells, atomics and addresses.
#[repr(C)]
pub(crate) struct LuaRuntime {
    pub freelist: *mut StackHead,
    pub links: *mut Link,
    pub links_max: Cell<i32>,
    /// Bytes that a packet can hold at its default offset.
    pub room: Cell<i32>,
    /// Nanoseconds since the state began, written by the engine once a breath.
    pub now_ns: Cell<u64>,
    /// Not zero once an app in Rust has panicked.
    pub failed: Cell<i32>,
    pub worker: Cell<i32>,
    /// Frames that apps in Rust sent to links or received.
    pub moved: Cell<u64>,
    pub interrupted: *const AtomicI32,
    /// Not zero when the worker is to leave its loop.
    pub pause: *const AtomicI32,
    /// Not zero once another worker of the program has failed.
    pub trouble: *const AtomicI32,
    /// Not zero when a report of this worker is requested.
    pub asked: *const AtomicI32,
    refill: unsafe extern "C" fn(*mut Runtime),
    spill: unsafe extern "C" fn(*mut Runtime),
    clock: unsafe extern "C" fn(*mut Runtime) -> u64,
    wait: unsafe extern "C" fn(*mut Runtime, u64),
    pull: unsafe extern "C" fn(*mut Native),
    push: unsafe extern "C" fn(*mut Native),
    /// Statistics of the compiler: written by `core.jitwatch`.
    pub jit: Cell<JitCounts>,
    /// How long the worker may sleep, in microseconds; 0 for no limit (`core.part`).
    pub rest_us: Cell<i32>,
    /// Odd while a program's apps are created or changed, with another number each time (`core.actions`). Lua writes
    /// the whole word, and the supervisor's thread reads it at any time.
    pub setup: AtomicU32,
    /// Where compiled code is from, by trace; written by `core.jitwatch`.
    places: *mut Places,
    places_max: Cell<i32>,
}

// SAFETY: `repr(C)`; what Lua writes is in cells or an atomic. The rest never changes: addresses of links, free frames,
// flags and places, each of which says itself how it is shared, and functions.
unsafe impl LuaSees for LuaRuntime {}

/// A compiled trace: where its code is, and which line it begins at. The same as `struct brickmoon_place`.
///
/// Shared with Lua as part of [`Places`].
#[repr(C)]
#[derive(Clone, Copy)]
struct Place {
    from: u64,
    to: u64,
    /// File and line, such as `app.lua:7`, terminated by zero.
    line: [u8; 112],
}

/// Traces whose lines are kept: LuaJIT has at most a thousand by default.
const PLACES: usize = 1024;

/// What Lua records about its traces.
///
/// Shared with Lua, which writes it; a cell, read while Lua does not run.
#[repr(C)]
struct Places(UnsafeCell<[Place; PLACES]>);

// SAFETY: all of it is in a cell.
unsafe impl LuaSees for Places {}

/// Statistics of a state's compiler. The fields are in the order of `struct brickmoon_jit`.
///
/// Shared with Lua in a cell of [`LuaRuntime`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JitCounts {
    pub traces: u64,
    pub aborts: u64,
    pub flushes: u64,
    pub code_bytes: u64,
}

/// Flags that the threads of a program share.
#[derive(Clone, Default)]
pub(crate) struct Flags {
    /// One for each worker: leave the loop.
    pub pause: Arc<AtomicI32>,
    /// One for all: a worker has failed.
    pub trouble: Arc<AtomicI32>,
    /// Where the worker's report is requested and answered.
    pub report_slot: Arc<ReportSlot>,
}

/// What a state and Rust share. `shared` comes first: its address is the runtime's. Lua sees that, and the memory
/// that it points to; the other fields belong to Rust.
///
/// Shared with Lua as far as `shared` goes, and with functions that Lua calls with its address; no reference to the
/// whole is made once Lua knows it.
#[repr(C)]
pub struct Runtime {
    pub(crate) shared: LuaRuntime,
    pub(crate) frames: Freelist,
    pub(crate) links: Links,
    pub(crate) natives: NativeApps,
    _places: ShownToLua<Places>,
    _flags: Flags,
    started: Instant,
}

impl Runtime {
    /// For worker `worker`, with frames from `frame_pool`, of which up to `keep` free ones are kept.
    ///
    /// # Errors
    /// The system's error for the memory of links.
    pub(crate) fn new(
        frame_pool: &Arc<FramePool>,
        keep: usize,
        worker: usize,
        flags: Flags,
    ) -> io::Result<Box<Self>> {
        let frames = Freelist::new(frame_pool.clone(), keep);
        let links = Links::new()?;
        let places =
            ShownToLua::new(Places(UnsafeCell::new([Place { from: 0, to: 0, line: [0; 112] }; PLACES])));
        let shared = LuaRuntime {
            freelist: frames.stack().as_ptr(),
            links: links.address(),
            links_max: Cell::new(LINKS as i32),
            room: Cell::new(frame_pool.memory().room().min(10_240) as i32),
            now_ns: Cell::default(),
            failed: Cell::default(),
            worker: Cell::new(worker as i32),
            moved: Cell::default(),
            interrupted: &INTERRUPTED,
            pause: Arc::as_ptr(&flags.pause),
            trouble: Arc::as_ptr(&flags.trouble),
            asked: flags.report_slot.request_flag(),
            refill,
            spill,
            clock,
            wait,
            pull: native::pull,
            push: native::push,
            jit: Cell::default(),
            rest_us: Cell::default(),
            setup: AtomicU32::default(),
            places: places.address(),
            places_max: Cell::new(PLACES as i32),
        };
        Ok(Box::new(Self {
            shared,
            frames,
            links,
            natives: NativeApps::default(),
            _places: places,
            _flags: flags,
            started: Instant::now(),
        }))
    }

    /// The file and line of the compiled code at this address; `None` where there is none.
    ///
    /// # Safety
    /// `runtime` must be alive, and its Lua must not be running.
    pub(crate) unsafe fn line_at(runtime: *const Self, address: usize) -> Option<String> {
        // SAFETY: by the caller's word nobody writes there meanwhile.
        let places = unsafe { &*UnsafeCell::raw_get(&raw const (*(*runtime).shared.places).0) };
        let place = places.iter().find(|place| (place.from..place.to).contains(&(address as u64)))?;
        let line = place.line.split(|&byte| byte == 0).next()?;
        Some(String::from_utf8_lossy(line).into_owned())
    }

    /// Stops and drops an app in Rust; does nothing if the runtime does not know it.
    ///
    /// # Safety
    /// `runtime` must be alive, the call be on its thread, and no field of it be borrowed: the app uses them to stop.
    pub(crate) unsafe fn close(runtime: *mut Self, native: *mut Native) {
        // SAFETY: by the caller's word; the borrow ends before the app stops.
        let removed = unsafe { (*runtime).natives.remove(native) };
        if let Some(mut native) = removed {
            native.stop();
        }
    }

    /// Drops all apps in Rust of a state that was interrupted, so that what they hold, such as devices, is released.
    /// Lua may have left links and free frames inconsistent, so they stay as they are.
    ///
    /// # Safety
    /// `runtime` must be alive, and its Lua never run again.
    pub(crate) unsafe fn abandon(runtime: *mut Self) {
        // SAFETY: by the caller's word nobody else has it.
        drop(unsafe { std::mem::take(&mut (*runtime).natives) });
    }

    /// Stops and drops all apps in Rust, and frees the packets on links.
    ///
    /// # Safety
    /// As [`close`](Self::close).
    pub(crate) unsafe fn close_all(runtime: *mut Self) {
        // SAFETY: by the caller's word; each borrow ends before the next.
        unsafe {
            while let Some(native) = (*runtime).natives.last() {
                Self::close(runtime, native);
            }
            for link in (*runtime).links.used() {
                while let Some(frame) = link.receive() {
                    (*runtime).frames.free(frame);
                }
            }
        }
    }
}

/// The parts of a runtime that belong to Rust, while Lua does not run.
pub(crate) struct Parts<'a> {
    pub frames: &'a mut Freelist,
    pub links: &'a mut Links,
    pub natives: &'a mut NativeApps,
}

/// The apps in Rust of a state. Lua has their addresses, and passes them back; it does not access their content.
#[derive(Default)]
pub(crate) struct NativeApps(Vec<*mut Native>);

impl NativeApps {
    /// Adds an app, and returns its address.
    pub fn adopt(&mut self, native: Native) -> *mut Native {
        let native = Box::into_raw(Box::new(native));
        self.0.push(native);
        native
    }

    /// The app at `native`, if the runtime knows it.
    pub fn find(&mut self, native: *mut Native) -> Option<&mut Native> {
        let known = self.0.contains(&native);
        // SAFETY: in the list, so made by `adopt` and not dropped; `&mut self` keeps other holders out.
        if known { Some(unsafe { &mut *native }) } else { None }
    }

    fn remove(&mut self, native: *mut Native) -> Option<Box<Native>> {
        let at = self.0.iter().position(|&other| other == native)?;
        self.0.swap_remove(at);
        // SAFETY: made by `adopt`, and in the list until just now, so not dropped before.
        Some(unsafe { Box::from_raw(native) })
    }

    fn last(&self) -> Option<*mut Native> {
        self.0.last().copied()
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Native> {
        // SAFETY: in the list, so made by `adopt` and not dropped; each stands there once, and `&mut self` keeps other
        // holders out.
        self.0.iter().map(|&native| unsafe { &mut *native })
    }

    /// Before sleeping: whether every app in Rust may.
    pub fn before_sleep(&mut self) -> bool {
        // Every app is called, so that each can expect `after_sleep` whatever another returns.
        self.all().filter_map(|native| (!native.before_sleep()).then_some(())).count() == 0
    }

    /// To be called after sleeping, or after [`before_sleep`](Self::before_sleep) returned false.
    pub fn after_sleep(&mut self) {
        self.all().for_each(Native::after_sleep);
    }

    /// Descriptors that become readable when an app in Rust has something to pull.
    pub fn wait_on(&mut self) -> Vec<BorrowedFd<'_>> {
        self.all().filter_map(|native| native.wait_on()).collect()
    }

    /// Sleeps until an app in Rust has something to pull, or for `most_ns`.
    fn sleep(&mut self, most_ns: u64) {
        // An app that nothing would wake, or that waits for its device, is polled again soon.
        let most_ns = if self.before_sleep() { most_ns } else { most_ns.min(SOON_NS) };
        let watched = self.wait_on().into_iter();
        let mut watched: Vec<_> = watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout =
            Timespec { tv_sec: (most_ns / 1_000_000_000) as _, tv_nsec: (most_ns % 1_000_000_000) as _ };
        // Interrupted or timed out: the engine looks at everything in any case.
        let _woken = poll(&mut watched, Some(&timeout));
        drop(watched);
        self.after_sleep();
    }
}

impl Drop for NativeApps {
    fn drop(&mut self) {
        while let Some(native) = self.last() {
            drop(self.remove(native));
        }
    }
}

/// # Safety
/// Lua calls all four with the address of its own runtime, on the thread that owns it.
unsafe extern "C" fn refill(runtime: *mut Runtime) {
    // SAFETY: by the caller's word.
    unsafe { (*runtime).frames.refill() }
}

/// # Safety
/// As [`refill`].
unsafe extern "C" fn spill(runtime: *mut Runtime) {
    // SAFETY: by the caller's word.
    unsafe { (*runtime).frames.make_room() }
}

/// # Safety
/// As [`refill`].
unsafe extern "C" fn clock(runtime: *mut Runtime) -> u64 {
    // SAFETY: by the caller's word.
    unsafe { (*runtime).started.elapsed().as_nanos() as u64 }
}

/// # Safety
/// As [`refill`].
unsafe extern "C" fn wait(runtime: *mut Runtime, most_ns: u64) {
    // SAFETY: by the caller's word.
    unsafe { (*runtime).natives.sleep(most_ns) }
}

/// Makes SIGINT and SIGTERM end programs at their next breath; a second signal ends the process in any case.
///
/// # Errors
/// The system's error.
pub fn end_on_signals() -> io::Result<()> {
    extern "C" fn note(signal: libc::c_int) {
        INTERRUPTED.store(signal, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: a zeroed action is a valid one; the handler only stores to an atomic, which a handler may.
        let refused = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as *const () as usize;
            action.sa_flags = libc::SA_RESETHAND;
            libc::sigaction(signal, &action, std::ptr::null_mut()) != 0
        };
        if refused {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Ends programs at their next breath, as a signal would.
pub fn interrupt() {
    INTERRUPTED.store(libc::SIGINT, Ordering::Relaxed);
}

/// Whether it was SIGTERM, which is sent by other programs and not by a person who would want to know where it hangs.
pub(crate) fn terminated() -> bool {
    INTERRUPTED.load(Ordering::Relaxed) == libc::SIGTERM
}

/// Whether a signal asked programs to end.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed) != 0
}
