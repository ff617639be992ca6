//! Compiles the forwarding programs for XDP and for tc, and the one that counts what Linux drops.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    for name in ["forward", "skb", "dropped"] {
        compile::compile(name, |builder, out| builder.obj(out.join(format!("{name}.bpf.o"))).build());
    }
}
