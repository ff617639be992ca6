//! Compiles the fabric program.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "bpf/fabric.bpf.c";

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it for build scripts"));
    // The kernel's headers include <asm/types.h>, which Debian keeps under the machine's name.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it for build scripts");
    let built = SkeletonBuilder::new()
        .source(SOURCE)
        .obj(out.join("fabric.bpf.o"))
        .clang_args([format!("-I/usr/include/{arch}-linux-gnu"), "-mcpu=v3".into(), "-Wall".into()])
        .build();
    if let Err(error) = built {
        eprintln!("{SOURCE}: {error:#}\nIt needs: apt-get install clang libbpf-dev linux-libc-dev");
        std::process::exit(1);
    }
}
