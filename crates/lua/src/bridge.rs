//! What Lua gets from Rust besides shared memory: functions for rare operations, in a table that is passed to
//! `core.startup`.

use std::ffi::c_void;

use std::cell::RefCell;
use std::io::Write as _;
use std::rc::Rc;

use mlua::{ExternalError as _, LightUserData, Lua, LuaSerdeExt as _, LuaString, Table, Value};

use crate::esp;
use crate::hook::guard::uninterrupted;
use crate::modules;
use crate::natives::{AppRequest, NativeApp};
use crate::pool::Pool;
use crate::runtime::{Native, Runtime};
use crate::state::WorkerContext;
use crate::world::World;

type Names = (Vec<String>, Vec<usize>);

/// The table. `runtime` must outlive `lua`.
pub(crate) fn table(
    lua: &Lua,
    world: &World,
    runtime: *mut Runtime,
    context: &WorkerContext,
) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.set("address", LightUserData(runtime.cast()))?;
    table.set("worker", context.worker)?;
    table.set("version", env!("CARGO_PKG_VERSION"))?;
    let trees = world.trees.clone();
    table.set(
        "theirs",
        lua.create_function(move |lua: &Lua, name: String| file(lua, modules::from_trees(&trees, &name)))?,
    )?;
    table.set("ours", lua.create_function(|lua, name: String| file(lua, modules::from_binary(&name)))?)?;
    // SAFETY of all blocks below: the runtime outlives the state, these functions run on the thread that holds
    // both, and Lua waits for them; each borrow ends with its call.
    table.set(
        "take_link",
        lua.create_function(move |_: &Lua, (): ()| {
            // SAFETY: see above.
            uninterrupted(|| unsafe { (*runtime).links.take() })
                .ok_or_else(|| "all 4096 links are in use: use fewer links".into_lua_err())
        })?,
    )?;
    table.set(
        "give_link",
        lua.create_function(move |_: &Lua, index: usize| {
            // SAFETY: see above.
            uninterrupted(|| unsafe { (*runtime).links.give(index) });
            Ok(())
        })?,
    )?;
    let (report_slot, worker) = (context.flags.report_slot.clone(), context.worker);
    table.set(
        "answer",
        lua.create_function(move |lua: &Lua, report: Value| {
            let report = lua.from_value(report);
            // Packets are processed further even if the answer fails.
            uninterrupted(|| match report {
                Ok(report) => report_slot.answer(report),
                // A closed standard error must not end the worker, as `eprintln!` would.
                Err(error) => drop(writeln!(
                    std::io::stderr(),
                    "brickmoon: worker {worker} cannot report its state: {error}"
                )),
            });
            Ok(())
        })?,
    )?;
    table.set("esp", LightUserData(esp::address()))?;
    table.set("esp_failures", lua.create_sequence_from(esp::failures())?)?;
    natives(lua, &table, world, runtime, context)?;
    if context.worker == 0 {
        workers(lua, &table, Pool::new(world.clone(), context.clone()))?;
    }
    Ok(table)
}

/// The name and the text of a file, or twice nil.
fn file(lua: &Lua, found: Option<(String, Vec<u8>)>) -> mlua::Result<(Option<String>, Option<LuaString>)> {
    match found {
        Some((path, bytes)) => Ok((Some(path), Some(lua.create_string(bytes)?))),
        None => Ok((None, None)),
    }
}

/// The functions for apps in Rust.
fn natives(
    lua: &Lua,
    table: &Table,
    world: &World,
    runtime: *mut Runtime,
    context: &WorkerContext,
) -> mlua::Result<()> {
    let (world, context) = (world.clone(), context.clone());
    table.set(
        "open",
        lua.create_function(
            move |lua: &Lua, (class, name, argument, workers): (String, String, Value, usize)| {
                let argument: serde_json::Value = lua.from_value(argument)?;
                let (frame_pool, worker) =
                    (&world.frame_pool, if context.apart { 0 } else { context.worker });
                let request = AppRequest {
                    class: &class,
                    name: &name,
                    argument: &argument,
                    worker,
                    workers,
                    frame_pool,
                };
                // Must not be interrupted here: it may hold locks.
                let opened = uninterrupted(|| {
                    context.rings.open(&class).unwrap_or_else(|| world.natives.open(&request))
                });
                let NativeApp { app, pulls } =
                    opened.map_err(|error| format!("app {name}: {error}").into_lua_err())?;
                // SAFETY: as in `table`.
                let native = unsafe { (*runtime).natives.adopt(Native::new(app, runtime)) };
                Ok((LightUserData(native.cast()), pulls))
            },
        )?,
    )?;
    table.set(
        "connect",
        lua.create_function(move |_: &Lua, (native, inputs, outputs): (LightUserData, Table, Table)| {
            let (inputs, outputs) = (names(&inputs)?, names(&outputs)?);
            // SAFETY: as in `table`.
            let native = unsafe { (*runtime).natives.find(pointer(native)) };
            native
                .ok_or_else(|| "no such app".into_lua_err())?
                .connect(inputs, outputs)
                .map_err(|why| why.into_lua_err())
        })?,
    )?;
    table.set(
        "close",
        lua.create_function(move |_: &Lua, native: LightUserData| {
            // SAFETY: as in `table`.
            uninterrupted(|| unsafe { Runtime::close(runtime, pointer(native)) });
            Ok(())
        })?,
    )
}

/// The functions with which the first worker leads the others.
fn workers(lua: &Lua, table: &Table, pool: Pool) -> mlua::Result<()> {
    let pool = Rc::new(RefCell::new(pool));
    let leader = pool.clone();
    table.set(
        "call_worker",
        lua.create_function(
            move |lua: &Lua, (worker, core, name, bytes): (usize, Option<usize>, String, LuaString)| {
                let answer = leader.borrow_mut().call(worker, core, &name, &bytes.as_bytes());
                answer
                    .map_err(|error| error.to_string().into_lua_err())
                    .and_then(|bytes| lua.create_string(bytes))
            },
        )?,
    )?;
    let leader = pool.clone();
    table.set(
        "run_workers",
        lua.create_function(move |_: &Lua, (): ()| {
            leader.borrow_mut().run();
            Ok(())
        })?,
    )?;
    table.set(
        "pause_workers",
        lua.create_function(move |_: &Lua, (): ()| {
            pool.borrow_mut().pause().map_err(|error| error.to_string().into_lua_err())
        })?,
    )
}

fn pointer(native: LightUserData) -> *mut Native {
    let pointer: *mut c_void = native.0;
    pointer.cast()
}

/// `{ { "name", index }, ... }` as two lists.
fn names(list: &Table) -> mlua::Result<Names> {
    let pairs = list.sequence_values::<Table>().map(|pair| {
        let pair = pair?;
        Ok((pair.get::<String>(1)?, pair.get::<usize>(2)?))
    });
    let pairs = pairs.collect::<mlua::Result<Vec<_>>>()?;
    Ok(pairs.into_iter().unzip())
}
