//! Compiles the fabric program.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    compile::compile("fabric", |builder, out| builder.obj(out.join("fabric.bpf.o")).build());
}
