//! Compiles the programs that show packets.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    compile::compile("capture", |builder, out| builder.obj(out.join("capture.bpf.o")).build());
}
