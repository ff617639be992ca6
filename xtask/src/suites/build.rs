//! Compiles test programs: all of the workspace, or those that are named and what they need.
//!
//! The harness has few programs with many suites, each a module of its program (`mod kept;` in `lifecycle/main.rs`).
//! Each suite is run by itself, as if it was a program, under its own name: `bm-tests kept`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::plan::Program;
use super::{cargo, failed, is_named};

/// The package whose programs consist of suites.
const HARNESS: &str = "bm-tests";

/// Compiles the tests of the whole workspace.
pub fn all(root: &Path, features: &[String]) -> Result<Vec<Program>, Vec<String>> {
    with_suites(compile(root, features, &["test", "--workspace", "--no-run"].map(String::from))?)
}

/// Compiles only the programs that contain a test whose name contains one of `words`, and the router if they test it.
pub fn named(root: &Path, features: &[String], words: &[String]) -> Result<Vec<Program>, Vec<String>> {
    let targets: Vec<Target> = targets(root)?.into_iter().filter(|target| target.is_named(words)).collect();
    let mut programs = Vec::new();
    if targets.iter().any(|target| target.package == HARNESS) {
        let binaries = ["build", "--workspace", "--bin", "brickmoon", "--bin", "brickmoon-bench"];
        compile(root, features, &binaries.map(String::from))?;
    }
    // With `--workspace`, so that what is already compiled for all tests serves, as its features are the same.
    let of_workspace = options(targets.iter().filter(|target| !target.is_library()));
    if !of_workspace.is_empty() {
        let start = ["test", "--workspace", "--no-run"].map(String::from);
        programs.extend(compile(root, features, &[start.as_slice(), &of_workspace].concat())?);
    }
    // `--lib` would mean all libraries of the workspace. The router is selected for its features; it has no library.
    let libraries = options(targets.iter().filter(|target| target.is_library()));
    if !libraries.is_empty() {
        let start = ["test", "--no-run", "-p", "brickmoon", "--lib"].map(String::from);
        programs.extend(compile(root, features, &[start.as_slice(), &libraries].concat())?);
    }
    with_suites(programs)
}

/// The options of cargo that select these targets.
fn options<'a>(targets: impl Iterator<Item = &'a Target>) -> Vec<String> {
    targets.flat_map(Target::option).collect()
}

/// Runs cargo and returns the test programs that it has made.
fn compile(root: &Path, features: &[String], arguments: &[String]) -> Result<Vec<Program>, Vec<String>> {
    let mut command = cargo();
    command.args(arguments).args(["--release", "--locked"]).args(features);
    command.arg("--message-format=json-render-diagnostics").current_dir(root).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| failed("cargo", &error))?;
    if !output.status.success() {
        return Err(vec!["the tests do not compile".into()]);
    }
    programs(&String::from_utf8_lossy(&output.stdout))
}

/// What cargo can compile to a test program.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    package: String,
    kind: String,
    name: String,
    /// The file that it begins with.
    file: PathBuf,
}

impl Target {
    fn is_library(&self) -> bool {
        self.kind == "lib"
    }

    fn option(&self) -> [String; 2] {
        match self.kind.as_str() {
            "lib" => ["-p".into(), self.package.clone()],
            kind => [format!("--{kind}"), self.name.clone()],
        }
    }

    /// Whether the name of its program, or of a suite in it, contains one of `words`.
    fn is_named(&self, words: &[String]) -> bool {
        if is_named(&program_name(&self.package, &self.kind, &self.name), words) {
            return true;
        }
        if self.package != HARNESS || self.is_library() {
            return false;
        }
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let mut modules = text.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
        modules.any(|suite| is_named(&format!("{HARNESS} {suite}"), words))
    }
}

/// All targets of the workspace that have tests.
fn targets(root: &Path) -> Result<Vec<Target>, Vec<String>> {
    let mut command = cargo();
    command.args(["metadata", "--no-deps", "--format-version=1", "--locked"]).current_dir(root);
    let output = command.output().map_err(|error| failed("cargo metadata", &error))?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| failed("cargo metadata", &error))?;
    Ok(targets_in(&metadata))
}

fn targets_in(metadata: &Value) -> Vec<Target> {
    let mut targets = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        for target in package["targets"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
            let kind = text(&target["kind"][0]);
            if target["test"] == true && ["lib", "bin", "test"].contains(&kind.as_str()) {
                let (package, name) = (text(&package["name"]), text(&target["name"]));
                targets.push(Target { package, kind, name, file: text(&target["src_path"]).into() });
            }
        }
    }
    targets
}

/// The programs, with one for each suite of the harness.
fn with_suites(programs: Vec<Program>) -> Result<Vec<Program>, Vec<String>> {
    let mut all = Vec::new();
    for program in programs {
        if program.name.strip_prefix(HARNESS).is_none_or(str::is_empty) {
            all.push(program);
            continue;
        }
        let list = Command::new(&program.path).args(["--list", "--format", "terse"]).output();
        let list = list.map_err(|error| failed(&program.name, &error))?;
        all.extend(suites(&program, &String::from_utf8_lossy(&list.stdout)));
    }
    Ok(all)
}

/// A program for each module in a program's list of its tests, or the program itself if not all are in modules.
fn suites(program: &Program, list: &str) -> Vec<Program> {
    let mut suites: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let Some((suite, _)) = test.split_once("::") else { return vec![program.clone()] };
        suites.entry(suite).or_default().push(test.to_string());
    }
    let of_suite = |(suite, tests): (&str, Vec<String>)| Program {
        name: format!("{HARNESS} {suite}"),
        arguments: std::iter::once("--exact".into()).chain(tests).collect(),
        ..program.clone()
    };
    suites.into_iter().map(of_suite).collect()
}

/// The test programs among cargo's messages.
fn programs(messages: &str) -> Result<Vec<Program>, Vec<String>> {
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: Value =
            serde_json::from_str(line).map_err(|error| vec![format!("cargo's messages: {error}: {line}")])?;
        programs.extend(program(&message));
    }
    Ok(programs)
}

fn program(message: &Value) -> Option<Program> {
    let path = PathBuf::from(message["executable"].as_str()?);
    if message["profile"]["test"] != true {
        return None;
    }
    let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let (target, kind) = (message["target"]["name"].as_str()?, message["target"]["kind"][0].as_str()?);
    let package = package(message["package_id"].as_str()?)?;
    let name = program_name(&package, kind, target);
    let (arguments, environment) = (Vec::new(), Vec::new());
    Some(Program { name, path, arguments, environment, folder, when_idle: false })
}

/// The name of the test program of a target of cargo.
fn program_name(package: &str, kind: &str, target: &str) -> String {
    match kind {
        "test" => format!("{package} {target}"),
        "lib" => package.to_string(),
        "bin" => target.to_string(),
        kind => format!("{package} {kind} {target}"),
    }
}

/// The name in a package's identity: `path+file:///x/crates/fib#bm-fib@0.1.0`, or `...crates/xtask#0.1.0` if the
/// folder has the package's name.
fn package(id: &str) -> Option<String> {
    let (place, fragment) = id.rsplit_once('#')?;
    let name = match fragment.split_once('@') {
        Some((name, _)) => name,
        None => place.rsplit('/').next()?,
    };
    Some(name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_test_programs_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","package_id":"path+file:///b/tests/harness#bm-tests@0.1.0","manifest_path":"/b/tests/harness/Cargo.toml","target":{"kind":["test"],"name":"kept"},"profile":{"test":true},"executable":"/b/target/release/deps/kept-1"}
{"reason":"compiler-artifact","package_id":"path+file:///b/crates/brickmoon#0.1.0","manifest_path":"/b/crates/brickmoon/Cargo.toml","target":{"kind":["bin"],"name":"brickmoon"},"profile":{"test":false},"executable":"/b/target/release/brickmoon"}
{"reason":"compiler-artifact","package_id":"path+file:///b/crates/brickmoon#0.1.0","manifest_path":"/b/crates/brickmoon/Cargo.toml","target":{"kind":["bin"],"name":"brickmoon"},"profile":{"test":true},"executable":"/b/target/release/deps/brickmoon-2"}
{"reason":"compiler-artifact","package_id":"path+file:///b/crates/brickmoon#0.1.0","manifest_path":"/b/crates/brickmoon/Cargo.toml","target":{"kind":["bin"],"name":"brickmoon-bench"},"profile":{"test":true},"executable":"/b/target/release/deps/brickmoon_bench-3"}
{"reason":"compiler-artifact","package_id":"registry+x#libc@0.2.0","manifest_path":"/r/Cargo.toml","target":{"kind":["lib"],"name":"libc"},"profile":{"test":false},"executable":null}
{"reason":"build-finished","success":true}"#;
        let found = programs(messages).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|p| (p.name.as_str(), p.path.to_str().unwrap(), p.folder.to_str().unwrap()))
            .collect();
        assert_eq!(
            found,
            [
                ("bm-tests kept", "/b/target/release/deps/kept-1", "/b/tests/harness"),
                ("brickmoon", "/b/target/release/deps/brickmoon-2", "/b/crates/brickmoon"),
                ("brickmoon-bench", "/b/target/release/deps/brickmoon_bench-3", "/b/crates/brickmoon"),
            ]
        );
        assert!(programs("error: no such command").is_err());
    }

    #[test]
    fn selects_only_targets_with_tests_that_are_named() {
        let metadata = serde_json::json!({"packages": [
            {"name": "bm-fib", "targets": [
                {"name": "bm_fib", "kind": ["lib"], "test": true, "src_path": "/b/src/lib.rs"},
                {"name": "lookup", "kind": ["example"], "test": false, "src_path": "/b/examples/lookup.rs"},
                {"name": "stress", "kind": ["test"], "test": true, "src_path": "/b/tests/stress.rs"}]},
            {"name": "brickmoon", "targets": [
                {"name": "brickmoon", "kind": ["bin"], "test": true, "src_path": "/c/src/main.rs"}]}]});
        let options = |word: &str| {
            let targets = targets_in(&metadata);
            options(targets.iter().filter(|target| target.is_named(&[word.into()])))
        };
        assert_eq!(options("bm-fib"), ["-p", "bm-fib", "--test", "stress"]);
        assert_eq!(options("fib stress"), ["--test", "stress"]);
        assert_eq!(options("brickmoon"), ["--bin", "brickmoon"]);
        assert_eq!(options("lookup"), [""; 0]);
    }

    #[test]
    fn each_suite_of_the_harness_runs_by_itself() {
        let of_cargo = programs(
            r#"{"package_id":"path+file:///b/tests/harness#bm-tests@0.1.0","manifest_path":"/b/tests/harness/Cargo.toml","target":{"kind":["test"],"name":"ipsec"},"profile":{"test":true},"executable":"/b/ipsec-1"}"#,
        );
        let found = suites(
            &of_cargo.unwrap()[0],
            "ipsec::replays: test\nkernel_ipsec::boots: test\nipsec::numbers::rekeys: test\n",
        );
        let found: Vec<_> = found.iter().map(|p| (p.name.as_str(), p.arguments.join(" "))).collect();
        assert_eq!(
            found,
            [
                ("bm-tests ipsec", "--exact ipsec::replays ipsec::numbers::rekeys".to_string()),
                ("bm-tests kernel_ipsec", "--exact kernel_ipsec::boots".to_string()),
            ]
        );
    }
}
