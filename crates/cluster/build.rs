//! Compiles the fabric program, and that of relays.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    compile::compile("fabric", |builder, out| builder.obj(out.join("fabric.bpf.o")).build());
    compile::compile("relay", |builder, out| builder.obj(out.join("relay.bpf.o")).build());
}
