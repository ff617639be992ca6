//! The binary as Lua programs see it: C functions by name, workers as processes, no files left behind.

#![allow(clippy::unwrap_used)]

use std::process::Command;

fn snabb(module: &str) -> (Option<i32>, u32, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_brickmoon"));
    let child = child.args(["snabb", "-t", module]).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), id, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Tests in crates/lua have them in their own binaries; the linker may treat this binary differently.
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
fn shared_memory_is_removed() {
    let (code, id, stderr) = snabb("core.app");
    assert_eq!(code, Some(0), "{stderr}");
    for root in ["/run/brickmoon/shm", "/dev/shm/brickmoon-0"] {
        assert!(!std::path::Path::new(root).join(id.to_string()).exists(), "{root}/{id} is still there");
    }
}

/// A temporary Lua file with this text.
fn program(name: &str, text: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("bm-{name}-{}.lua", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn another_process_prints_the_timeline_of_the_engine() {
    let text = r#"
        local basic = require("apps.basic.basic_apps")
        local c = config.new()
        config.app(c, "source", basic.Source)
        config.app(c, "sink", basic.Sink)
        config.link(c, "source.o -> sink.i")
        engine.configure(c)
        engine.main { duration = 0.5, no_report = true }
        local ask = ("%s snabb --socket %s-asks timeline %d"):format(main.parameters[1], main.parameters[2],
           require("ffi").C.bm_getpid())
        local answer = io.popen(ask)
        print(answer:read("*a"))
        answer:close()"#;
    let (path, socket) = (
        program("timeline", text),
        std::env::temp_dir().join(format!("bm-timeline-{}.sock", std::process::id())),
    );
    let run = |enable: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_brickmoon"));
        command
            .args(["run", "--socket"])
            .args([&socket, &path])
            .arg(env!("CARGO_BIN_EXE_brickmoon"))
            .arg(&socket)
            .env_remove("SNABB_TIMELINE_ENABLE");
        let output = command.envs(enable.map(|value| ("SNABB_TIMELINE_ENABLE", value))).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let (with, without) = (run(Some("1")), run(None));
    std::fs::remove_file(&path).unwrap();
    for event in [
        "engine.configure config=",
        "engine.engine_started",
        "engine.breath_end breath=",
        "engine.engine_stopped",
    ] {
        assert!(with.contains(event), "{event} is not in:\n{with}");
    }
    assert_eq!(without.trim(), "", "nothing may be logged without the environment variable");
}
