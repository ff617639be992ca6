//! `layers.toml`: which crate may use which.

use std::collections::BTreeMap;
use std::path::Path;

/// One crate's row.
pub struct Row {
    pub layer: i64,
    pub may_use: Vec<String>,
    pub may_be_unsafe: bool,
    /// Lines of Rust that it may have, without tests.
    pub lines: usize,
    /// Modules that may import each other.
    pub cycles: Vec<Cycle>,
    /// How many of what tidy counts are left, by its key.
    pub left: BTreeMap<String, usize>,
}

/// Modules of a crate that import each other for a good reason.
#[derive(Debug)]
pub struct Cycle {
    /// Their paths in the crate, sorted.
    pub modules: Vec<String>,
}

pub type Layers = BTreeMap<String, Row>;

/// Reads the rows.
pub fn read(root: &Path) -> Result<Layers, String> {
    let path = root.join("xtask/layers.toml");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let table: toml::Table = text.parse().map_err(|error| format!("{}: {error}", path.display()))?;
    let row = |(name, row): (&String, &toml::Value)| {
        let names = row.get("use").and_then(toml::Value::as_array).into_iter().flatten();
        let row = Row {
            layer: row.get("layer").and_then(toml::Value::as_integer).ok_or(format!("{name}: no layer"))?,
            may_use: names.filter_map(toml::Value::as_str).map(str::to_string).collect(),
            may_be_unsafe: row.get("unsafe").and_then(toml::Value::as_bool).unwrap_or(false),
            lines: row
                .get("lines")
                .and_then(toml::Value::as_integer)
                .and_then(|lines| usize::try_from(lines).ok())
                .ok_or(format!("{name}: no line budget"))?,
            cycles: cycles(name, row)?,
            left: left(row),
        };
        Ok((name.clone(), row))
    };
    table.iter().map(row).collect()
}

/// `left = { tuples = 3 }`.
fn left(row: &toml::Value) -> BTreeMap<String, usize> {
    let table = row.get("left").and_then(toml::Value::as_table).into_iter().flatten();
    table
        .filter_map(|(key, number)| Some((key.clone(), usize::try_from(number.as_integer()?).ok()?)))
        .collect()
}

/// `cycles = [{ modules = ["a", "b"], why = "a sentence" }]`.
fn cycles(name: &str, row: &toml::Value) -> Result<Vec<Cycle>, String> {
    let cycles = row.get("cycles").and_then(toml::Value::as_array).into_iter().flatten();
    let of_one = |cycle: &toml::Value| {
        let modules = cycle.get("modules").and_then(toml::Value::as_array).into_iter().flatten();
        let mut modules: Vec<_> = modules.filter_map(toml::Value::as_str).map(str::to_string).collect();
        modules.sort();
        let why = cycle.get("why").and_then(toml::Value::as_str).unwrap_or_default();
        if modules.len() > 1 && !why.is_empty() {
            Ok(Cycle { modules })
        } else {
            Err(format!(
                "{name}: each of `cycles` names two modules or more, and says why they import each other"
            ))
        }
    };
    cycles.map(of_one).collect()
}

/// The workspace crates that `name` uses according to its Cargo.toml, without those for tests.
pub fn used(root: &Path, name: &str) -> Result<Vec<String>, String> {
    let path = root.join("crates").join(name).join("Cargo.toml");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let table: toml::Table = text.parse().map_err(|error| format!("{}: {error}", path.display()))?;
    let names =
        table.get("dependencies").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::keys);
    Ok(names.filter_map(|name| name.strip_prefix("bm-")).map(str::to_string).collect())
}

/// Findings for every arrow that the rows do not allow, and every crate without a row.
pub fn check(root: &Path, layers: &Layers) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, row) in layers {
        for other in row.may_use.iter().filter(|other| *other != "*") {
            match layers.get(other) {
                Some(lower) if lower.layer < row.layer => {}
                Some(_) => findings.push(format!(
                    "xtask/layers.toml: {name} may use {other}, which is not in a lower layer"
                )),
                None => findings.push(format!(
                    "xtask/layers.toml: {name} may use {other}, which is not a crate of this workspace"
                )),
            }
        }
        let used = used(root, name).unwrap_or_else(|error| {
            findings.push(error);
            Vec::new()
        });
        let allowed = |other: &String| row.may_use.iter().any(|may| may == "*" || may == other);
        findings.extend(used.iter().filter(|other| !allowed(other)).map(|other| {
            format!("crates/{name}/Cargo.toml: uses {other}, which xtask/layers.toml does not allow; depend on a lower crate, or record the decision and add it there")
        }));
    }
    let crates = std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    for name in crates.filter_map(|entry| entry.file_name().into_string().ok()) {
        if !layers.contains_key(&name) {
            findings.push(format!("crates/{name}: has no row in xtask/layers.toml"));
        }
    }
    findings
}
