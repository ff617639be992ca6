//! Commands end when the daemon does not answer, and report what they waited for.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Long enough for a command that waits one second, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A socket on which a process listens but never answers; removed on drop.
struct Silent(PathBuf, #[allow(dead_code, reason = "open as long as this lives")] UnixListener);

impl Silent {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bm-silent-{}-{name}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).expect("the test can listen");
        Self(path, listener)
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

fn brickmoon(silent: &Silent, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brickmoon"));
    command.args(arguments).arg("--socket").arg(&silent.0).args(["--timeout", "1"]);
    let begin = Instant::now();
    let output = command.output().expect("the binary is there");
    assert!(begin.elapsed() < PATIENCE, "{arguments:?} took {:?}", begin.elapsed());
    output
}

#[test]
fn a_request_without_an_answer_times_out_with_a_message() {
    let silent = Silent::new("question");
    let cases: [(&[&str], &str); 5] = [
        (&["status"], "GET /v1/status"),
        (&["show", "routes", "--limit", "7"], "GET /v1/routes?limit=7"),
        (&["verify"], "POST /v1/verify"),
        (&["reload"], "POST /v1/reload"),
        (&["stop"], "POST /v1/stop"),
    ];
    for (arguments, asked) in cases {
        let output = brickmoon(&silent, arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        let expected = format!("no answer to `{asked}` from {} within 1 s", silent.0.display());
        assert!(text.contains(&expected), "{arguments:?}: {text}");
    }
}

#[test]
fn a_daemon_that_accepts_no_connections_does_not_block_a_command() {
    let silent = Silent::new("full");
    // As many connections as its queue holds, and one that blocks.
    let path = silent.0.clone();
    std::thread::spawn(move || {
        let mut all = Vec::new();
        while let Ok(stream) = std::os::unix::net::UnixStream::connect(&path) {
            all.push(stream);
        }
    });
    let begin = Instant::now();
    loop {
        let output = brickmoon(&silent, &["stop"]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        if text.contains("accepts no connections") {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{text}");
    }
}
