//! A state with the apps of one worker, called in a way that can be interrupted.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::mem::ManuallyDrop;

use bm_link::Link;
use mlua::{LuaSerdeExt as _, MultiValue, Table, ffi};

use super::spec::AppsSpec;
use crate::hook::guard::{CallState, Guard, INTERRUPTED};
use crate::runtime::NativeApps;
use crate::state::{LuaError, State, WorkerContext};
use crate::thread::thread;
use crate::world::World;

/// Positions on the stack of the thread that runs the functions, after the message handler.
const BREATHE: c_int = 2;
const CONFIGURE: c_int = 3;
const IDLE: c_int = 4;
const STOP: c_int = 5;
const CHECK: c_int = 6;
const ARGUMENT: c_int = 7;

/// The table through which Rust and `core.part` exchange data, in `package.loaded`.
const BRIDGE: &str = "core.part.bridge";

/// Where packets cross between the worker's engine and Lua's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// App outside and its link, as `eth0:output`.
    pub name: String,
    /// Place among the state's links.
    pub link: usize,
    /// Whether packets come in.
    pub inwards: bool,
}

/// Why a call did not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// An error, with its traceback.
    Error(String),
    /// It was interrupted: the state must never be called again. Contains the line, if it is known.
    Hung(Option<String>),
}

impl From<LuaError> for CallFailure {
    fn from(error: LuaError) -> Self {
        Self::Error(error.to_string())
    }
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(why) => f.write_str(why),
            Self::Hung(None) => f.write_str("an app did not return, and was interrupted"),
            Self::Hung(Some(line)) => write!(f, "{line}: it did not return, and was interrupted"),
        }
    }
}

/// A state with the apps of one worker. One that was interrupted is kept forever: it must not even be closed.
pub struct AppsState {
    state: ManuallyDrop<State>,
    broken_off: bool,
    /// Runs the functions; anchored in the state.
    thread: *mut ffi::lua_State,
    guard: Guard,
}

// SAFETY: the state and all that points into it are in this one value, which is one thread's at a time.
unsafe impl Send for AppsState {}

impl AppsState {
    /// A state for a worker, without apps yet.
    ///
    /// # Errors
    /// The error of the system, or of Lua.
    pub(crate) fn new(world: &World, context: &WorkerContext) -> Result<Self, LuaError> {
        let state = State::of_worker(world, context)?;
        let loaded: Table = state.lua().globals().get::<Table>("package")?.get("loaded")?;
        loaded.set(BRIDGE, state.lua().create_table()?)?;
        state.call("part", MultiValue::new())?;
        let part: Table = state.prepared()?;
        let values: MultiValue = part.get::<mlua::Function>("functions")?.call(())?;
        let count = values.len() as c_int;
        if count != ARGUMENT {
            return Err(LuaError::new(format!("core.part returned {count} values instead of {ARGUMENT}")));
        }
        let thread = thread(state.lua(), values)?;
        Ok(Self { state: ManuallyDrop::new(state), broken_off: false, thread, guard: Guard::new() })
    }

    /// What is wrong with `spec`, by app; nothing is started.
    ///
    /// # Errors
    /// See [`CallFailure`]: the state cannot be used any more.
    pub fn check(
        &mut self,
        call_state: &CallState,
        spec: &AppsSpec,
    ) -> Result<Vec<(String, String)>, CallFailure> {
        self.order(spec, 1)?;
        self.call(call_state, CHECK)?;
        let problems = self.bridge().and_then(|bridge| Ok(bridge.get::<Vec<Vec<String>>>("problems")?))?;
        let problems = problems.into_iter();
        Ok(problems.filter_map(|problem| <[String; 2]>::try_from(problem).ok().map(Into::into)).collect())
    }

    /// Configures the network as in `spec`. Returns where packets cross; or why it was refused, and then nothing has
    /// changed.
    ///
    /// # Errors
    /// See [`CallFailure`]: the state cannot be used any more.
    pub fn configure(
        &mut self,
        call_state: &CallState,
        spec: &AppsSpec,
        workers: usize,
    ) -> Result<(Vec<Crossing>, Option<String>), CallFailure> {
        self.order(spec, workers)?;
        self.call(call_state, CONFIGURE)?;
        Ok(self.outcome()?)
    }

    /// Restores the previous configuration of the network, with the same classes.
    ///
    /// # Errors
    /// See [`CallFailure`]: the state cannot be used any more.
    pub(crate) fn revert(
        &mut self,
        call_state: &CallState,
    ) -> Result<(Vec<Crossing>, Option<String>), CallFailure> {
        self.bridge().and_then(|bridge| Ok(bridge.set("spec", mlua::Value::Nil)?))?;
        self.call(call_state, CONFIGURE)?;
        Ok(self.outcome()?)
    }

    fn bridge(&self) -> Result<Table, LuaError> {
        let loaded: Table = self.state.lua().globals().get::<Table>("package")?.get("loaded")?;
        Ok(loaded.get(BRIDGE)?)
    }

    fn order(&self, spec: &AppsSpec, workers: usize) -> Result<(), LuaError> {
        let bridge = self.bridge()?;
        bridge.set("spec", self.state.lua().to_value(&spec.to_json())?)?;
        Ok(bridge.set("workers", workers)?)
    }

    fn outcome(&self) -> Result<(Vec<Crossing>, Option<String>), LuaError> {
        let bridge = self.bridge()?;
        let mut crossings = Vec::new();
        for row in bridge.get::<Table>("crossings")?.sequence_values::<Table>() {
            let row = row?;
            crossings.push(Crossing { name: row.get(1)?, link: row.get(2)?, inwards: row.get(3)? });
        }
        Ok((crossings, bridge.get("refused")?))
    }

    /// Runs one breath.
    ///
    /// # Errors
    /// See [`CallFailure`].
    pub fn breathe(&mut self, call_state: &CallState) -> Result<(), CallFailure> {
        self.call(call_state, BREATHE)
    }

    /// Called before the worker sleeps. Returns for how many microseconds it may, 0 for no limit.
    ///
    /// # Errors
    /// See [`CallFailure`].
    pub fn idle(&mut self, call_state: &CallState) -> Result<u64, CallFailure> {
        self.call(call_state, IDLE)?;
        Ok(self.state.shared().rest_us.get().max(0) as u64)
    }

    /// Stops all apps.
    ///
    /// # Errors
    /// See [`CallFailure`].
    pub fn stop(&mut self, call_state: &CallState) -> Result<(), CallFailure> {
        self.call(call_state, STOP)
    }

    fn call(&mut self, call_state: &CallState, function: c_int) -> Result<(), CallFailure> {
        if self.broken_off {
            return Err(self.hang_failure());
        }
        // SAFETY: the thread is this value's, its stack was laid out in `new`, and `&mut self` says that nothing of the
        // runtime is borrowed; after a call that was broken off there is no other, and the state is not closed.
        match unsafe { self.guard.call(call_state, self.thread, function, ARGUMENT) } {
            0 => Ok(()),
            INTERRUPTED => {
                self.broken_off = true;
                Err(self.hang_failure())
            }
            _ => Err(CallFailure::Error(self.message())),
        }
    }

    /// Where it was interrupted.
    fn hang_failure(&self) -> CallFailure {
        CallFailure::Hung(self.state.line_at(self.guard.left_at()))
    }

    #[cold]
    fn message(&mut self) -> String {
        // SAFETY: a failed call leaves one value on the stack, a string by our message handler; the pointer is good
        // while it stays there.
        unsafe {
            let text = ffi::lua_tolstring(self.thread, -1, std::ptr::null_mut());
            let words = (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned());
            ffi::lua_settop(self.thread, ARGUMENT);
            words.unwrap_or_else(|| "an error without a message".into())
        }
    }

    /// The links of the state.
    pub fn links(&mut self) -> &mut [Link] {
        self.state.parts().links.slice()
    }

    /// How often packets were sent to links of the state or received.
    pub fn moves(&mut self) -> u64 {
        self.state.parts().links.used().iter().map(Link::moves).sum()
    }

    /// Whether no packet waits on a link.
    pub fn is_empty(&mut self) -> bool {
        self.state.parts().links.used().iter().all(Link::is_empty)
    }

    /// The apps in Rust of the state.
    pub(crate) fn natives(&mut self) -> &mut NativeApps {
        self.state.parts().natives
    }
}

impl Drop for AppsState {
    fn drop(&mut self) {
        // SAFETY: it is taken here alone, and not used afterwards.
        let state = unsafe { ManuallyDrop::take(&mut self.state) };
        if self.broken_off {
            state.forget();
        }
    }
}
