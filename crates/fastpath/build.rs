//! Compiles the forwarding programs for XDP and for tc, the one that counts what Linux drops, and the one that
//! lists interfaces of other namespaces.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    for name in ["forward", "skb", "dropped", "uppers"] {
        compile::compile(name, |builder, out| builder.obj(out.join(format!("{name}.bpf.o"))).build());
    }
}
