//! Writes the table of the Lua sources under `lua/`, which the binary then holds, and compiles the C functions that
//! Lua programs find by name in the binary (`c/`), DynASM's encoder among them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    compile_symbols()?;
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("lua");
    println!("cargo:rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut table = String::from("&[\n");
    for file in files {
        let name = file.strip_prefix(&root).map_err(io::Error::other)?;
        let _written = writeln!(table, "({name:?}, include_bytes!({file:?})),");
    }
    table.push(']');
    fs::write(PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("sources.rs"), table)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            println!("cargo:rerun-if-changed={}", path.display());
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension != "md") {
            files.push(path);
        }
    }
    Ok(())
}

/// All of `c/` goes into the binary whole, and the names stay visible, as only Lua calls them.
fn compile_symbols() -> io::Result<()> {
    println!("cargo:rerun-if-changed=c");
    println!("cargo:rustc-link-arg=-rdynamic");
    let sources = ["checksum", "clock", "guard", "hash", "shmem", "sync", "tables", "timeline", "unwind"];
    let mut ours = cc::Build::new();
    ours.files(sources.map(|name| format!("c/{name}.c")))
        .flag("-Wall")
        .flag("-Wextra")
        .link_lib_modifier("+whole-archive")
        .opt_level(3);
    ours.compile("bm_symbols");
    let mut dynasm = cc::Build::new();
    dynasm.file("c/dynasm.c").include(dynasm_folder()?).warnings(false).link_lib_modifier("+whole-archive");
    dynasm.compile("bm_dynasm");
    Ok(())
}

/// DynASM's headers lie in the LuaJIT sources of the package that mlua builds it from. Cargo knows where that is.
///
/// It is asked about a package that needs luajit-src and nothing else: for the whole workspace it wants packages that
/// no build downloads, those of features and platforms not in use.
fn dynasm_folder() -> io::Result<PathBuf> {
    let folder = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("where");
    fs::create_dir_all(folder.join("src"))?;
    fs::write(folder.join("src/lib.rs"), "")?;
    fs::write(folder.join("Cargo.toml"), WHERE)?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["metadata", "--format-version", "1", "--offline", "--filter-platform"];
    let mut command = Command::new(cargo);
    command.args(arguments).arg(env::var("TARGET").unwrap_or_default());
    let output = command.arg("--manifest-path").arg(folder.join("Cargo.toml")).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.split('"').find(|path| path.contains("/luajit-src") && path.ends_with("/Cargo.toml"));
    let manifest = found.ok_or_else(|| {
        let why = String::from_utf8_lossy(&output.stderr);
        io::Error::other(format!("cargo metadata names no package luajit-src: {why}"))
    })?;
    Ok(Path::new(manifest).with_file_name("luajit2").join("dynasm"))
}

/// A package in a workspace of its own. The version is the workspace's, in Cargo.toml.
const WHERE: &str = r#"
[workspace]
[package]
name = "where"
version = "0.0.0"
edition = "2024"
[dependencies]
luajit-src = "=210.7.2"
"#;
