//! One version of a hook in one state: loaded, and called once per burst.

use std::ffi::{CStr, c_int};
use std::mem::ManuallyDrop;
use std::sync::Arc;

use bm_frame::FramePool;
use bm_graph::{HookBurst, Stage, Stages};
use bm_stats::Block;
use mlua::{IntoLua as _, LightUserData, Lua, LuaSerdeExt as _, MultiValue, Table, Value, ffi};

use super::burst::LuaBurst;
use super::counters::{HookCounter, HookCounters};
use super::guard::{self, CallState, Guard, INTERRUPTED};
use super::meter::{Excess, Meter};
use super::published::Publications;
use super::version::{Health, Version};
use crate::natives::NoNatives;
use crate::report::ReportSlots;
use crate::shown::ShownToLua;
use crate::state::{LuaError, State};
use crate::thread::thread;
use crate::world::World;

/// Free packets that a hook keeps for itself.
const KEEP: usize = 128;
/// Calls between two publications of them, and calls at the start after each of which they are published.
const LOOK_EVERY: u64 = 64;

/// Places on the stack of the thread that runs the functions: message handler, functions by stage, burst.
const FIRST: c_int = 2;
const BURST_AT: c_int = 6;

/// The thread for which a hook is loaded.
pub struct HookContext<'a> {
    /// Number of the worker; `None` for the slow path.
    pub worker: Option<usize>,
    /// How many workers there are.
    pub workers: usize,
    /// Names of the ports, by index.
    pub ports: &'a [String],
    /// Where hooks allocate packets.
    pub frame_pool: &'a Arc<FramePool>,
    /// What states share.
    pub published: &'a Arc<Publications>,
    /// Creates the counters with these names.
    pub counters: &'a dyn Fn(&[String]) -> Result<Block, LuaError>,
}

/// A hook in its own state. A state that was interrupted is kept forever: it must not even be closed.
pub struct HookState {
    state: ManuallyDrop<State>,
    broken_off: bool,
    /// Runs the functions; anchored in the state.
    thread: *mut ffi::lua_State,
    shared: ShownToLua<LuaBurst>,
    guard: Guard,
    meter: Meter,
    counters: HookCounters,
    calls: u64,
    pub stages: Stages,
    pub version: Arc<Version>,
}

// SAFETY: the state and all that points into it are in this one value, which is one thread's at a time.
unsafe impl Send for HookState {}

/// The declarations of the file.
struct Declarations {
    reasons: Vec<String>,
    meanings: Vec<String>,
    counters: Vec<String>,
}

impl HookState {
    /// Loads the file of `version` for `context`.
    ///
    /// # Errors
    /// What is wrong with the file, with line and traceback.
    pub fn new(version: &Arc<Version>, context: &HookContext<'_>) -> Result<Self, LuaError> {
        let natives = Arc::new(NoNatives);
        let world = World {
            frame_pool: context.frame_pool.clone(),
            natives,
            trees: version.spec.trees.clone(),
            report_slots: ReportSlots::default(),
            keep: KEEP,
        };
        let state = State::new(&world)?;
        let shared = ShownToLua::new(LuaBurst::new(context.published.generation()));
        bridge(state.lua(), version, context, &shared)?;
        let (declared, values) = match load(&state, version) {
            Ok(found) => found,
            Err((error, broken)) => {
                if broken {
                    state.forget();
                }
                return Err(error);
            }
        };
        let stages = Stage::ALL
            .into_iter()
            .enumerate()
            .filter(|&(at, _)| matches!(values.get(at + 1), Some(Value::Function(_))));
        let stages: Vec<Stage> = stages.map(|(_, stage)| stage).collect();
        let thread = thread_with(state.lua(), values)?;
        let counters = HookCounters::open(&declared.reasons, &declared.counters, context.counters)?;
        version.declare(declared.reasons.into_iter().zip(declared.meanings).collect(), stages.clone());
        let meter = Meter::new(version.spec.budget);
        let stages = stages.into_iter().fold(Stages::NONE, Stages::with);
        let version = version.clone();
        Ok(Self {
            state: ManuallyDrop::new(state),
            broken_off: false,
            thread,
            shared,
            guard: Guard::new(),
            meter,
            counters,
            calls: 0,
            stages,
            version,
        })
    }

    /// Runs it over a burst. A hook that fails has no effect on it, and its version is retired; one that is ejected has
    /// done its work.
    pub fn run(
        &mut self,
        call_state: &CallState,
        stage: Stage,
        burst: &mut HookBurst<'_>,
        now_ns: u64,
    ) -> Health {
        let frames = burst.mask.count() as u64;
        let (guard, thread) = (&mut self.guard, self.thread);
        let function = FIRST + stage as c_int;
        let begun = self.meter.begin();
        let status = self.shared.with(stage, burst, now_ns, || {
            // SAFETY: the thread is this value's, its stack was laid out in `new`, and `&mut self` says that nothing of
            // the runtime is borrowed. After a call that was broken off `failed` notes it: a version that is not good is
            // not run again, nor its state closed.
            unsafe { guard.call(call_state, thread, function, BURST_AT) }
        });
        let (took, excess) = self.meter.end(begun, frames);
        self.counters.add(HookCounter::Calls, 1);
        self.counters.add(HookCounter::Frames, frames);
        self.counters.add(HookCounter::Cycles, took);
        if status != 0 {
            return self.failed(status);
        }
        let Self { shared, counters, .. } = &*self;
        shared.carry_out(burst, |reason| counters.drop(reason));
        counters.set_own(|at| shared.counters[at].get());
        self.calls += 1;
        if self.calls < LOOK_EVERY || self.calls.is_multiple_of(LOOK_EVERY) {
            self.counters.set_jit(&self.state.jit());
        }
        excess.map_or(Health::Good, |excess| self.deactivate(excess))
    }

    #[cold]
    fn deactivate(&mut self, excess: Excess) -> Health {
        let (Excess { percent, cycles }, budget) = (excess, self.version.spec.budget);
        let why = format!(
            "it took {percent} % of a core and {cycles} cycles a frame for {} ms or longer, over its budget of {} cycles above {} % of a core",
            budget.patience.as_millis(),
            budget.cycles,
            budget.percent
        );
        if self.version.retire(Health::Ejected, why) {
            self.counters.add(HookCounter::Ejections, 1);
        }
        Health::Ejected
    }

    #[cold]
    fn failed(&mut self, status: c_int) -> Health {
        for frame in self.shared.forget() {
            self.state.parts().frames.free(frame);
        }
        if status == INTERRUPTED {
            self.broken_off = true;
            let why = "it did not return from a burst, and was interrupted".to_string();
            if self.version.retire(Health::Hung, why) {
                self.counters.add(HookCounter::Hangs, 1);
            }
            return Health::Hung;
        }
        self.counters.add(HookCounter::Errors, 1);
        // SAFETY: a failed call leaves one value on the stack, a string by our message handler; the pointer is good
        // while it stays there.
        let why = unsafe {
            let text = ffi::lua_tolstring(self.thread, -1, std::ptr::null_mut());
            let why = if text.is_null() {
                "an error without a message".into()
            } else {
                CStr::from_ptr(text).to_string_lossy()
            };
            let why = why.into_owned();
            ffi::lua_settop(self.thread, BURST_AT);
            why
        };
        self.version.retire(Health::Failed, why);
        Health::Failed
    }
}

impl Drop for HookState {
    fn drop(&mut self) {
        if !self.broken_off {
            // SAFETY: it is dropped here alone, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.state) };
        }
    }
}

/// The table that `brickmoon.hook` gets from Rust.
fn bridge(
    lua: &Lua,
    version: &Version,
    context: &HookContext<'_>,
    shared: &ShownToLua<LuaBurst>,
) -> Result<(), LuaError> {
    let table = lua.create_table()?;
    table.set("burst", LightUserData(shared.address().cast()))?;
    table.set("name", version.spec.name.as_str())?;
    table.set("worker", context.worker.map_or(Value::Nil, |worker| Value::Integer(worker as i64)))?;
    table.set("workers", context.workers)?;
    table.set("ports", context.ports)?;
    context.published.bridge(lua, &table)?;
    let loaded: Table = lua.globals().get::<Table>("package")?.get("loaded")?;
    loaded.set("brickmoon.hook.bridge", table)?;
    Ok(())
}

/// Runs the file; another thread interrupts it if it does not return. Returns its declarations, and what belongs on
/// the stack; or what is wrong, and whether the state has become unusable.
fn load(state: &State, version: &Version) -> Result<(Declarations, Vec<Value>), (LuaError, bool)> {
    let thread = order(state.lua(), version).map_err(|error| (error, false))?;
    let mut guard = Guard::new();
    // SAFETY: `order` laid the stack out: message handler, function, argument. Nothing of the runtime is borrowed, which
    // takes a `&mut` of the state. After a call that was broken off that is never touched again: the caller forgets it.
    let status = guard::loading(|call_state| unsafe { guard.call(call_state, thread, FIRST, FIRST + 1) });
    if status == INTERRUPTED {
        let line = state.line_at(guard.left_at()).map(|line| format!("{line}: "));
        let why = format!("{}it did not return, and was interrupted", line.unwrap_or_default());
        return Err((LuaError::new(why), true));
    }
    if status != 0 {
        return Err((LuaError::new("brickmoon.hook failed"), false));
    }
    outcome(state.lua()).map_err(LuaError::from).flatten().map_err(|error| (error, false))
}

/// The table through which `brickmoon.hook` and this file exchange data.
fn bridge_of(lua: &Lua) -> mlua::Result<Table> {
    lua.globals().get::<Table>("package")?.get::<Table>("loaded")?.get("brickmoon.hook.bridge")
}

/// Stores what is to be loaded, and returns a thread with the function for it on its stack.
fn order(lua: &Lua, version: &Version) -> Result<*mut ffi::lua_State, LuaError> {
    let require: mlua::Function = lua.globals().get("require")?;
    let module: Table = require.call("brickmoon.hook")?;
    let bridge = bridge_of(lua)?;
    bridge.set("file", version.spec.file.display().to_string())?;
    bridge.set("stage", version.spec.stage.map(Stage::name))?;
    let arguments = match &version.spec.arguments {
        serde_json::Value::Null => Value::Table(lua.create_table()?),
        arguments => lua.to_value(arguments)?,
    };
    bridge.set("arguments", arguments)?;
    thread_with(lua, vec![module.get("trace")?, module.get("load_ordered")?, Value::Boolean(false)])
}

/// The result: the inner `Err` is what the file did wrong.
fn outcome(lua: &Lua) -> mlua::Result<Result<(Declarations, Vec<Value>), LuaError>> {
    let list: Table = bridge_of(lua)?.get("loaded")?;
    let fine: bool = list.get(1)?;
    if !fine {
        let text: String = list.get(2)?;
        let (message, traceback) = text.split_once("\nstack traceback:").map_or_else(
            || (text.clone(), String::new()),
            |(message, trace)| (message.to_string(), format!("stack traceback:{trace}")),
        );
        return Ok(Err(LuaError { message, traceback }));
    }
    let found: Table = list.get(2)?;
    let declared = Declarations {
        reasons: found.get("names")?,
        meanings: found.get("meanings")?,
        counters: found.get("counters")?,
    };
    let values: mlua::Result<Vec<Value>> = (3..=2 + BURST_AT).map(|at| list.get(at)).collect();
    Ok(Ok((declared, values?)))
}

/// A thread of the state with `values` on its stack.
fn thread_with(lua: &Lua, values: Vec<Value>) -> Result<*mut ffi::lua_State, LuaError> {
    let values: mlua::Result<MultiValue> = values.into_iter().map(|value| value.into_lua(lua)).collect();
    Ok(thread(lua, values?)?)
}
