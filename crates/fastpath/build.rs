//! Compiles the forwarding programs.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

/// The programs for XDP and for tc.
const SOURCES: [&str; 2] = ["forward", "skb"];
/// Headers that other crates' programs use as well.
const SHARED: &str = "../bpf/bpf";

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-changed={SHARED}");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it for build scripts"));
    // The kernel's headers include <asm/types.h>, which Debian keeps under the machine's name.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it for build scripts");
    for name in SOURCES {
        let source = format!("bpf/{name}.bpf.c");
        let built = SkeletonBuilder::new()
            .source(&source)
            .obj(out.join(format!("{name}.bpf.o")))
            .clang_args([
                format!("-I/usr/include/{arch}-linux-gnu"),
                format!("-I{SHARED}"),
                "-mcpu=v3".into(),
                "-Wall".into(),
            ])
            .build();
        if let Err(error) = built {
            eprintln!("{source}: {error:#}\nIt needs: apt-get install clang libbpf-dev linux-libc-dev");
            std::process::exit(1);
        }
    }
}
