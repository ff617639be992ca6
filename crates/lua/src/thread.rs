//! Lua threads on whose stacks functions wait to be called.

use std::ffi::c_int;

use mlua::{ExternalError as _, Lua, MultiValue, ffi};

/// A thread of the state with `values` on its stack. It lives as long as the state.
pub(crate) fn thread(lua: &Lua, values: MultiValue) -> mlua::Result<*mut ffi::lua_State> {
    let (mut thread, count) = (std::ptr::null_mut(), values.len() as c_int);
    // SAFETY: the values are on top of the stack; the thread is made, anchored, and given them, and nothing is left.
    unsafe {
        lua.exec_raw::<()>(values, |state| {
            thread = ffi::lua_newthread(state);
            // Popped from the stack and kept as long as the state lives.
            ffi::luaL_ref(state, ffi::LUA_REGISTRYINDEX);
            ffi::lua_xmove(state, thread, count);
        })?;
    }
    if thread.is_null() { Err("no memory for a Lua thread".into_lua_err()) } else { Ok(thread) }
}
