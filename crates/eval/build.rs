//! Compiles the rivals of the kernel path, and generates their Rust skeleton.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    compile::compile("rivals", |builder, out| builder.build_and_generate(out.join("rivals.skel.rs")));
    // Lua programs, of which the benches have some, reach C functions by name in the binary (bm-lua, folder c/).
    println!("cargo:rustc-link-arg=-rdynamic");
}
