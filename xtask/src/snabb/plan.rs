//! The tests of a tree: found as its own Makefile finds them, and listed case by case if one script has many.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::shell;

/// One line of the table.
pub struct Test {
    /// Its name in the table.
    pub name: String,
    /// The shell command, run in the tree's `src`.
    pub command: String,
    /// Whether nothing else may run meanwhile, because it measures time.
    pub alone: bool,
    /// Factor for its time limit.
    pub patience: u32,
}

/// Tests that share files, and so run one after another.
pub type Job = Vec<Test>;

/// All tests, grouped by what may run in parallel.
pub fn list(copy: &Path) -> Result<Vec<Job>, Vec<String>> {
    let src = copy.join("src");
    let mut files = Vec::new();
    collect(&src, &mut files).map_err(|why| vec![why.to_string()])?;
    files.sort();
    let mut jobs = modules(&src, &files);
    jobs.extend(scripts(&src, &files));
    jobs.push(python(&src, &files));
    for suite in ["data", "data/vlan"] {
        jobs.push(end_to_end(&src, suite).map_err(|why| vec![why])?);
    }
    jobs.extend(programs());
    Ok(jobs)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn one(name: &str, command: &str) -> Job {
    vec![Test { name: name.into(), command: command.into(), alone: false, patience: 1 }]
}

/// The path below `src`, with slashes.
fn below(src: &Path, file: &Path) -> String {
    file.strip_prefix(src).unwrap_or(file).display().to_string()
}

/// Modules with a line that begins `function selftest (`.
fn modules(src: &Path, files: &[PathBuf]) -> Vec<Job> {
    let with_test = |file: &&PathBuf| {
        let text =
            fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        text.lines().any(|line| {
            line.strip_prefix("function selftest").is_some_and(|rest| rest.trim_start().starts_with('('))
        })
    };
    let lua =
        files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "lua" || kind == "dasl"));
    let module = |file: &PathBuf| {
        let name = below(src, &file.with_extension("")).replace('/', ".").replace('-', "_");
        // It compares a count exactly with what the clock allows.
        let alone = name == "lib.token_bucket";
        let first = if alone { "chrt -f 1 " } else { "" };
        vec![Test { command: format!("{first}./snabb snsh -t {name}"), name, alone, patience: 1 }]
    };
    lua.filter(with_test).map(module).collect()
}

/// Executable files named `selftest.*`, except those whose cases are listed one by one.
fn scripts(src: &Path, files: &[PathBuf]) -> Vec<Job> {
    let apart = ["program/lwaftr/tests/selftest.sh", "program/lwaftr/tests/end-to-end/selftest.sh"];
    let named = files.iter().filter(|file| file.file_stem().is_some_and(|stem| stem == "selftest"));
    let names = named.filter(|file| is_executable(file)).map(|file| below(src, file));
    let names = names.filter(|name| !apart.contains(&name.as_str()));
    // A script in Lua names an interpreter by a path that is valid only in its source folder.
    let command = |name: &str| {
        if name.ends_with(".snabb") { format!("./snabb snsh {name}") } else { format!("./{name}") }
    };
    // The soak test runs all end-to-end cases four times, each with its traffic repeated many times.
    let patience = |name: &str| if name.contains("/soaktest/") { 8 } else { 1 };
    names
        .map(|name| vec![Test { command: command(&name), patience: patience(&name), alone: false, name }])
        .collect()
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(file).is_ok_and(|found| found.permissions().mode() & 0o111 != 0)
}

/// The lwAFTR's Python tests, one per file. They give daemons a second or two to start.
fn python(src: &Path, files: &[PathBuf]) -> Job {
    let folder = src.join("program/lwaftr/tests/subcommands");
    let test = |file: &PathBuf| {
        let stem = file.file_name()?.to_str()?.strip_suffix("_test.py")?.to_owned();
        let command = format!("program/lwaftr/tests/selftest.sh {stem}");
        Some(Test { name: format!("lwaftr subcommand {stem}"), command, alone: true, patience: 1 })
    };
    files.iter().filter(|file| file.parent() == Some(&folder)).filter_map(test).collect()
}

/// What `core-end-to-end.sh` does for one case, on two interfaces and on one: that script stops at the first failure,
/// and this continues with the next case.
const CASE: &str = r#"cd program/lwaftr/tests/end-to-end && . ./test_env.sh && TEST_INDEX=$((INDEX * 7))
set -- $(read_test_data); out=$(mktemp -d)
check () {
    ../../../../snabb lwaftr check $stick $1 $2 $3 $out/v4 $out/v6 $6 || exit 1
    cmp $4 $out/v4 && cmp $5 $out/v6 || { echo "Failure: lwaftr check $stick $*"; exit 1; }
}
stick=; check "$@"
if [ -z "$(case $6 in *non-ipv?-traffic-to-ipv?-interface.lua) echo skip;; esac)" ]; then stick=--on-a-stick; check "$@"; fi
rm -r $out"#;

/// The cases of an end-to-end suite.
fn end_to_end(src: &Path, suite: &str) -> Result<Job, String> {
    let folder = src.join("program/lwaftr/tests/end-to-end");
    let names =
        r#". ./test_env.sh; for ((i = 0; i < ${#TEST_DATA[@]}; i += 7)); do echo "${TEST_DATA[i]}"; done"#;
    let base = format!("../{suite}");
    let output =
        shell(Command::new("bash").args(["-c", names]).current_dir(&folder).env("TEST_BASE", &base))?;
    let case = |(index, name): (usize, &str)| Test {
        name: format!("lwaftr end-to-end {suite} {}: {name}", index + 1),
        command: format!(
            "export TEST_BASE={base} INDEX={index}\nexec bash -c '{}'",
            CASE.replace('\'', "'\\''")
        ),
        alone: false,
        patience: 1,
    };
    Ok(output.lines().enumerate().map(case).collect())
}

/// Programs that need no network card: the arguments to run each with, and what it must print or write.
fn programs() -> Vec<Job> {
    let all = include_str!("programs.txt").split("\n\n").filter(|part| !part.starts_with('#'));
    let program = |part: &str| {
        let (name, command) = part.trim().split_once('\n')?;
        Some(one(&format!("program {name}"), &format!("set -e\n{command}")))
    };
    all.filter_map(program).collect()
}
