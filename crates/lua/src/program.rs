//! Runs a program or a module's test from start to end.

use std::path::PathBuf;

use mlua::{IntoLua as _, MultiValue};

use crate::state::{LuaError, State};
use crate::world::World;

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
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
    /// It came to its end.
    Done,
    /// It asked for this exit status.
    Exit(u8),
}

/// A program with all that it needs.
#[derive(Clone)]
pub struct Program {
    /// What to run.
    pub what: What,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Packets, modules, and who makes apps in Rust.
    pub world: World,
}

impl Program {
    /// Runs it on the calling thread.
    ///
    /// # Errors
    /// What the program said, with file, line and traceback.
    pub fn run(self) -> Result<Outcome, LuaError> {
        let state = State::new(&self.world)?;
        let (function, subject) = match self.what {
            What::File(path) => ("file", path.display().to_string()),
            What::Named(name) => ("named", name),
            What::Test(module) => ("test", module),
        };
        let mut arguments = MultiValue::new();
        arguments.push_back(subject.into_lua(state.lua())?);
        for argument in self.arguments {
            arguments.push_back(argument.into_lua(state.lua())?);
        }
        let outcome = state.call(function, arguments);
        let finished = state.call("finish", MultiValue::new());
        let status = outcome?;
        finished?;
        Ok(status.map_or(Outcome::Done, Outcome::Exit))
    }
}
