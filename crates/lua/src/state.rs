//! A Lua state: created, with its modules, and called.

use std::fmt;
use std::mem::ManuallyDrop;

use mlua::{Function, IntoLua as _, Lua, MultiValue, Table, Value};

use crate::bridge;
use crate::modules;
use crate::report::{JitReport, ReportSlots};
use crate::ring::Rings;
use crate::runtime::{Flags, JitCounts, LuaRuntime, Parts, Runtime};
use crate::world::World;

/// An error of a program: the message names file and line, the traceback the calls that led there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LuaError {
    /// The message, with file and line.
    pub message: String,
    /// The calls that led there; empty where nothing ran yet.
    pub traceback: String,
}

impl LuaError {
    pub(crate) fn new(message: impl ToString) -> Self {
        Self { message: message.to_string(), traceback: String::new() }
    }
}

impl fmt::Display for LuaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.traceback.is_empty() { Ok(()) } else { write!(f, "\n{}", self.traceback) }
    }
}

impl std::error::Error for LuaError {}

impl From<mlua::Error> for LuaError {
    fn from(error: mlua::Error) -> Self {
        Self::new(error)
    }
}

/// Which worker of a program a state is for, and what it shares with the others.
#[derive(Clone, Default)]
pub(crate) struct WorkerContext {
    pub worker: usize,
    /// It has devices to itself: no other worker has a queue of them.
    pub apart: bool,
    pub flags: Flags,
    pub rings: Rings,
}

/// A Lua state with brickmoon's modules.
pub struct State {
    /// `core.startup`: runs first and knows how to run the rest.
    startup: ManuallyDrop<Table>,
    lua: ManuallyDrop<Lua>,
    runtime: *mut Runtime,
    report_slots: ReportSlots,
    context: WorkerContext,
}

// SAFETY: the state and all references into it are in this one value, and its methods take it by reference from
// whoever holds it, one thread at a time. The runtime is the state's own.
unsafe impl Send for State {}

impl State {
    /// A state for a program: its first worker.
    ///
    /// # Errors
    /// The error of `core.startup`, or the system's for the memory that it needs.
    pub fn new(world: &World) -> Result<Self, LuaError> {
        Self::of_worker(world, &WorkerContext::default())
    }

    /// A state for a worker of a program.
    pub(crate) fn of_worker(world: &World, context: &WorkerContext) -> Result<Self, LuaError> {
        let flags = context.flags.clone();
        let runtime =
            Runtime::new(&world.frame_pool, world.keep, context.worker, flags).map_err(LuaError::new)?;
        let runtime = Box::into_raw(runtime);
        // SAFETY: programs may use FFI and so break anything; that is what they are for. Who runs a program
        // trusts it like a binary.
        let lua = unsafe { Lua::unsafe_new() };
        match Self::start(&lua, world, runtime, context) {
            Ok(startup) => {
                let (report_slots, context) = (world.report_slots.clone(), context.clone());
                report_slots.open(context.worker, &context.flags.report_slot);
                let (startup, lua) = (ManuallyDrop::new(startup), ManuallyDrop::new(lua));
                Ok(Self { startup, lua, runtime, report_slots, context })
            }
            Err(error) => {
                drop(lua);
                // SAFETY: made above, and Lua, the only other that knew it, is gone.
                drop(unsafe { Box::from_raw(runtime) });
                Err(error)
            }
        }
    }

    fn start(
        lua: &Lua,
        world: &World,
        runtime: *mut Runtime,
        context: &WorkerContext,
    ) -> Result<Table, LuaError> {
        let bridge = bridge::table(lua, world, runtime, context)?;
        let (path, bytes) = modules::from_binary("core/startup.lua")
            .ok_or_else(|| LuaError::new("core.startup is missing"))?;
        Ok(lua.load(bytes).set_name(format!("@{path}")).call(bridge)?)
    }

    /// The state itself, for this crate.
    pub(crate) fn lua(&self) -> &Lua {
        &self.lua
    }

    /// `core.startup`.
    pub(crate) fn startup(&self) -> &Table {
        &self.startup
    }

    /// The result of the last call of a worker's function.
    pub(crate) fn result(&self) -> Result<Vec<u8>, LuaError> {
        let result: mlua::LuaString = self.startup.get("result")?;
        Ok(result.as_bytes().to_vec())
    }

    /// The result of the last call of `prepare` or `part`.
    pub(crate) fn prepared(&self) -> Result<Table, LuaError> {
        Ok(self.startup.get("prepared")?)
    }

    /// What Lua sees of the runtime.
    pub(crate) fn shared(&self) -> &LuaRuntime {
        // SAFETY: the runtime lives as long as the state. What Lua may write behind the reference is in cells.
        unsafe { &(*self.runtime).shared }
    }

    /// The parts of the runtime that belong to Rust.
    pub(crate) fn parts(&mut self) -> Parts<'_> {
        // SAFETY: the runtime lives as long as the state, whose thread is this one. Lua and the functions that it calls
        // use the same parts, but do not run now nor before the borrow ends, since that of the state lasts as long:
        // whoever has Lua run without it, by a thread of the state, promises that no part is borrowed (`Guard::call`).
        // The borrows are of different fields.
        unsafe {
            Parts {
                frames: &mut (*self.runtime).frames,
                links: &mut (*self.runtime).links,
                natives: &mut (*self.runtime).natives,
            }
        }
    }

    /// Leaves a state that was interrupted as it is; only what its apps in Rust hold is released.
    pub(crate) fn forget(self) {
        self.report_slots.close(self.context.worker, &self.context.flags.report_slot);
        let runtime = self.runtime;
        std::mem::forget(self);
        // SAFETY: the runtime lives on with the state, which never runs again.
        unsafe { Runtime::abandon(runtime) };
    }

    /// The file and line of a call that was broken off there, if it was in compiled code.
    pub(crate) fn line_at(&self, address: usize) -> Option<String> {
        // SAFETY: the runtime lives as long as the state, whose Lua does not run.
        unsafe { Runtime::line_at(self.runtime, address) }
    }

    /// Statistics of the compiler and the garbage collector.
    pub fn jit(&self) -> JitReport {
        let JitCounts { traces, aborts, flushes, code_bytes } = self.shared().jit.get();
        JitReport { traces, aborts, flushes, code_bytes, heap_bytes: self.lua.used_memory() as u64 }
    }

    /// Calls the function `name` of `core.startup`. Returns the exit status if the program asked to end with one.
    ///
    /// # Errors
    /// The program's error.
    pub fn call(&self, name: &str, arguments: MultiValue) -> Result<Option<u8>, LuaError> {
        let protected: Function = self.startup.get("protected")?;
        let mut all = MultiValue::new();
        all.push_back(Value::Function(self.startup.get(name)?));
        all.extend(arguments);
        let (what, message, traceback) = protected.call(all)?;
        Self::read(what, message, traceback)
    }

    /// The result of the order that `core.startup` carried out; like [`call`](Self::call).
    pub(crate) fn outcome(&self) -> Result<Option<u8>, LuaError> {
        let list: Table = self.startup.get("outcome")?;
        Self::read(list.get(1)?, list.get(2)?, list.get(3)?)
    }

    fn read(what: String, message: Value, traceback: Option<String>) -> Result<Option<u8>, LuaError> {
        match what.as_str() {
            "done" => Ok(None),
            "exit" => Ok(Some(message.as_i64().unwrap_or(1) as u8)),
            _ => Err(LuaError {
                message: message.to_string().unwrap_or_default(),
                traceback: traceback.unwrap_or_default(),
            }),
        }
    }
}

/// A function returned by a chunk, to be called repeatedly.
pub struct PreparedFunction(Function);

impl PreparedFunction {
    /// Calls it with a number, and returns its result.
    ///
    /// # Errors
    /// The program's error.
    pub fn call(&self, argument: u64) -> Result<u64, LuaError> {
        Ok(self.0.call::<f64>(argument)? as u64)
    }
}

impl State {
    /// Runs a chunk with a number, for the function that it returns. Messages use `name` for the chunk.
    ///
    /// # Errors
    /// The program's error.
    pub fn prepare(&self, name: &str, text: &str, argument: usize) -> Result<PreparedFunction, LuaError> {
        let arguments = [name.into_lua(&self.lua)?, text.into_lua(&self.lua)?, argument.into_lua(&self.lua)?];
        self.call("prepare", arguments.into_iter().collect())?;
        Ok(PreparedFunction(self.startup.get("prepared")?))
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.report_slots.close(self.context.worker, &self.context.flags.report_slot);
        // SAFETY: made in `new`; Lua does not run now. Apps in Rust stop first, while links and frames are there.
        // Finalizers of Lua may reach the runtime's memory, so the state goes before it; none of the three is
        // touched again.
        unsafe {
            Runtime::close_all(self.runtime);
            ManuallyDrop::drop(&mut self.startup);
            ManuallyDrop::drop(&mut self.lua);
            drop(Box::from_raw(self.runtime));
        }
    }
}
