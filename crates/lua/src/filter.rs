//! Filters in tcpdump's language, compiled to instructions of the kernel's BPF by `brickmoon.filter`, for captures.

use mlua::{Lua, LuaString, Table};

use crate::modules;
use crate::state::LuaError;

/// The modules that the compiler is made of, each after those that it requires.
const MODULES: [&str; 6] = ["lexer", "tests", "arithmetic", "parser", "rows", "bpf"];

/// A compiled filter: see `lua/brickmoon/filter/bpf.lua`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfFilter {
    /// Instructions, 8 bytes each.
    pub instructions: Vec<u8>,
    /// How many bytes from the start of a frame they read at most; 0 if every frame matches.
    pub bytes: u32,
}

impl BpfFilter {
    /// Compiles a filter. An empty one matches every frame.
    ///
    /// # Errors
    /// The compiler's: three lines, with the reason, the filter and the position in it.
    pub fn compile(text: &str) -> Result<Self, String> {
        compile(text).map_err(|error| first_paragraph(&error.message))
    }
}

fn compile(text: &str) -> Result<BpfFilter, LuaError> {
    // SAFETY: the modules are those in the binary; they use FFI to parse addresses.
    let lua = unsafe { Lua::unsafe_new() };
    let loaded: Table = lua.globals().get::<Table>("package")?.get("loaded")?;
    for name in MODULES {
        let path = format!("brickmoon/filter/{name}.lua");
        let (path, bytes) =
            modules::from_binary(&path).ok_or_else(|| LuaError::new(format!("{path} is missing")))?;
        let module: Table = lua.load(bytes).set_name(format!("@{path}")).eval()?;
        loaded.set(format!("brickmoon.filter.{name}"), module)?;
    }
    let compile = "local text = ...\n\
                   local parser, bpf = require('brickmoon.filter.parser'), require('brickmoon.filter.bpf')\n\
                   return bpf.instructions(parser.parse(text))";
    let (instructions, bytes): (LuaString, u32) = lua.load(compile).call(text)?;
    Ok(BpfFilter { instructions: instructions.as_bytes().to_vec(), bytes })
}

/// The message without the prefix and the traceback that mlua puts around it.
fn first_paragraph(message: &str) -> String {
    let message = message.strip_prefix("runtime error: ").unwrap_or(message);
    message.split("\nstack traceback:").next().unwrap_or(message).trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_filter_reads_nothing() {
        let filter = BpfFilter::compile(" ").unwrap();
        // A jump to the next instruction; r0 = 1; exit.
        let (jump, one) = ([5, 0, 0, 0, 0, 0, 0, 0], [0xb4, 0, 0, 0, 1, 0, 0, 0]);
        let expected = [jump, one, [0x95, 0, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!((filter.bytes, filter.instructions), (0, expected));
    }

    #[test]
    fn a_filter_says_how_far_it_reads() {
        for (text, bytes) in
            [("ip", 14), ("ip6 host 2001:db8::1", 54), ("udp port 53", 78), ("ether[200] = 1", 201)]
        {
            assert_eq!(BpfFilter::compile(text).map(|filter| filter.bytes), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn an_error_shows_where() {
        let why = BpfFilter::compile("udp prt 53").unwrap_err();
        assert_eq!(
            why,
            "filter, column 5: expected 'and', 'or' or the end of the filter, not 'prt'\n   udp prt 53\n       ^"
        );
        let why = BpfFilter::compile("ether[300] = 1").unwrap_err();
        assert_eq!(why, "filter: it reads byte 301 of a packet, and a capture can only test the first 256");
    }
}
