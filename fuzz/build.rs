//! Exports the C functions that Lua programs call by name (`bm-lua`, folder `c/`) from tests and the fuzzer.

fn main() {
    println!("cargo:rustc-link-arg=-rdynamic");
}
