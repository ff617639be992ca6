//! Runs a program or a module's test from start to end.
//!
//! A program may compute for as long as it likes, so only two things are interrupted: an app that does not return
//! while it is created or changed, and a program that does not end after a signal. Either is an error that names the
//! line.

use std::ffi::c_int;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mlua::{IntoLua as _, MultiValue, Value, ffi};
use rustix::io::{Errno, dup, fcntl_getfd};
use rustix::stdio::{dup2_stderr, dup2_stdout};

use crate::hook::guard::{self, CallState, Guard, INTERRUPTED, Limits, OnHang, Watch};
use crate::runtime::{interrupted, terminated};
use crate::state::{LuaError, State};
use crate::thread::thread;
use crate::world::World;

/// How long a program may take to end by itself after a signal.
const END: Limits = Limits { loops: Duration::from_secs(2), sleeps: Duration::from_secs(2) };
/// Positions on the stack of the thread that runs the program, after the message handler.
const FUNCTION: c_int = 2;
const ARGUMENT: c_int = 3;

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramSource {
    /// A file; it sees its arguments as `...`, and in `main.parameters`.
    File(PathBuf),
    /// The module `program.NAME.NAME`, whose `run` gets the arguments as a table.
    Named(String),
    /// A module's `selftest`.
    Test(String),
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ended by itself.
    Done,
    /// It asked for this exit status.
    Exit(u8),
}

/// A program with everything that it needs.
#[derive(Clone)]
pub struct Program {
    /// What to run.
    pub source: ProgramSource,
    pub arguments: Vec<String>,
    /// Packets, modules, and what creates apps in Rust.
    pub world: World,
    /// How much CPU time an app may use to be created or changed; `None` for no limit.
    pub setup: Option<Duration>,
    /// Workers that run each network for which the program itself names no number, each with its queue of every port.
    pub workers: usize,
}

impl Program {
    /// Runs it on the calling thread.
    ///
    /// # Errors
    /// The program's error, with file, line and traceback.
    pub fn run(self) -> Result<Outcome, LuaError> {
        guard::install().map_err(LuaError::new)?;
        // Created before the state, so that it is dropped after it.
        let _streams = StandardStreams::keep();
        let state = State::new(&self.world)?;
        state.startup().set("workers", self.workers)?;
        let (function, subject) = match self.source {
            ProgramSource::File(path) => ("file", path.display().to_string()),
            ProgramSource::Named(name) => ("named", name),
            ProgramSource::Test(module) => ("test", module),
        };
        let thread = prepare(&state, function, subject, self.arguments)?;
        let mut guard = Guard::new();
        let mut watch = Supervisor::new(&state, self.setup);
        let status = guard::watched(
            move |call_state| watch.look(call_state, Instant::now()),
            // SAFETY: `prepare` laid the stack out: message handler, function, argument. What is borrowed of the runtime is
            // an atomic that Lua writes as a whole. After a call that was broken off the state is forgotten.
            |call_state| unsafe { guard.call(call_state, thread, FUNCTION, ARGUMENT) },
        );
        if status == INTERRUPTED {
            let line = state.line_at(guard.left_at()).map(|line| format!("{line}: "));
            state.forget();
            if terminated() {
                return Ok(Outcome::Exit(0));
            }
            let why = format!("{}it did not return, and was interrupted", line.unwrap_or_default());
            return Err(LuaError::new(why));
        }
        let outcome = if status == 0 { state.outcome() } else { Err(LuaError::new("core.startup failed")) };
        let finished = state.call("finish", MultiValue::new());
        // Interrupted in the interpreter, which turns it into an error.
        if terminated() && outcome.is_err() {
            return Ok(Outcome::Exit(0));
        }
        let status = outcome?;
        finished?;
        Ok(status.map_or(Outcome::Done, Outcome::Exit))
    }
}

/// Standard output and standard error of this process. Programs put descriptors 1 and 2 into objects that close them
/// when they are collected, at the latest with the state; but the caller may still have an error to report.
struct StandardStreams {
    output: Option<OwnedFd>,
    errors: Option<OwnedFd>,
}

impl StandardStreams {
    fn keep() -> Self {
        Self { output: dup(io::stdout()).ok(), errors: dup(io::stderr()).ok() }
    }
}

impl Drop for StandardStreams {
    fn drop(&mut self) {
        if let (Some(kept), Err(Errno::BADF)) = (&self.output, fcntl_getfd(io::stdout())) {
            let _closed_for_good = dup2_stdout(kept);
        }
        if let (Some(kept), Err(Errno::BADF)) = (&self.errors, fcntl_getfd(io::stderr())) {
            let _closed_for_good = dup2_stderr(kept);
        }
    }
}

/// A thread with the function on its stack that runs the program.
fn prepare(
    state: &State,
    function: &str,
    subject: String,
    arguments: Vec<String>,
) -> Result<*mut ffi::lua_State, LuaError> {
    let lua = state.lua();
    let order = lua.create_table()?;
    order.push(function)?;
    order.push(subject)?;
    arguments.into_iter().try_for_each(|argument| order.push(argument.into_lua(lua)?))?;
    let startup = state.startup();
    startup.set("order", order)?;
    let values: [Value; 3] = [startup.get("explain")?, startup.get("carry_out")?, Value::Boolean(false)];
    Ok(thread(lua, MultiValue::from_iter(values))?)
}

/// Decides what in a program is interrupted.
struct Supervisor<'a> {
    /// Odd while an app is created or changed, with another number each time.
    setup: &'a AtomicU32,
    limit: Option<Duration>,
    seen: u32,
    at_setup: Watch,
    at_end: Watch,
}

impl<'a> Supervisor<'a> {
    fn new(state: &'a State, limit: Option<Duration>) -> Self {
        let loops = limit.unwrap_or_default();
        let at_setup = Watch::new(Limits { loops, sleeps: Duration::MAX });
        Self { setup: &state.shared().setup, limit, seen: 0, at_setup, at_end: Watch::new(END) }
    }

    fn look(&mut self, call_state: &CallState, now: Instant) {
        if interrupted() {
            // A program that cannot be interrupted ends at a second signal.
            let _stuck = self.at_end.look(call_state, now, OnHang::Interrupt);
            return;
        }
        let setup = self.setup.load(Ordering::Relaxed);
        if setup.is_multiple_of(2) || setup != self.seen || self.limit.is_none() {
            self.seen = setup;
            let loops = self.limit.unwrap_or_default();
            self.at_setup = Watch::new(Limits { loops, sleeps: Duration::MAX });
            return;
        }
        let _stuck = self.at_setup.look(call_state, now, OnHang::Interrupt);
    }
}
