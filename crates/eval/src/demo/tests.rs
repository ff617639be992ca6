use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;

/// A program that behaves as the daemon does and leaves all packets to Linux.
const PRETENDER: &str = "#!/bin/sh\ntrap 'exit 0' TERM\n[ \"$1\" = up ] || exit 2\n\
    echo ready\nwhile :; do sleep 0.05; done\n";

struct Program(PathBuf);

impl Program {
    fn new(name: &str, script: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bm-eval-{name}-{}", std::process::id()));
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn options(name: &str, tag: &str, program: &Program) -> DemoOptions {
    DemoOptions {
        routes: 2_000,
        seconds: 0.5,
        program: Some(program.0.clone()),
        testbed: TestbedOptions {
            prefix: format!("bm-eval-{name}"),
            tag: tag.into(),
            ..TestbedOptions::default()
        },
        ..DemoOptions::default()
    }
}

fn is_skipped(name: &str) -> bool {
    let skipped = testbed::require_root().is_err();
    if skipped {
        eprintln!("skipped {name}: needs root");
    }
    skipped
}

fn is_clean(name: &str) -> bool {
    ["src", "rtr", "snk"].iter().all(|end| !Path::new(&format!("/run/netns/bm-eval-{name}-{end}")).exists())
        && !Path::new(&format!("/run/bm-eval-{name}")).exists()
}

/// One at a time: the demo watches for signals, which a process can do once only.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn runs_twice_and_leaves_nothing() {
    if is_skipped("runs_twice_and_leaves_nothing") {
        return;
    }
    let _one = ONE.lock();
    let program = Program::new("pretender", PRETENDER);
    let mut text = Vec::new();
    run(&options("story", "ga", &program), &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    for words in [
        "make three namespaces",
        "2,000 IPv4 and 400 IPv6 routes",
        "by ns",
        "kill -9",
        "Nothing is left behind",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("WRONG"), "{text}");
    assert!(is_clean("story"));

    let mut lines = Vec::new();
    run(&DemoOptions { json: true, ..options("story", "ga", &program) }, &mut lines).unwrap();
    let rows: Vec<serde_json::Value> =
        String::from_utf8(lines).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Five kinds of traffic three times, three events.
    assert_eq!(rows.len(), 18);
    for row in &rows {
        assert!(row["max"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["detail"]["bad"].as_u64().unwrap_or(0) == 0, "{row}");
    }
    assert!(is_clean("story"));
}

#[test]
fn reports_why_the_daemon_did_not_start() {
    if is_skipped("reports_why_the_daemon_did_not_start") {
        return;
    }
    let _one = ONE.lock();
    let program = Program::new("failing", "#!/bin/sh\necho 'r0: no such port' >&2\nexit 2\n");
    let error = run(&options("fails", "gb", &program), &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("exit status: 2") && error.contains("r0: no such port"), "{error}");
    assert!(is_clean("fails"));

    let absent = DemoOptions { program: Some("/nonexistent".into()), ..options("fails", "gb", &program) };
    let error = run(&absent, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.starts_with("start /nonexistent: No such file"), "{error}");
    let unread = DemoOptions { rib: vec!["/nonexistent".into()], ..absent };
    let error = run(&unread, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent: No such file"), "{error}");
    assert!(is_clean("fails"));
}
