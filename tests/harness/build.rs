//! Compiles the library that has a daemon's system calls fail (`src/faults.c`).

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=src/faults.c");
    let library = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("libfaults.so");
    let mut compile = cc::Build::new().opt_level(2).get_compiler().to_command();
    compile
        .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-o"])
        .arg(&library)
        .arg("src/faults.c")
        .arg("-ldl");
    let done = compile.status().expect("a C compiler");
    assert!(done.success(), "src/faults.c does not compile");
    println!("cargo:rustc-env=BM_FAULTS_LIBRARY={}", library.display());
}
