//! In which order test programs run, and the tests that are no test programs of cargo.

use std::path::{Path, PathBuf};

const FILE: &str = "xtask/suites.toml";

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its crate, followed by the name of an integration test or of a suite in it; or the name of a binary.
    pub name: String,
    pub path: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<(&'static str, &'static str)>,
    /// The folder that it starts in: its crate's.
    pub folder: PathBuf,
    /// Whether it runs only when a core is idle: Clippy and the like. These never fail because of what ran beside them.
    pub when_idle: bool,
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
    /// One at a time beside all others but those that run alone, when a core is idle.
    pub idle: Vec<Program>,
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
        let (idle, programs): (Vec<_>, Vec<_>) = programs.into_iter().partition(|program| program.when_idle);
        let (alone, shared) = programs.into_iter().partition(|program| self.alone.contains(&program.name));
        let (in_pairs, beside) =
            Vec::into_iter(shared).partition(|program| self.in_pairs.contains(&program.name));
        Order { idle, beside, in_pairs, alone }
    }
}

/// Other tests: clippy; the loom models, which are compiled with another flag; the crates that have optional
/// libraries, without them; and the count of instructions per packet. Each occupies a core for minutes, so they get one
/// only when it is idle: daemons of tests beside them do not wait.
pub fn others(root: &Path, features: &[String]) -> Vec<Program> {
    let program = |name: &str, path: PathBuf, arguments: &str| Program {
        name: name.into(),
        path: "chrt".into(),
        arguments: ["--idle", "0", &path.to_string_lossy()]
            .into_iter()
            .chain(arguments.split(' '))
            .map(str::to_string)
            .collect(),
        environment: Vec::new(),
        folder: root.into(),
        when_idle: true,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Program {
        let (arguments, environment) = (Vec::new(), Vec::new());
        let (path, folder) = ("x".into(), "/".into());
        Program { name: name.into(), path, arguments, environment, folder, when_idle: name == "clippy" }
    }

    #[test]
    fn long_ones_start_first_and_some_run_alone() {
        let plan = Plan::parse("first = ['b', 'a']\nalone = ['z', 'b']\nin_pairs = ['q', 'p']").unwrap();
        let order = plan.order(["x", "clippy", "p", "z", "a", "b", "q", "y"].map(named).into());
        assert_eq!(order.idle, ["clippy"].map(named));
        assert_eq!(order.beside, ["a", "x", "y"].map(named));
        assert_eq!(order.in_pairs, ["q", "p"].map(named));
        assert_eq!(order.alone, ["b", "z"].map(named));
        assert!(Plan::parse("first = []").is_err());
    }
}
