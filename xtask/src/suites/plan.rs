//! Which test programs there are, and in which order they run.

use std::path::{Path, PathBuf};

use serde_json::Value;

const FILE: &str = "xtask/suites.toml";

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its crate, followed by the file of an integration test, or by the name of a binary.
    pub name: String,
    pub path: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<(&'static str, &'static str)>,
    /// The folder that it starts in: its crate's.
    pub folder: PathBuf,
    /// Whether it may have failed because of what ran beside it. Clippy and the like never do.
    pub may_run_again: bool,
}

/// The order of programs, by name.
pub struct Plan {
    first: Vec<String>,
    in_pairs: Vec<String>,
    alone: Vec<String>,
}

/// Programs in the order in which they run.
#[derive(Debug, PartialEq, Eq)]
pub struct Order {
    /// Several at a time, enough to keep the machine busy, the longest first.
    pub beside: Vec<Program>,
    /// Two at a time, after those.
    pub in_pairs: Vec<Program>,
    /// One at a time, at the end.
    pub alone: Vec<Program>,
}

impl Plan {
    pub fn read(root: &Path) -> Result<Self, Vec<String>> {
        let output = |error: &dyn std::fmt::Display| vec![format!("{FILE}: {error}")];
        let text = std::fs::read_to_string(root.join(FILE)).map_err(|error| output(&error))?;
        Self::parse(&text).map_err(|error| output(&error))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        let names = |key: &str| {
            let names =
                table.get(key).and_then(toml::Value::as_array).ok_or(format!("there is no list {key:?}"))?;
            Ok::<_, String>(names.iter().filter_map(toml::Value::as_str).map(str::to_string).collect())
        };
        Ok(Self { first: names("first")?, in_pairs: names("in_pairs")?, alone: names("alone")? })
    }

    pub fn order(&self, mut programs: Vec<Program>) -> Order {
        let rank = |list: &[String], program: &Program| {
            list.iter().position(|name| *name == program.name).unwrap_or(list.len())
        };
        programs.sort_by_key(|program| (rank(&self.first, program), rank(&self.in_pairs, program)));
        let (alone, shared) = programs.into_iter().partition(|program| self.alone.contains(&program.name));
        let (in_pairs, beside) =
            Vec::into_iter(shared).partition(|program| self.in_pairs.contains(&program.name));
        Order { beside, in_pairs, alone }
    }
}

/// Other tests: clippy; the loom models, which are compiled with another flag; the crates that have optional
/// libraries, without them; and the count of instructions per packet. Each occupies a core for a while, but at a low
/// priority, so that daemons of tests beside it do not wait for a core.
pub fn others(root: &Path, features: &[String]) -> Vec<Program> {
    let program = |name: &str, path: PathBuf, arguments: &str| Program {
        name: name.into(),
        path: "nice".into(),
        arguments: ["-n", "15", &path.to_string_lossy()]
            .into_iter()
            .chain(arguments.split(' '))
            .map(str::to_string)
            .collect(),
        environment: Vec::new(),
        folder: root.into(),
        may_run_again: false,
    };
    let cargo = |name: &str, more: &str| {
        program(name, env!("CARGO").into(), &format!("test --release --locked {more}"))
    };
    let mut models = cargo("models", "--target-dir target/loom -p bm-fib -p bm-link --lib model");
    models.environment.push(("RUSTFLAGS", "--cfg loom"));
    let mut others = vec![program("clippy", "make".into(), "--no-print-directory clippy"), models];
    for (feature, name, package) in [
        ("brickmoon/dpdk", "bm-port-dpdk without DPDK", "-p bm-port-dpdk"),
        ("brickmoon/ipsec-mb", "bm-ipsec without ipsec-mb", "-p bm-ipsec"),
    ] {
        others.extend(super::has(features, feature).then(|| cargo(name, package)));
    }
    others.extend(std::env::current_exe().ok().map(|path| program("instructions", path, "instructions")));
    others
}

/// The test programs among cargo's messages.
pub fn programs(messages: &str) -> Result<Vec<Program>, Vec<String>> {
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
    let name = match kind {
        "test" => format!("{package} {target}"),
        "lib" => package,
        "bin" => target.to_string(),
        kind => format!("{package} {kind} {target}"),
    };
    let (arguments, environment) = (Vec::new(), Vec::new());
    Some(Program { name, path, arguments, environment, folder, may_run_again: true })
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

    fn named(name: &str) -> Program {
        let (arguments, environment) = (Vec::new(), Vec::new());
        let (path, folder) = ("x".into(), "/".into());
        Program { name: name.into(), path, arguments, environment, folder, may_run_again: true }
    }

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
    fn long_ones_start_first_and_some_run_alone() {
        let plan = Plan::parse("first = ['b', 'a']\nalone = ['z', 'b']\nin_pairs = ['q', 'p']").unwrap();
        let order = plan.order(["x", "p", "z", "a", "b", "q", "y"].map(named).into());
        assert_eq!(order.beside, ["a", "x", "y"].map(named));
        assert_eq!(order.in_pairs, ["q", "p"].map(named));
        assert_eq!(order.alone, ["b", "z"].map(named));
        assert!(Plan::parse("first = []").is_err());
    }
}
