//! Builds the BPF programs that generate and check traffic, and their Rust skeleton.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it for build scripts"));
    let source = "bpf/traffic.bpf.c";
    println!("cargo:rerun-if-changed={source}");
    // The kernel's headers include <asm/types.h>, which Debian keeps under the machine's name.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it for build scripts");
    let built = SkeletonBuilder::new()
        .source(source)
        .clang_args([format!("-I/usr/include/{arch}-linux-gnu"), "-mcpu=v3".into(), "-Wall".into()])
        .build_and_generate(out.join("traffic.skel.rs"));
    if let Err(error) = built {
        eprintln!("{source}: {error:#}\nIt needs: apt-get install clang libbpf-dev linux-libc-dev");
        std::process::exit(1);
    }
}
