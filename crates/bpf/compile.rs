//! Compiles a BPF program, for build scripts: `#[path = "../bpf/compile.rs"] mod compile;`.

use std::env;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

/// Headers that programs of several crates use.
const SHARED: &str = "../bpf/bpf";

/// Compiles `bpf/NAME.bpf.c`. `build` is given the folder for its output, and asks for an object or a skeleton.
pub fn compile<E: Display>(name: &str, build: impl FnOnce(&mut SkeletonBuilder, &Path) -> Result<(), E>) {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-changed={SHARED}");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it for build scripts"));
    // The kernel's headers include <asm/types.h>, which Debian keeps under the machine's name.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it for build scripts");
    let source = format!("bpf/{name}.bpf.c");
    let includes = [format!("-I/usr/include/{arch}-linux-gnu"), format!("-I{SHARED}")];
    let arguments = includes.into_iter().chain(["-mcpu=v3".into(), "-Wall".into()]);
    if let Err(error) = build(SkeletonBuilder::new().source(&source).clang_args(arguments), &out) {
        eprintln!("{source}: {error:#}\nIt needs: apt-get install clang libbpf-dev linux-libc-dev");
        std::process::exit(1);
    }
}
