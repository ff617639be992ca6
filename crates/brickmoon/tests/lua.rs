//! The binary as Lua programs see it: C functions by their names, workers of its own kind, nothing left behind.

#![allow(clippy::unwrap_used)]

use std::process::Command;

fn snabb(module: &str) -> (Option<i32>, u32, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_brickmoon"));
    let child = child.args(["snabb", "-t", module]).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), id, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Tests in crates/lua have them in their own binaries; the linker may treat this one in another way.
#[test]
fn c_functions_are_found_by_name() {
    for module in ["lib.checksum", "brickmoon.table", "core.timer", "brickmoon.filter"] {
        let (code, _, stderr) = snabb(module);
        assert_eq!(code, Some(0), "{module}: {stderr}");
    }
}

#[test]
fn workers_are_processes_of_this_binary() {
    let (code, _, stderr) = snabb("core.worker");
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn shared_memory_is_given_back() {
    let (code, id, stderr) = snabb("core.app");
    assert_eq!(code, Some(0), "{stderr}");
    for root in ["/run/brickmoon/shm", "/dev/shm/brickmoon-root"] {
        assert!(!std::path::Path::new(root).join(id.to_string()).exists(), "{root}/{id} is still there");
    }
}
