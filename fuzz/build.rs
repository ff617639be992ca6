//! Keeps the C functions that Lua programs reach by name visible in tests and in the fuzzer (`bm-lua`, folder `c/`).

fn main() {
    println!("cargo:rustc-link-arg=-rdynamic");
}
