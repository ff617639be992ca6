//! `brickmoon bench` and `brickmoon demo`, which `brickmoon-bench` runs. `brickmoon bench` rejects options that have no
//! effect, before it measures anything.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROUTER: &str = env!("CARGO_BIN_EXE_brickmoon");
const BENCH: &str = env!("CARGO_BIN_EXE_brickmoon-bench");

#[test]
fn refuses_options_of_another_bench() {
    for (arguments, words) in [
        (&["forward", "--peers"][..], "--peers is only for `brickmoon bench lookup`"),
        (&["batch", "--structure", "dir18"], "--structure is only for `brickmoon bench lookup`"),
        (&["ports", "--soak", "1m"], "--soak is only for `brickmoon bench lua`"),
        (&["lookup", "--sizes", "imix"], "--sizes is only for `brickmoon bench forward|ports`"),
        (
            &["lua", "--rib", "r.txt"],
            "--rib is only for `brickmoon bench lookup|forward|batch|workers|ports|kernel`",
        ),
        (
            &["loss", "--rib", "r.txt"],
            "--rib is only for `brickmoon bench lookup|forward|batch|workers|ports|kernel`",
        ),
        (&["kernel", "--case", "switch", "--rib", "r.txt"], "--rib has no effect on cases with \"switch\""),
        (&["forward", "--case", "one", "--rib", "r.txt"], "--rib has no effect on cases with \"one\""),
        (&["lua", "--soak", "1m", "--plot", "x.svg"], "remove --plot"),
        (&["lua", "--soak", "1m", "--seconds", "9"], "remove --seconds"),
    ] {
        let mut command = Command::new(ROUTER);
        let done = command.arg("bench").args(arguments).output().expect("cargo has built it");
        let message = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {message}");
        assert!(message.contains(words), "{arguments:?}: {message}");
    }
}

/// Folders of this test; the router is in the first of them, without `brickmoon-bench`.
struct Folders(PathBuf);

impl Folders {
    fn new(name: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bm-{name}-{}", std::process::id()));
        let folders = Self(root);
        for folder in ["sbin", "path"] {
            fs::create_dir_all(folders.0.join(folder)).expect("cargo's folder takes files");
        }
        // A hard link, since the program is large; it looks in the folder of its own name.
        fs::hard_link(ROUTER, folders.0.join("sbin/brickmoon")).expect("on the same file system");
        folders
    }

    /// A program in place of `brickmoon-bench`, which prints its name, its arguments and exits with 7.
    fn write_bench(&self, folder: &str) {
        let program = self.0.join(folder).join("brickmoon-bench");
        fs::write(&program, format!("#!/bin/sh\necho {folder} \"$@\"\nexit 7\n")).expect("a folder of ours");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a file of ours");
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.0.join("sbin/brickmoon"));
        command.args(arguments).env("PATH", self.0.join("path")).output().expect("it was linked")
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn starts_brickmoon_bench_from_its_own_folder_or_from_path() {
    let folders = Folders::new("bench-program");
    for command in ["bench", "demo"] {
        let done = folders.run(&[command, "--json"]);
        let message = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(1), "{message}");
        let expected =
            format!("brickmoon: brickmoon {command} needs the program brickmoon-bench, which is neither");
        assert!(message.starts_with(&expected) && message.contains("make install"), "{message}");
    }
    let outcome = |arguments: &[&str]| {
        let done = folders.run(arguments);
        (done.status.code(), String::from_utf8_lossy(&done.stdout).into_owned())
    };
    folders.write_bench("path");
    let arguments = ["-vv", "bench", "--rib", "r.txt", "lookup", "--help", "-v", "--", "x"];
    let passed_on = "path -v -v bench --rib r.txt lookup --help -v -- x\n";
    assert_eq!(outcome(&arguments), (Some(7), passed_on.into()));
    folders.write_bench("sbin");
    assert_eq!(outcome(&["demo", "--routes", "5"]), (Some(7), "sbin demo --routes 5\n".into()));
    assert_eq!(outcome(&["bench", "-h"]), (Some(7), "sbin bench -h\n".into()));
}

#[test]
fn help_and_errors_are_those_of_the_given_command() {
    let run = |arguments: &[&str]| {
        let done = Command::new(ROUTER).args(arguments).output().expect("cargo has built it");
        let [message, errors] =
            [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        (done.status.code(), message, errors)
    };
    for (command, usage, option) in [
        ("bench", "Usage: brickmoon bench [OPTIONS] <WHAT>", "--structure <all|NAME>"),
        ("demo", "Usage: brickmoon demo [OPTIONS]", "--routes <N>"),
        ("simulate", "Usage: brickmoon simulate [OPTIONS]", "--quota <QUOTA>"),
        ("plan", "Usage: brickmoon plan [OPTIONS] <FILE.toml>", "--svg <FILE.svg>"),
    ] {
        let (status, message, errors) = run(&[command, "--help"]);
        assert_eq!((status, errors.as_str()), (Some(0), ""));
        assert!(message.contains(usage) && message.contains(option), "{message}");
        let (status, _, errors) = run(&[command, "--nonsense"]);
        assert_eq!(status, Some(2), "{errors}");
        assert!(errors.contains("unexpected argument '--nonsense'") && errors.contains(usage), "{errors}");
    }
    let (_, message, _) = run(&["--help"]);
    assert!(message.contains("\n  bench ") && message.contains("\n  demo "), "{message}");
}

#[test]
fn the_router_contains_no_code_of_the_benches() {
    // Paths of sources are part of panic messages and of debug information.
    let [router, bench] = [ROUTER, BENCH].map(|program| fs::read(program).expect("cargo has built it"));
    for path in ["crates/eval/src", "crates/simulate/src", "crates/testbed/src"] {
        let is_in = |program: &[u8]| program.windows(path.len()).any(|bytes| bytes == path.as_bytes());
        assert!(is_in(&bench), "{path} is not in brickmoon-bench, so this test finds nothing");
        assert!(!is_in(&router), "{path} is in brickmoon");
    }
}
