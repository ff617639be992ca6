//! Keeps the C functions that Lua programs reach by name visible in the binary (`bm-lua`, folder `c/`).

fn main() {
    println!("cargo:rustc-link-arg-bins=-rdynamic");
}
