//! With the feature `ipsec-mb`: compiles the shim against the installed intel-ipsec-mb, and links both.

fn main() {
    for file in ["c/shim.c", "c/shim.h"] {
        println!("cargo:rerun-if-changed={file}");
    }
    if std::env::var_os("CARGO_FEATURE_IPSEC_MB").is_none() {
        return;
    }
    // Another version needs another shim.
    println!("cargo:rerun-if-changed=/usr/include/intel-ipsec-mb.h");
    let mut build = cc::Build::new();
    build.file("c/shim.c").opt_level(3).flag("-Wall").flag("-Wextra");
    if let Err(error) = build.try_compile("bm_ipsec_mb") {
        eprintln!("the feature `ipsec-mb` needs intel-ipsec-mb 1.3 or newer:\n{error}");
        eprintln!("On Debian: apt-get install libipsec-mb-dev. Everything else builds without this feature.");
        std::process::exit(1);
    }
    println!("cargo:rustc-link-lib=dylib=IPSec_MB");
}
