//! Compiles the forwarding programs for XDP and for tc.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    for name in ["forward", "skb"] {
        compile::compile(name, |builder, out| builder.obj(out.join(format!("{name}.bpf.o"))).build());
    }
}
