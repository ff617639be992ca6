//! Compiles the programs that generate and check traffic, and generates the Rust skeleton.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    compile::compile("traffic", |builder, out| builder.build_and_generate(out.join("traffic.skel.rs")));
}
