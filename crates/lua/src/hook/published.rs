//! What all states of a set of hooks share: tables that are published as a whole, and plain memory.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bm_sys::Mutex;
use mlua::{ExternalError as _, LightUserData, Lua, Table};

use super::guard::uninterrupted;

/// A text, and how often it has been published.
type Text = (u64, Arc<[u8]>);

/// Published texts and memory, by name.
#[derive(Default)]
pub struct Publications {
    /// Raised with every change: states look at it without a lock.
    generation: AtomicU64,
    texts: Mutex<HashMap<String, Text>>,
    /// Each is in an `Arc`, which claims no exclusive access: states have the addresses. Atomics, since hooks on all
    /// threads write there.
    memory: Mutex<HashMap<String, Arc<[AtomicU64]>>>,
}

impl Publications {
    /// The address of the generation.
    pub fn generation(&self) -> *const c_void {
        std::ptr::from_ref(&self.generation).cast()
    }

    fn publish(&self, name: String, bytes: &[u8]) {
        let mut texts = self.texts.lock();
        let number = texts.get(&name).map_or(1, |(number, _)| number + 1);
        texts.insert(name, (number, bytes.into()));
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn fetch(&self, name: &str) -> Option<Text> {
        self.texts.lock().get(name).cloned()
    }

    /// Memory of `bytes`, zero when it is new; it stays where it is.
    fn memory(&self, name: &str, bytes: usize) -> Result<*mut c_void, String> {
        let words = bytes.div_ceil(8).max(1);
        if words > 1 << 27 {
            return Err(format!("memory {name:?} cannot have {bytes} bytes: the limit is 1 GiB"));
        }
        let mut memory = self.memory.lock();
        let found =
            memory.entry(name.into()).or_insert_with(|| (0..words).map(|_| AtomicU64::new(0)).collect());
        if found.len() != words {
            let there = found.len() * 8;
            return Err(format!(
                "memory {name:?} already exists with {there} bytes instead of {bytes}: use another name"
            ));
        }
        Ok(found.as_ptr().cast_mut().cast())
    }

    /// Adds the functions for Lua to `bridge`.
    pub fn bridge(self: &Arc<Self>, lua: &Lua, bridge: &Table) -> mlua::Result<()> {
        let shared = self.clone();
        bridge.set(
            "publish",
            lua.create_function(move |_: &Lua, (name, text): (String, mlua::LuaString)| {
                uninterrupted(|| shared.publish(name, &text.as_bytes()));
                Ok(())
            })?,
        )?;
        let shared = self.clone();
        bridge.set(
            "fetch",
            lua.create_function(move |lua: &Lua, name: String| {
                match uninterrupted(|| shared.fetch(&name)) {
                    Some((number, bytes)) => Ok((Some(number as f64), Some(lua.create_string(&*bytes)?))),
                    None => Ok((None, None)),
                }
            })?,
        )?;
        let shared = self.clone();
        bridge.set(
            "memory",
            lua.create_function(move |_: &Lua, (name, bytes): (String, usize)| {
                uninterrupted(|| shared.memory(&name, bytes))
                    .map(LightUserData)
                    .map_err(|why| why.into_lua_err())
            })?,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_same_name_is_shared() {
        let published = Publications::default();
        let first = published.memory("bindings", 100).unwrap();
        assert_eq!(published.memory("bindings", 104).unwrap(), first);
        assert_ne!(published.memory("others", 100).unwrap(), first);
        let refused = published.memory("bindings", 200).unwrap_err();
        assert!(refused.contains("already exists with 104 bytes instead of 200"), "{refused}");
    }

    #[test]
    fn texts_are_replaced_atomically() {
        let published = Publications::default();
        published.publish("list".into(), b"one");
        published.publish("list".into(), b"two");
        assert_eq!(
            published.fetch("list").map(|(number, text)| (number, text.to_vec())),
            Some((2, b"two".into()))
        );
        assert_eq!(published.generation.load(Ordering::Relaxed), 2);
        assert!(published.fetch("none").is_none());
    }
}
