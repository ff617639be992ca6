//! Compiles the forwarding programs for XDP and for tc, both with flows and without, the one that reports what Linux
//! sends, the one that counts what Linux drops, and the one that lists interfaces of other namespaces.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    for name in ["forward", "forward_flows", "skb", "skb_flows", "observe", "dropped", "uppers"] {
        compile::compile(name, |builder, out| builder.obj(out.join(format!("{name}.bpf.o"))).build());
    }
}
