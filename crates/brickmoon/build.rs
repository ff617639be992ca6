//! Keeps the C functions that Lua programs reach by name visible in the binary (`bm-lua`, folder `c/`), and compiles the
//! library that connects IKE daemons (`crates/xfrm/preload`), beside the binary.

use std::path::PathBuf;

fn main() {
    println!("cargo:rustc-link-arg-bins=-rdynamic");
    preload();
}

/// Cargo makes no shared libraries of C. The folder of the binary is three above `OUT_DIR`, which is
/// `build/brickmoon-*/out` in it.
fn preload() {
    let source = "../xfrm/preload/preload.c";
    println!("cargo:rerun-if-changed={source}");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let folder = out.ancestors().nth(3).expect("it is below the folder of the binary");
    // Programs load it that are not built with a sanitizer, whatever this build has.
    let mut compiler = cc::Build::new().get_compiler().to_command();
    compiler.args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-fno-sanitize=all", "-o"]);
    compiler.arg(folder.join("libbrickmoon-xfrm.so")).arg(source);
    let compiled = compiler.status().expect("a C compiler, which tools/setup build installs");
    assert!(compiled.success(), "{source} cannot be compiled");
}
