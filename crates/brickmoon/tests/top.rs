//! `brickmoon top` on a Lua program, and without anything that answers.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

const PROGRAM: &str = "local basic = require('apps.basic.basic_apps')
local c = config.new()
config.app(c, 'source', basic.Source)
config.app(c, 'sink', basic.Sink)
config.link(c, 'source.o -> sink.i')
engine.configure(c)
print('ready') io.flush()
engine.main { duration = 300 }
";

fn place(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("bm-top-{}-{name}", std::process::id()))
}

fn top(socket: &std::path::Path, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brickmoon"));
    command.arg("top").arg("--socket").arg(socket).args(options);
    command.output().expect("the binary is there")
}

/// Kills the program at the end, also if the test fails.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[test]
fn shows_the_links_of_a_lua_program() {
    let (file, socket) = (place("program.lua"), place("api.sock"));
    std::fs::write(&file, PROGRAM).expect("the test can write");
    let mut command = Command::new(env!("CARGO_BIN_EXE_brickmoon"));
    command.args(["run", "--socket"]).arg(&socket).arg(&file).stdout(Stdio::piped());
    let mut program = Program(command.spawn().expect("the binary is there"));
    let mut ready = [0; 6];
    program.0.stdout.as_mut().expect("piped").read_exact(&mut ready).expect("it starts");
    let output = top(&socket, &["--json", "--interval", "0.5"]);
    let object: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!((&object["path"], &object["pid"]), (&"lua".into(), &program.0.id().into()), "{object}");
    let link = &object["links"][0];
    assert_eq!(link["link"], "source.o -> sink.i", "{object}");
    assert!(link["frames_s"].as_f64().is_some_and(|rate| rate > 0.0), "{object}");
    let text = top(&socket, &["--once", "--view", "apps", "--interval", "0.1"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(
        text.contains("Lua program, process") && text.contains("\n  source ") && text.contains("\nLinks\n"),
        "{text}"
    );
    drop(program);
    let silent = top(&socket, &["--once"]);
    let why = String::from_utf8_lossy(&silent.stderr).into_owned();
    assert!(silent.status.code() == Some(1) && why.contains("no daemon answers at"), "{why}");
    for path in [file, socket] {
        let _gone = std::fs::remove_file(path);
    }
}
