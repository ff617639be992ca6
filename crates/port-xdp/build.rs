//! Compiles the steering programs, and generates the Rust skeleton.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    compile::compile("steer", |builder, out| builder.build_and_generate(out.join("steer.skel.rs")));
}
