//! Compiles the switch's programs.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    compile::compile("switch", |builder, out| builder.obj(out.join("switch.bpf.o")).build());
}
