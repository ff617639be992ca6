//! An XDP program of somebody else, which keeps brickmoon's from an interface.

use crate::netns::Namespace;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "__attribute__((section(\"xdp\"), used)) int pass(void *ctx) { return 2; }\n\
    char LICENSE[] __attribute__((section(\"license\"), used)) = \"GPL\";\n";

/// A compiled program that passes everything, for iproute2 to attach.
pub struct ForeignProgram {
    folder: PathBuf,
}

impl ForeignProgram {
    /// `None` without a compiler.
    pub fn compile(test: &str) -> Option<Self> {
        let program = Self { folder: std::env::temp_dir().join(format!("bm-{test}-{}", std::process::id())) };
        std::fs::create_dir_all(&program.folder).expect("a folder");
        let source = program.folder.join("pass.c");
        std::fs::write(&source, SOURCE).expect("a file");
        let mut clang = Command::new("clang");
        clang.args(["-O2", "-g", "-target", "bpf", "-c"]).arg(&source).arg("-o").arg(program.object());
        clang.status().is_ok_and(|status| status.success()).then_some(program)
    }

    fn object(&self) -> PathBuf {
        self.folder.join("pass.o")
    }

    /// Attaches it; `mode` is `xdpgeneric` or `xdpdrv`.
    pub fn attach(&self, namespace: &Namespace, interface: &str, mode: &str) {
        namespace.run(&format!("ip link set dev {interface} {mode} obj {} sec xdp", self.object().display()));
    }
}

impl Drop for ForeignProgram {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}
