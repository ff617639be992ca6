//! What Lua programs access through FFI: packets in frame memory and the C functions on their bytes; and filters in
//! tcpdump's language, compiled from any text.
//!
//! Checks: packets have the same content as strings in a model, and no operation on one affects another; checksums of
//! the C functions equal those of [`bm_wire`]; a text is a filter or an error with a message; a filter gives the same
//! result twice and reads nothing beyond the frame (other bytes there do not change the result).

use std::cell::RefCell;
use std::sync::Arc;

use bm_lua::{NoNatives, PAYLOAD, PreparedFunction, State, World};

const PACKETS: &str = include_str!("packets.lua");
const FILTER: &str = include_str!("filter.lua");

/// A Lua program that takes the address of an input.
struct Loaded {
    prepared: PreparedFunction,
    _state: State,
}

impl Loaded {
    fn new(name: &str, text: &str) -> Self {
        let world = World::new(Arc::new(NoNatives), Vec::new(), PAYLOAD).expect("memory for frames");
        let state = State::new(&world).expect("a Lua state");
        let prepared = state.prepare(name, text, 0).unwrap_or_else(|error| panic!("{error}"));
        Self { prepared, _state: state }
    }

    /// Calls it with an input: a length in four bytes, then the bytes.
    fn call(&self, bytes: &[u8]) -> u64 {
        let input = [&(bytes.len() as u32).to_ne_bytes()[..], bytes].concat();
        let called = self.prepared.call(input.as_ptr() as u64);
        called.unwrap_or_else(|error| panic!("{error}"))
    }
}

thread_local! {
    static WITH_PACKETS: RefCell<Option<Loaded>> = const { RefCell::new(None) };
    static WITH_FILTER: RefCell<Option<Loaded>> = const { RefCell::new(None) };
}

/// Operations on packets.
pub fn packets(bytes: &[u8]) {
    WITH_PACKETS.with_borrow_mut(|loaded| {
        loaded.get_or_insert_with(|| Loaded::new("packets.lua", PACKETS)).call(bytes);
        // The checksum of all bytes, computed by C.
        let sum = loaded.as_ref().map_or(0, |loaded| loaded.call(&[b"\xff", bytes].concat()));
        let odd = bytes.len() % 2;
        let padded = [bytes, &[0][..odd]].concat();
        assert_eq!(sum, u64::from(bm_wire::checksum::checksum(&padded)), "checksum of {bytes:02x?}");
    });
}

/// A length byte, a filter of that length, then a frame.
pub fn filter(bytes: &[u8]) {
    WITH_FILTER.with_borrow_mut(|loaded| {
        loaded.get_or_insert_with(|| Loaded::new("filter.lua", FILTER)).call(bytes);
    });
}
