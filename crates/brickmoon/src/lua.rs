//! `brickmoon run` and `brickmoon snabb`: programs in Lua.

use std::sync::Arc;

use bm_lua::{NoNatives, Outcome, PAYLOAD, Program, Tree, What, World};

use crate::Failure;
use crate::args::{Run, Snabb};

/// `brickmoon run PROGRAM.lua ARGUMENTS`.
pub fn run(run: Run) -> Result<(), Failure> {
    let Run { trees, program, arguments } = run;
    start(What::File(program), arguments, &trees)
}

/// `brickmoon snabb -t MODULE`, or `brickmoon snabb PROGRAM ARGUMENTS`.
pub fn snabb(snabb: Snabb) -> Result<(), Failure> {
    let Snabb { trees, test, program } = snabb;
    let mut words = program.into_iter();
    let what = match test {
        Some(module) => What::Test(module),
        None => What::Named(words.next().ok_or_else(|| {
            Failure::usage("which program? brickmoon snabb PROGRAM [ARGUMENTS], or -t MODULE for a test")
        })?),
    };
    start(what, words.collect(), &trees)
}

fn start(what: What, arguments: Vec<String>, trees: &[std::path::PathBuf]) -> Result<(), Failure> {
    if let Some(folder) = trees.iter().find(|folder| !folder.is_dir()) {
        return Err(Failure::usage(format!("--path {}: no such folder", folder.display())));
    }
    let trees = trees.iter().flat_map(|folder| Tree::at(folder)).collect();
    let world = World::new(Arc::new(NoNatives), trees, PAYLOAD).map_err(Failure::failed)?;
    match (Program { what, arguments, world }).run() {
        Ok(Outcome::Done | Outcome::Exit(0)) => Ok(()),
        Ok(Outcome::Exit(status)) => Err(Failure::Status(status)),
        Err(error) => Err(Failure::failed(error)),
    }
}
