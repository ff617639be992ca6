//! One Lua state: made, given its modules, and asked to run.

use std::fmt;

use mlua::{Function, Lua, MultiValue, Table, Value};

use crate::modules::{self, Tree};

/// What a program did wrong: the message names file and line, the traceback how it got there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LuaError {
    /// What went wrong, with file and line.
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

/// A Lua state with our modules in reach.
pub struct State {
    lua: Lua,
    /// `core.startup`: what runs first and knows how to run the rest.
    startup: Table,
}

impl State {
    /// A state that looks for modules in `trees` before ours.
    ///
    /// # Errors
    /// What `core.startup` said.
    pub fn new(trees: Vec<Tree>) -> Result<Self, LuaError> {
        // SAFETY: programs may use FFI and so break anything; that is what they are for. Whoever runs a program
        // trusts it as he trusts a binary.
        let lua = unsafe { Lua::unsafe_new() };
        let find = lua.create_function(move |lua, name: String| match modules::find(&trees, &name) {
            Some((path, bytes)) => Ok((Some(path), Some(lua.create_string(bytes)?))),
            None => Ok((None, None)),
        })?;
        let (path, bytes) =
            modules::find(&[], "core/startup.lua").ok_or_else(|| LuaError::new("core.startup is missing"))?;
        let startup: Table = lua.load(bytes).set_name(format!("@{path}")).call(find)?;
        Ok(Self { lua, startup })
    }

    /// The state itself, for those in this crate.
    pub(crate) fn lua(&self) -> &Lua {
        &self.lua
    }

    /// Calls `core.startup`'s function `name`. The exit status if the program asked to end with one.
    ///
    /// # Errors
    /// What the program said.
    pub fn call(&self, name: &str, arguments: MultiValue) -> Result<Option<u8>, LuaError> {
        let protected: Function = self.startup.get("protected")?;
        let mut all = MultiValue::new();
        all.push_back(Value::Function(self.startup.get(name)?));
        all.extend(arguments);
        let (what, message, traceback): (String, Value, Option<String>) = protected.call(all)?;
        let text = |value: Value| value.to_string().unwrap_or_default();
        match what.as_str() {
            "done" => Ok(None),
            "exit" => Ok(Some(message.as_i64().unwrap_or(1) as u8)),
            _ => Err(LuaError { message: text(message), traceback: traceback.unwrap_or_default() }),
        }
    }
}
